"""Options and variables of llama.cpp, vLLM and Ollama.

Oracles: the same command with Quire's own options; for values, llama.cpp's documentation of its options.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from quire.cli import bench, chat, info, run, serve, tokenize
from quire.cli.foreign_options import REREAD, from_foreign_environment, translated
from quire.cli.foreign_table import ROWS
from quire.cli.ollama_host import ollama_address
from quire.cli.server_call import call
from quire.errors import RequestError
from quire.params.sampling import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    each.name: each
    for each in (run.command, chat.command, serve.command, bench.command, tokenize.command, info.command)
}


def parsed(command: click.Command, line: str) -> dict[str, Any]:
    """Return the values that a command's function would get, without defaults."""
    with command.make_context(command.name, line.split()) as context:
        return {
            name: value
            for name, value in context.params.items()
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        }


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run without the machine's own environment."""
    import os

    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("LLAMA_", "OLLAMA_", "VLLM_")):
            monkeypatch.delenv(name)


def test_a_type_for_k_alone_applies_to_both_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed(run.command, "-ctk bf16 x")["kv_dtype"] == "bf16"
    assert "-ctk sets both K and V to bf16" in capsys.readouterr().err


def test_values_are_not_taken_for_options() -> None:
    assert parsed(run.command, "-p -cnv") == {"prompt": "-cnv"}
    assert parsed(run.command, "-- -cnv") == {"words": ("-cnv",)}
    assert translated(run.command, ["-n", "-1", "x"]) == ["-n", "-1", "x"]


def test_the_table_is_consistent() -> None:
    """Each program lists a name once, targets exist in some command, and rows that do not work have a text."""
    for program in {row.program for row in ROWS}:
        names = [name for row in ROWS if row.program == program for name in row.names]
        assert sorted(names) == sorted(set(names))
    variables = [row.env for row in ROWS if row.env]
    assert len(variables) == len(set(variables))
    known = {flag for each in COMMANDS.values() for parameter in each.params for flag in parameter.opts}
    known |= {flag for each in COMMANDS.values() for parameter in each.params for flag in parameter.secondary_opts}
    assert [row for row in ROWS if row.verdict == "works" and row.target not in known] == []
    assert [row for row in ROWS if row.verdict != "works" and not row.text] == []
    assert len({name for row in ROWS if row.program == "llama.cpp" for name in row.names}) > 500
    first: dict[str, str] = {}
    for row in ROWS:
        for name in row.names:
            first.setdefault(name, row.how)
    assert {name for name, how in first.items() if how != "same" and name in known} <= REREAD


def test_shared_names_mean_the_same_parameter() -> None:
    """If one of Quire's commands has an option of the same name, it is the one in the table."""
    for row in ROWS:
        for each in COMMANDS.values():
            ours = {
                flag: parameter for parameter in each.params for flag in (*parameter.opts, *parameter.secondary_opts)
            }
            for name in row.names:
                if name in ours and row.verdict == "works" and row.target in ours and not row.elsewhere:
                    assert ours[name] is ours[row.target], name


def test_ignored_and_rejected_variables(capsys: pytest.CaptureFixture[str]) -> None:
    off = {"LLAMA_ARG_MLOCK": "0", "LLAMA_ARG_TENSOR_SPLIT": "", "LLAMA_ARG_HOST": "::1"}
    assert from_foreign_environment(off, run.command) == {}
    assert from_foreign_environment({"LLAMA_ARG_FLASH_ATTN": "on"}, serve.command) == {}
    assert "LLAMA_ARG_FLASH_ATTN has no effect: attention" in capsys.readouterr().err
    found = from_foreign_environment({"LLAMA_ARG_SPEC_TYPE": "ngram-simple"}, serve.command)
    assert found == {"speculation": ("LLAMA_ARG_SPEC_TYPE", "lookup")}
    with pytest.raises(click.UsageError, match="LLAMA_ARG_RPC is not supported"):
        from_foreign_environment({"LLAMA_ARG_RPC": "host:1"}, serve.command)
    with pytest.raises(click.UsageError, match="OLLAMA_HOST"):
        from_foreign_environment({"OLLAMA_HOST": "a:b:c"}, serve.command)


@pytest.mark.parametrize(
    ("given", "expected"),
    [  # from Ollama's own tests
        ("1.2.3.4", "http://1.2.3.4:11434"), (":1234", "http://0.0.0.0:1234"), ("1.2.3.4:1234", "http://1.2.3.4:1234"),
        ("example.com", "http://example.com:11434"), ("example.com:1234", "http://example.com:1234"),
        (":0", "http://0.0.0.0:0"), ("[::1]", "http://[::1]:11434"), ("[::]", "http://[::]:11434"),
        ("::1", "http://[::1]:11434"), ("[::1]:1337", "http://[::1]:1337"), (" 1.2.3.4 ", "http://1.2.3.4:11434"),
        ('"1.2.3.4"', "http://1.2.3.4:11434"), ("'1.2.3.4'", "http://1.2.3.4:11434"), ('" 1.2.3.4 "', "http://1.2.3.4:11434"),
        ("http://1.2.3.4", "http://1.2.3.4:80"), ("http://1.2.3.4:4321", "http://1.2.3.4:4321"),
        ("https://1.2.3.4", "https://1.2.3.4:443"), ("https://1.2.3.4:4321", "https://1.2.3.4:4321"),
        ("http://[::1]/", "http://[::1]:80"), ("1.2.3.4:", "http://1.2.3.4:11434"), ("http://", "http://127.0.0.1:80"),
    ],
)  # fmt: skip
def test_ollama_address(given: str, expected: str) -> None:
    scheme, host, port = ollama_address(given)
    assert (f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}") == expected
    found = from_foreign_environment({"OLLAMA_HOST": given}, serve.command)
    assert found == {"host": ("OLLAMA_HOST", host), "port": ("OLLAMA_HOST", str(port))}


def test_invalid_ollama_addresses() -> None:
    """Includes values for which Ollama silently uses another port, and paths, on which no server can listen."""
    for given in (
        "a:b:c",
        ":66000",
        ":-1",
        "1.2.3.4:x",
        "ftp://a",
        "://a",
        "https://example.com/ollama",
        "[a]",
        "[::1",
    ):
        with pytest.raises(click.UsageError, match="OLLAMA_HOST"):
            ollama_address(given)


def test_commands_call_the_server_at_ollama_host(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def urlopen(request: Any, timeout: float) -> Any:
        asked.append(request.full_url)
        raise OSError("nobody")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    for variables, expected in (
        ({}, "http://127.0.0.1:8080/x"), ({"OLLAMA_HOST": "0.0.0.0"}, "http://127.0.0.1:11434/x"),
        ({"OLLAMA_HOST": "[::]:5"}, "http://[::1]:5/x"), ({"OLLAMA_HOST": "a", "QUIRE_SERVER": "b:1"}, "http://b:1/x"),
    ):  # fmt: skip
        for name in ("OLLAMA_HOST", "QUIRE_SERVER"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RequestError, match="no server at"):
            call(None, None, "/x")
        assert asked.pop() == expected


def test_options_take_precedence_over_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "3")
    monkeypatch.setenv("QUIRE_CPU_THREADS", "5")
    found = parsed(serve.command, "-c 64")
    assert (found["n_ctx"], found["threads"]) == (64, 5)
    assert capsys.readouterr().err == "quire: from the environment: LLAMA_ARG_CTX_SIZE, LLAMA_ARG_THREADS\n"


def test_the_server_only_gets_sampling_options_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("quire.server.worker.launch.launch", lambda: None)

    def open_service(*given: Any) -> None:
        seen.append(given[0])
        raise click.Abort

    monkeypatch.setattr("quire.server.service.service.open_service", open_service)
    with pytest.raises(click.Abort):
        serve.command.main(["--temp", "0.3", "--top-n-sigma", "-1", "-n", "9"], standalone_mode=False)
    assert seen[0].sampling == {"temperature": 0.3, "top_n_sigma": None, "max_tokens": 9}
    assert SamplingParams(**seen[0].sampling).temperature == 0.3


def test_the_page_is_current() -> None:
    program = (
        "import sys; sys.path.insert(0, 'ci'); import make_options_page as m; "
        "sys.exit(m.page() != m.PAGE.read_text(encoding='utf-8'))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "run ci/make_options_page.py"


def test_options_missing_from_the_table_are_found() -> None:
    program = (
        "import sys; sys.path.insert(0, 'ci'); import make_options_page as m; "
        "print(m.missing('-np,   --parallel N    slots\\n-qq,   --quite-new N    something\\n'))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['--quite-new', '-qq']"
