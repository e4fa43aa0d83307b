"""llama-cpp-python's classes in ``quire.compat.llama_cpp``; tests/compatibility runs scripts of its users.

Oracles: the shapes of OpenAI's interface, which that library follows, and the same model in ``quire.LLM``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quire.compat.llama_cpp import Llama, LlamaGrammar
from quire.engine import LLM
from quire.engine.loading.loader import packaged_model
from quire.errors import LoadError, QuireError, UnsupportedError
from served import environment


@pytest.fixture(scope="module")
def opened() -> Iterator[Llama]:
    with Llama(model_path=str(packaged_model()), verbose=False, n_ctx=512, n_threads=1) as llm:
        yield llm


def test_answers_equal_those_of_the_engine(opened: Llama, llm: LLM) -> None:
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    answer = opened.create_chat_completion(asked, temperature=0.0, max_tokens=16)
    assert answer["choices"][0]["message"]["content"] == llm.chat(asked, temperature=0.0, max_tokens=16).text  # type: ignore[index]
    text = opened("Once upon a time", temperature=0.0, max_tokens=16)["choices"][0]["text"]  # type: ignore[index]
    assert text == llm.generate("Once upon a time", temperature=0.0, max_tokens=16)[0].text
    vectors = opened.embed(["Once"], normalize=True)
    assert vectors[0] == pytest.approx(llm.embed("Once")[0].tolist(), abs=0.02)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lora_base": "x"}, "lora_base"), ({"rope_scaling_type": 7}, "rope_scaling_type"), ({"vocab_only": True}, "vocab_only"),
        ({"type_k": 10}, "type_k"), ({"type_k": 1, "type_v": 20}, "type_v"),
    ],
)  # fmt: skip
def test_unsupported_options_that_change_answers_are_rejected(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"\[llama_cpp\.Llama\] {text}"):
        Llama(packaged_model(), **options)


def test_a_model_that_cannot_be_opened_is_a_value_error(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(40))
    for name in ("broken.gguf", "absent.gguf"):
        with pytest.raises(ValueError) as raised:
            Llama(str(tmp_path / name))
        assert isinstance(raised.value, LoadError)


def test_unknown_arguments(opened: Llama) -> None:
    with pytest.raises(TypeError, match=r"^Llama\(\) .*'n_context'"):
        Llama(packaged_model(), n_context=1)
    with pytest.raises(TypeError, match="temprature"):
        opened("x", temprature=1)
    with pytest.raises(UnsupportedError, match="save_state"):
        opened.save_state()
    with pytest.raises(QuireError):
        opened("x", grammar=LlamaGrammar.from_string("root ::= nothing"))


def test_models_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    asked: list[Any] = []

    def download(repo: str, name: str, **options: Any) -> str:
        asked.append((repo, name))
        return str(packaged_model())

    monkeypatch.setattr(hub, "list_repo_files", lambda repo: ["README.md", "a-q4_0.gguf", "a-q8_0.gguf"])
    monkeypatch.setattr(hub, "hf_hub_download", download)
    with Llama.from_pretrained(repo_id="org/a", filename="*q8_0.gguf", verbose=False) as llm:
        assert llm("Once", max_tokens=1)
    assert asked == [("org/a", "a-q8_0.gguf")]
    with pytest.raises(UnsupportedError, match=r"filename .* matches"):
        Llama.from_pretrained("org/a", "*.gguf")


def test_importing_quire_does_not_import_it() -> None:
    program = (
        "import sys, quire; quire.LLM; quire.AsyncLLM; import quire.server.app\n"
        "assert not [n for n in sys.modules if n.startswith('quire.compat')]"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True)


def test_adapters_are_those_of_the_engine() -> None:
    from quire.compat.llama_cpp.options import engine_options

    assert "adapters" not in engine_options({"lora_path": None, "lora_scale": 0.5})
    for given, scale in (({}, 1.0), ({"lora_scale": 0.5}, 0.5)):
        assert engine_options({"lora_path": "a.gguf", **given})["adapters"] == (("a.gguf", scale),)
