"""How model and prompt are written: as arguments, by options, on standard input, in the ways of other programs.

Oracle: what a user of llama.cpp, Ollama or vLLM means by the same words.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_llm import FakeLLM
from quire.cli.main import main
from quire.cli.model_options import ModelOptions
from quire.cli.session import Session, Sizes
from quire.hub.names import HubName, hub_name

MAGIC = b"GGUF" + bytes(20)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with models: a file, a folder, a blob without a suffix, and a text that is none."""
    (tmp_path / "m.gguf").write_bytes(MAGIC)
    (tmp_path / "sha256-12ab").write_bytes(MAGIC)
    (tmp_path / "my model.gguf").write_bytes(MAGIC)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "notes").write_text("hello")
    (tmp_path / "question.txt").write_text("Is it from a file?\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(
    patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], *words: str, stdin: bytes = b""
) -> tuple[str | None, Any] | str:
    """The model and the prompt that a command line means, or its error."""
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
    llm = FakeLLM([["x"], ["y"]])
    opened: list[str | None] = []

    def opener(options: ModelOptions, sizes: Sizes) -> FakeLLM:
        opened.append(options.path)
        return llm

    code = main(words, Session(opener))  # type: ignore[arg-type]
    error = capture.readouterr().err
    if code:
        assert code == 2
        return error
    return opened[0], llm.asked[0][1][-1]["content"]


RUNS: dict[str, tuple[str | None, str]] = {
    "run|Tell me": (None, "Tell me"),
    "run|m.gguf|Tell me": ("m.gguf", "Tell me"),
    "run|m.gguf|tell|me|a|story": ("m.gguf", "tell me a story"),
    "run|./absent.gguf|x": ("./absent.gguf", "x"),
    "run|my model.gguf|x": ("my model.gguf", "x"),
    "run|sha256-12ab|x": ("sha256-12ab", "x"),
    "run|checkpoint|x": ("checkpoint", "x"),
    "run|notes": (None, "notes"),
    "run|-m|m.gguf|Tell me": ("m.gguf", "Tell me"),
    "run|-m|m.gguf|-p|Tell me": ("m.gguf", "Tell me"),
    "run|m.gguf|-p|Tell me": ("m.gguf", "Tell me"),
    "run|-p|Tell me|m.gguf": ("m.gguf", "Tell me"),
    "run|-p|Tell me": (None, "Tell me"),
    "run|whatever|-p|Tell me": ("whatever", "Tell me"),
    "run|m.gguf|-f|question.txt": ("m.gguf", "Is it from a file?"),
    "run|m.gguf|-p|a\\tb\\x41\\\\n": ("m.gguf", "a\tbA\\n"),
    "run|m.gguf|-e|-p|a\\nb": ("m.gguf", "a\nb"),
    "run|m.gguf|--no-escape|-p|a\\nb": ("m.gguf", "a\\nb"),
    "run|m.gguf|a\\nb": ("m.gguf", "a\\nb"),
    "run|What is 3 / 4?": (None, "What is 3 / 4?"),
    "chat|m.gguf|Hello": ("m.gguf", "Hello"),
    "chat|-m|m.gguf|-p|Hello": ("m.gguf", "Hello"),
}


@pytest.mark.parametrize("line", RUNS)
def test_model_and_prompt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert asked(monkeypatch, capsys, *line.split("|")) == RUNS[line]


@pytest.mark.parametrize("line", ["run|m.gguf", "run|m.gguf|-", "run|-m|m.gguf", "run|m.gguf|-p|-", "chat|m.gguf"])
def test_the_prompt_from_standard_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert asked(monkeypatch, capsys, *line.split("|"), stdin=b"From there\n") == ("m.gguf", "From there")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run|-m|m.gguf|m.gguf|x", "MODEL is given twice"),
        ("run|m.gguf|x|-p|y", "PROMPT is given twice"),
        ("run|m.gguf|-f|question.txt|-p|y", "PROMPT is given twice"),
        ("run|some-model|Tell me", "must name a model but 'some-model' is neither"),
        ("run|tell|me|a|story", "quote a prompt of several words"),
        ("info|-m|m.gguf|m.gguf", "MODEL is given twice"),
        ("bench|-m|m.gguf|m.gguf", "MODEL is given twice"),
        ("tokenize|-m|m.gguf|m.gguf|x", "MODEL is given twice"),
    ],
)
def test_what_cannot_be_meant(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    error = asked(monkeypatch, capsys, *line.split("|"))
    assert isinstance(error, str)
    assert words in error
    assert error.count("\n") == 1


PACKAGED = Path(__file__).resolve().parents[2] / "python/quire/data/tiny-chat-q8_0.gguf"


@pytest.mark.parametrize(
    "arguments",
    [
        ("tokenize", str(PACKAGED), "Once upon", "--ids"),
        ("tokenize", "-m", str(PACKAGED), "-p", "Once upon", "--ids"),
        ("tokenize", "Once upon", "--ids"),
        ("tokenize", str(PACKAGED), "Once", "upon", "--ids"),
    ],
)
def test_tokenize_takes_both(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    from quire.tokenizer import Tokenizer

    assert main(arguments) == 0
    assert [int(id) for id in capsys.readouterr().out.split()] == Tokenizer.from_gguf(PACKAGED).encode("Once upon")


@pytest.mark.parametrize("arguments", [(str(PACKAGED),), ("-m", str(PACKAGED))])
def test_info_takes_both(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert main(["info", "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(PACKAGED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubName("org/name")),
        ("org/name:Q4_K_M", HubName("org/name", tag="Q4_K_M")),
        ("hf.co/org/name-GGUF:IQ3_XXS", HubName("org/name-GGUF", tag="IQ3_XXS")),
        ("huggingface.co/org/na.me", HubName("org/na.me")),
        ("hf://org/name", HubName("org/name")),
        ("https://huggingface.co/org/name", HubName("org/name")),
        ("https://huggingface.co/org/name/tree/dev", HubName("org/name", revision="dev")),
        ("https://huggingface.co/org/name/resolve/main/sub/a.gguf?download=true",
         HubName("org/name", file="sub/a.gguf", revision="main")),
        ("https://huggingface.co/org/name/blob/main/a.gguf", HubName("org/name", file="a.gguf", revision="main")),
        ("name", None),
        ("a/b/c", None),
        ("../models", None),
        ("./model", None),
        ("/abs/path", None),
        ("org/", None),
        ("What is 3/4?", None),
        ("https://example.org/org/name", None),
        ("", None),
    ],
)  # fmt: skip
def test_names_of_a_hub(monkeypatch: pytest.MonkeyPatch, text: str, expected: HubName | None) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert hub_name(text) == expected


def test_the_address_of_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/")
    assert hub_name("http://127.0.0.1:9/org/name") == HubName("org/name")
