"""Options and variables of llama.cpp, vLLM and Ollama.

Oracles: what the same command does with our own options; for values, llama.cpp's own documentation of its options.
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
from quire.sampling import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    each.name: each
    for each in (run.command, chat.command, serve.command, bench.command, tokenize.command, info.command)
}


def parsed(command: click.Command, line: str) -> dict[str, Any]:
    """The values of a command's parameters, as its function would get them, those of defaults left out."""
    with command.make_context(command.name, line.split()) as context:
        return {
            name: value
            for name, value in context.params.items()
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        }


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine's own environment."""
    import os

    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("LLAMA_", "OLLAMA_", "VLLM_")):
            monkeypatch.delenv(name)


WORKS = {
    "serve -np 4": "serve --max-sequences 4",
    "serve -np -1": "serve",
    "serve -ub 64 -b 2048": "serve --batch-size 64",
    "serve -b 2048 -ub 64": "serve --batch-size 64",
    "serve -b 256": "serve --batch-size 256",
    "serve -nocb": "serve --max-sequences 1",
    "serve -ctk q8_0 -ctv q8_0": "serve --kv-dtype q8_0",
    "serve --cache-type-k bf16 --cache-type-v bf16": "serve --kv-dtype bf16",
    "serve -ctk q8_0 -ctv q4_0": "serve --kv-dtype q8_0/q4_0",
    "serve -ctv q5_1": "serve --kv-dtype f16/q5_1",
    "serve -ctk q8_0 -ctv f16": "serve --kv-dtype q8_0/f16",
    "serve --mlock": "serve --load lock",
    "serve --no-mmap": "serve --load copy",
    "serve -lm mmap+mlock": "serve --load lock",
    "serve -dev none": "serve --device cpu",
    "serve -a one,two": "serve --alias one --alias two",
    "serve -t -1": "serve",
    "serve -Cr 0-3": "serve -C f",
    "serve --cors-origins https://a.org,https://b.org": "serve --cors-origin https://a.org --cors-origin https://b.org",
    "serve --api-key first-key,second-key": "serve --api-key first-key --api-key second-key",
    "serve -cms 64": "serve --snapshot-tokens 64",
    "serve --max-model-len 32k": "serve -c 32000",
    "serve --max_model_len 4096": "serve -c 4096",
    "serve --max-model-len auto": "serve",
    "serve --max-num-seqs=7": "serve --max-sequences 7",
    "serve --served-model-name gpt": "serve --alias gpt",
    "serve --max-num-batched-tokens 99": "serve --batch-size 99",
    "serve --kv-cache-dtype bfloat16": "serve --kv-dtype bf16",
    "serve --disable-log-requests": "serve --no-access-log",
    "serve --uvicorn-log-level warning": "serve --no-access-log",
    "run -r END x": "run --stop END x",
    "run -cnv x": "run --conversation x",
    "run -i x": "run --conversation x",
    "run -no-cnv x": "run --raw x",
    "run --sampler-seq kpt x": "run --samplers top_k;top_p;temperature x",
    "run --samplers penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature x":
        "run --samplers penalties;dry;top_n_sigma;top_k;typical_p;top_p;min_p;xtc;temperature x",
    "run --samplers top-k;nucleus;typ;temp x": "run --samplers top_k;top_p;typical_p;temperature x",
    "run --reasoning-format deepseek x": "run --reasoning-format auto x",
    "run -t4 x": "run -t 4 x",
    "run -n-1 x": "run -n -1 x",
    "run -c 0 x": "run -c 0 x",
    "tokenize --no-bos x": "tokenize --no-special x",
}  # fmt: skip


@pytest.mark.parametrize("theirs", WORKS)
def test_what_works_is_what_our_option_does(theirs: str) -> None:
    name, _, line = theirs.partition(" ")
    expected = parsed(COMMANDS[name], WORKS[theirs].partition(" ")[2])
    assert parsed(COMMANDS[name], line) == expected
    assert expected or WORKS[theirs] == "serve"


NOTES = [
    "run -fa x", "run -fa on x", "run --flash-attn auto x", "serve --jinja", "serve --metrics", "serve -cb",
    "serve --slots", "serve -fit off", "run --numa distribute x", "run --keep 4 x", "serve -sm none",
    "serve --gpu-memory-utilization 0.9", "serve --dtype half", "serve --enable-prefix-caching",
    "serve --tensor-parallel-size 1", "serve --trust-remote-code", "run -co x", "run --no-warmup x", "run -v x",
    "chat -cnv", "serve -ngld 99", "serve --rope-freq-scale 1.0", "run -tb 4 x", "serve -nr",
]  # fmt: skip


@pytest.mark.parametrize("line", NOTES)
def test_what_has_no_meaning_is_noted_in_a_line(capsys: pytest.CaptureFixture[str], line: str) -> None:
    name, *words = line.split()
    assert parsed(COMMANDS[name], " ".join(words)) == ({"words": ("x",)} if words[-1] == "x" else {})
    shown = capsys.readouterr().err
    assert shown.startswith(f"quire: {words[0]} has no effect: ")
    assert shown.count("\n") == 1


REFUSED = {
    "run --lora a.gguf x": "--lora is not supported: adapters",
    "serve --lookup-cache-static x": "--lookup-cache-static is not supported: tokens are proposed by a draft model",
    "serve --ssl-key-file k": "put a proxy",
    "serve --chat-template x": "--chat-template is not supported",
    "run --context-shift x": "larger -c",
    "run --list-devices": "quire devices",
    "run -cl": "quire list",
    "serve --tensor-parallel-size 2": "one device",
    "serve --block-size 16": "32 tokens",
    "run --rope-scale 2 x": "rope keys",
    "run -np 4 x": "-np is not an option of quire run: it is one of quire serve",
    "run --host 0.0.0.0 x": "--host is not an option of quire run: it is one of quire serve",
    "info -ngl 9": "-ngl is not an option of quire info: it is one of quire run, chat, serve, imatrix, perplexity, bench",
    "run -xyz x": "No such option '-xyz'",
    "run -nglx 3 x": "like -ngl",
    "run -ctk bf16 -ctv q8_0 x": "'bf16/q8_0' is not one of 'auto'",
    "run -ctk iq4_nl -ctv iq4_nl x": "'iq4_nl' is not one of 'auto'",
    "run -lm floppy x": "-lm must be one of auto, mmap",
    "serve --max-model-len many": "--max-model-len must be a number",
    "serve -np": "-np must have a value",
    "run --reasoning-format deepseek-legacy x": "must be auto, none or deepseek",
    "run --sampler-seq kq x": "must be letters of",
    "serve --seed 3": "--seed is not an option of quire serve: it is one of quire run, chat",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_says_what_to_do(line: str) -> None:
    name, _, rest = line.partition(" ")
    with pytest.raises(click.UsageError) as caught:
        parsed(COMMANDS[name], rest)
    assert REFUSED[line] in caught.value.format_message()


def test_one_type_for_both_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed(run.command, "-ctk bf16 x")["kv_dtype"] == "bf16"
    assert "-ctk is for K and V" in capsys.readouterr().err


def test_types_of_the_cache_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CACHE_TYPE_K", "q8_0")
    assert parsed(run.command, "x")["kv_dtype"] == "q8_0/f16"
    monkeypatch.setenv("LLAMA_ARG_CACHE_TYPE_V", "q4_0")
    assert parsed(run.command, "x")["kv_dtype"] == "q8_0/q4_0"


def test_values_are_not_taken_for_options() -> None:
    assert parsed(run.command, "-p -cnv") == {"prompt": "-cnv"}
    assert parsed(run.command, "-- -cnv") == {"words": ("-cnv",)}
    assert translated(run.command, ["-n", "-1", "x"]) == ["-n", "-1", "x"]


def test_the_table_is_sound() -> None:
    """Every name once in a program; every target an option of some command; texts where nothing works."""
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


def test_names_that_work_and_are_ours_mean_the_same_parameter() -> None:
    """A name of theirs that one of our commands has is the option that the table says."""
    for row in ROWS:
        for each in COMMANDS.values():
            ours = {
                flag: parameter for parameter in each.params for flag in (*parameter.opts, *parameter.secondary_opts)
            }
            for name in row.names:
                if name in ours and row.verdict == "works" and row.target in ours and not row.elsewhere:
                    assert ours[name] is ours[row.target], name


ENVIRONMENT: list[tuple[str, str, str, str, object]] = [
    ("serve", "LLAMA_ARG_CTX_SIZE", "512", "n_ctx", "512"),
    ("run", "LLAMA_ARG_CTX_SIZE", "512", "n_ctx", "512"),
    ("serve", "LLAMA_ARG_N_PARALLEL", "3", "max_sequences", "3"),
    ("serve", "LLAMA_ARG_MLOCK", "1", "load", "lock"),
    ("serve", "LLAMA_API_KEY", "one-secret,another", "api_keys", ["one-secret", "another"]),
    ("serve", "VLLM_API_KEY", "one-secret", "api_keys", ["one-secret"]),
    ("serve", "OLLAMA_HOST", "0.0.0.0", "host", "0.0.0.0"),
    ("serve", "OLLAMA_HOST", "http://127.0.0.1:11434", "port", "11434"),
    ("serve", "OLLAMA_HOST", "[::1]:80", "host", "::1"),
    ("serve", "OLLAMA_NUM_PARALLEL", "2", "max_sequences", "2"),
    ("serve", "OLLAMA_CONTEXT_LENGTH", "8192", "n_ctx", "8192"),
    ("run", "LLAMA_ARG_TOP_K", "7", "top_k", "7"),
    ("serve", "LLAMA_ARG_SPEC_DRAFT_MODEL", "d.gguf", "draft", "d.gguf"),
]


@pytest.mark.parametrize(("command", "variable", "value", "name", "expected"), ENVIRONMENT)
def test_variables(command: str, variable: str, value: str, name: str, expected: object) -> None:
    assert from_foreign_environment({variable: value}, COMMANDS[command])[name] == (variable, expected)


def test_variables_without_effect_and_refused_ones(capsys: pytest.CaptureFixture[str]) -> None:
    off = {"LLAMA_ARG_MLOCK": "0", "LLAMA_ARG_TENSOR_SPLIT": "", "LLAMA_ARG_HOST": "::1"}
    assert from_foreign_environment(off, run.command) == {}
    assert from_foreign_environment({"LLAMA_ARG_FLASH_ATTN": "on"}, serve.command) == {}
    assert "LLAMA_ARG_FLASH_ATTN has no effect: attention" in capsys.readouterr().err
    with pytest.raises(click.UsageError, match="LLAMA_ARG_SPEC_TYPE is not supported: --speculation"):
        from_foreign_environment({"LLAMA_ARG_SPEC_TYPE": "ngram-simple"}, serve.command)
    with pytest.raises(click.UsageError, match="OLLAMA_HOST must be an address"):
        from_foreign_environment({"OLLAMA_HOST": "a:b:c"}, serve.command)


def test_our_options_win_over_their_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "3")
    monkeypatch.setenv("QUIRE_CPU_THREADS", "5")
    found = parsed(serve.command, "-c 64")
    assert (found["n_ctx"], found["threads"]) == (64, 5)
    assert capsys.readouterr().err == "quire: from the environment: LLAMA_ARG_CTX_SIZE, LLAMA_ARG_THREADS\n"


def test_the_servers_sampling_is_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_missing_options_are_found() -> None:
    program = (
        "import sys; sys.path.insert(0, 'ci'); import make_options_page as m; "
        "print(m.missing('-np,   --parallel N    slots\\n-qq,   --quite-new N    something\\n'))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['--quite-new', '-qq']"
