"""Help, completion, the manual page, piped text, and the commands for vectors and tokens.

Oracles: click's own list of a command's options, and the checks of the shells and of man if they are installed.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from fake_llm import FakeLLM
from quire.cli.help_sections import COMMAND_GROUPS, EXAMPLES, SECTIONS
from quire.cli.main import COMMANDS, cli, main
from quire.cli.piped_input import joined_with
from quire.cli.session import Session
from served import environment

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = click.Context(cli)
TINY = ROOT / "python/quire/data/tiny-chat-q8_0.gguf"


def options_of(name: str) -> dict[str, click.Option]:
    command = cli.get_command(CONTEXT, name)
    assert command is not None
    return {each.name or "": each for each in command.params if isinstance(each, click.Option)}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_once_and_short_help_fits_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    whole, short = shown(capsys, name, "--help"), shown(capsys, name, "-h")
    for option in options_of(name).values():
        starts = (f"  {option.opts[0]},", f"  {option.opts[0]} ", f"  {option.opts[0]}\n")
        listed = whole.partition("ptions:\n")[2].splitlines(keepends=True)
        assert len([line for line in listed if line.startswith(starts)]) == 1, option
    assert "Documentation: docs/" in whole
    assert "<=x" not in whole
    assert len(short.splitlines()) <= 45
    assert shown(capsys, "help", name) == whole
    if len(options_of(name)) > 20:
        assert "Common options:" in short
        assert len(SECTIONS[name][0].options) <= 10
        assert "Other options:" not in whole  # every option has a heading of its own subject
    for line in EXAMPLES.get(name, ()):
        assert line in whole


def test_sections_and_groups_name_existing_options() -> None:
    assert sorted(name for _, names in COMMAND_GROUPS for name in names) == sorted(COMMANDS)
    assert set(SECTIONS) <= set(COMMANDS)
    for name, sections in SECTIONS.items():
        common = [option for option in sections[0].options if option not in options_of(name)]
        assert common == []
        assert len(sections[0].options) <= 10
    every = {option for name in COMMANDS for option in options_of(name)}
    assert {option for sections in SECTIONS.values() for each in sections for option in each.options} <= every


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == shown(capsys, "--help") == shown(capsys, "help")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    script = shown(capsys, "completion", shell)
    assert "_QUIRE_COMPLETE" in script
    if shutil.which(shell) is not None:
        assert subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("quire se", "serve"),
        ("quire run --temp", "--temperature"),
        ("quire serve --cor", "--cors-origin"),
        ("quire run qwen3:0", "qwen3:0.6b"),
        ("quire run -m qwen3:1.", "qwen3:1.7b"),
        ("quire run -ngl 99 --mli qwen3:1", "qwen3:14b"),  # options of other programs do not prevent completion
    ],
)
def test_completion_of_commands_options_and_models(tmp_path: Path, line: str, expected: str) -> None:
    words = line.split()
    variables = {**environment(), "HOME": str(tmp_path), "_QUIRE_COMPLETE": "bash_complete", "COMP_WORDS": line,
                 "COMP_CWORD": str(len(words) - 1)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "quire"], env=variables, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stderr == ""
    assert expected in [row.partition(",")[2] for row in done.stdout.splitlines()]


def test_the_manual_page_has_every_command_and_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, "help", "--man")
    assert [name for name in COMMANDS if f".SS quire {name} " not in page] == []
    assert (ROOT / "docs/quire.1").read_text(encoding="utf-8") == page, "quire help --man > docs/quire.1"
    if shutil.which("groff") is not None:
        done = subprocess.run(["groff", "-man", "-ww", "-z"], input=page, text=True, capture_output=True, check=False)
        assert done.stderr == ""


# Piped text


def test_piped_text_and_question_are_joined() -> None:
    assert joined_with(b"a report\n", b"Summarize") == b"a report\n\nSummarize"
    assert joined_with(b" \n", b"Summarize") == joined_with(b"", b"Summarize") == b"Summarize"


def run(line: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a shell line with ``quire`` on the package's model."""
    quire = f"{sys.executable} -m quire"
    return subprocess.run(
        ["sh", "-c", line.replace("quire", quire)], capture_output=True, text=True, check=False, timeout=300,
        env=environment(), **options,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


pytestmark_posix = pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")


@pytestmark_posix
def test_piped_input_is_part_of_the_prompt(tmp_path: Path) -> None:
    options = "-n 3 --json --raw"
    alone = json.loads(run(f"quire run {options} 'the end' < /dev/null").stdout)["n_prompt_tokens"]
    for line in (
        f"echo Once upon a time | quire run {options} 'the end'",
        f"(sleep 1.5; echo Once upon a time) | quire run {options} 'the end'",
        f"echo Once upon a time > {tmp_path}/in; quire run {options} 'the end' < {tmp_path}/in",
    ):
        done = run(line)
        assert json.loads(done.stdout)["n_prompt_tokens"] > alone + 2, done.stderr
    # The input of a surrounding loop is not consumed.
    done = run(
        f"printf 'a\\nb\\n' > {tmp_path}/in; while read line; do quire run {options} $line; done < {tmp_path}/in"
    )
    assert len(done.stdout.splitlines()) == 2


@pytestmark_posix
def test_a_pipe_without_a_writer_does_not_hang() -> None:
    read, write = os.pipe()
    try:
        done = run("quire run -n 3 'the end'", stdin=read)
    finally:
        os.close(read)
        os.close(write)
    assert done.returncode == 0
    assert "no input on standard input" in done.stderr


# Commands


class Ranker(FakeLLM):
    """Scores a document by its length."""

    def rerank(self, query: str, documents: list[str], **_: object) -> list[float]:
        self.asked.append(("rerank", query, documents))  # type: ignore[arg-type]
        return [float(len(text)) for text in documents]


def test_documents_are_ordered_by_score(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[str | None] = []

    def opener(options: object, _: object) -> FakeLLM:
        opened.append(options.path)  # type: ignore[attr-defined]
        return Ranker([])

    session = Session(opener)  # type: ignore[arg-type]
    assert main(("rerank", "m.gguf", "which?", "a", "ccc", "bb"), session) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["ccc", "bb", "a"]
    assert main(("rerank", "-m", "m.gguf", "-q", "which?", "a", "ccc", "bb", "--top-n", "1", "--json"), session) == 0
    (best,) = json.loads(capsys.readouterr().out)["results"]
    assert (best["index"], best["document"]["text"]) == (1, "ccc")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo!\n"), encoding="utf-8"))
    assert main(("rerank", "m.gguf", "which?"), session) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["two!", "one"]
    assert set(opened) == {"m.gguf"}


def test_vectors_are_written_to_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    (tmp_path / "texts").write_text("Once\n\nupon\n")
    assert main(("embed", str(TINY), "-f", str(tmp_path / "texts"), "-o", str(tmp_path / "v.npy"), "-t", "1")) == 0
    found = np.load(tmp_path / "v.npy")
    assert found.shape[0] == 2
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_create_registers_a_modelfile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from quire.hub.locate import preset_of

    monkeypatch.setenv("QUIRE_MODELS", str(tmp_path / "models.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/m.gguf").symlink_to(TINY)
    text = (
        'FROM ./m.gguf\nSYSTEM """Be\nbrief."""\nPARAMETER num_ctx 512\nPARAMETER temperature 0\nPARAMETER stop "."\n'
    )
    (tmp_path / "sub/Modelfile").write_text(text + 'PARAMETER stop "!"\nPARAMETER num_predict -1\nLICENSE x\n')
    assert main(("create", "poet", "-f", "sub/Modelfile", "-q", "Q4_K_M")) == 0
    preset = preset_of("poet")
    assert preset is not None
    assert Path(preset.model) == tmp_path / "sub/m.gguf"
    assert preset.system == "Be\nbrief."
    assert preset.options == {"ctx-size": 512, "quantize": "Q4_K_M"}
    assert preset.sampling == {"temperature": 0, "stop": [".", "!"]}
    capsys.readouterr()
    for words, code, said in (
        (("create", "x"), 3, "Modelfile"),
        (("create", "x", "-f", "absent"), 3, "absent"),
    ):
        assert main(words) == code
        assert said in capsys.readouterr().err
    (tmp_path / "Modelfile").write_text(f"FROM {TINY}\nPARAMETER luck 7\n")
    assert main(("create", "x")) == 1
    assert "luck" in capsys.readouterr().err
    (tmp_path / "Modelfile").write_text(f"FROM {TINY}\nTEMPLATE {{{{ .Nonsense }}}}\n")
    assert main(("create", "x")) == 1
    said = capsys.readouterr().err
    assert said.startswith("quire: [create] TEMPLATE")
    assert ".Nonsense" in said
    (tmp_path / "Modelfile").write_text(f"FROM {TINY}\nPARAMETER num_keep 24\n")
    assert main(("create", "x")) == 0
    assert "num_keep" in capsys.readouterr().err
