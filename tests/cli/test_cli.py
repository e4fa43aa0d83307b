"""The command line in process, with a fake model: options, streams, exit codes."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_llm import FakeLLM
from quire.cli import stats
from quire.cli.bench import Measurement, bars
from quire.cli.main import main
from quire.cli.model_options import ModelOptions
from quire.cli.session import Session, Sizes
from quire.cli.stats import Stats
from quire.cli.text import _Wrap
from quire.errors import CapacityError, LoadError, RequestError
from quire.params.sampling import PARAMETERS

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@dataclass
class Command:
    """Runs the command line as a process would see it."""

    capture: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch
    opened: list[tuple[ModelOptions, Sizes]] = field(default_factory=list)

    def __call__(self, *arguments: str, llm: FakeLLM | BaseException | None = None, stdin: bytes = b"") -> Outcome:
        self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))

        def opener(options: ModelOptions, sizes: Sizes) -> FakeLLM:
            self.opened.append((options, sizes))
            options.device_name()
            if isinstance(llm, BaseException):
                raise llm
            assert llm is not None
            return llm

        code = main(arguments, Session(opener))  # type: ignore[arg-type]
        out, err = self.capture.readouterr()
        return Outcome(code, out, err)


@pytest.fixture
def quire(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.delenv("QUIRE_LOG", raising=False)
    return Command(capsys, monkeypatch)


def in_a_process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quire", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)  # type: ignore[call-overload, no-any-return]


# The program


def test_version_is_that_of_the_native_module(quire: Command) -> None:
    from quire._native import __version__

    assert quire("--version") == Outcome(0, f"quire {__version__}\n", "")


COMMANDS_AND_MODELS = ("numpy", "rich", "jinja2", "quire.engine", "quire.cli.run", "quire.cli.info", "quire.cli.ps")


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--version"], COMMANDS_AND_MODELS),
        (["--help"], (*COMMANDS_AND_MODELS, "quire._native")),
        (["run", "--help"], ("numpy", "rich", "jinja2", "quire.engine.llm", "quire._native")),
        (["info"], ("numpy", "asyncio", "quire.engine.llm", "quire.cli.run")),
    ],
    ids=" ".join,
)
def test_a_command_imports_only_what_it_needs(arguments: list[str], unwanted: tuple[str, ...]) -> None:
    program = (
        f"import sys; from quire.cli.main import main; main({arguments});"
        f"print([name for name in {unwanted} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["run", "chat", "info", "tokenize", "convert", "devices", "bench"])
def test_every_command_has_help(quire: Command, name: str) -> None:
    listed = quire("--help")
    assert name in listed.out
    outcome = quire(name, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: quire {name} ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dance",), "No such command 'dance'"),
        (("run", "x", "--dance"), "'--dance'"),
        (("run", "x", "-c", "-5"), "-5 is not in the range"),
        (("run", "x", "-t", "two"), "'two' is not a valid integer"),
        (("run", "x", "--top-p", "1.5"), "top_p"),
        (("run", "x", "--temp", "nan"), "temperature"),
        (("run", "x", "--repeat-penalty", "0"), "repetition_penalty"),
        (("run", "x", "--samplers", "top_k;luck"), "samplers"),
        (("run", "x", "-l", "17"), "'17'"),
        (("run", "x", "-ot", "(=CPU"), "'('"),
        (("run", "x", "-ot", "ffn"), "'ffn'"),
        (("run", "x", "-ngl", "-2"), "'-2'"),
        (("run", "x", "-ngl", "0", "--device", "CUDA0"), "--device CUDA0"),
        (("run", "x", "-ngl", "all", "--device", "cpu"), "-ngl all"),
        (("run", "x", "--raw", "--system", "s"), "--raw"),
        (("tokenize", "x", "--ids", "--json"), "--ids and --json"),
        (("convert", "a"), "OUT.gguf"),
        (("bench", "-p", "0", "-n", "0"), "nothing to measure"),
        (("bench", "-b", "1,,2"), "'1,,2'"),
    ],
)
def test_usage_errors_are_one_line_and_exit_with_2(quire: Command, arguments: tuple[str, ...], words: str) -> None:
    outcome = quire(*arguments, llm=FakeLLM([["x"]]))
    assert outcome.code == 2
    assert outcome.out == ""
    lines = [line for line in outcome.err.splitlines() if "no model given" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("quire: [")
    assert words in lines[0]
    assert lines[0].endswith("--help)")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LoadError("[gguf] truncated\nfile"), 3, "quire: [gguf] truncated file\n"),
        (CapacityError("[kv] full"), 1, "quire: [kv] full\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "quire: [system] Permission denied '/x'\n"),
        (ZeroDivisionError("oh"), 1, "quire: [internal] ZeroDivisionError: oh (QUIRE_LOG=debug shows the traceback)\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_one_line_and_an_exit_code(quire: Command, error: BaseException, code: int, line: str) -> None:
    assert quire("run", "-m", "a.gguf", "x", llm=error) == Outcome(code, "", line)


def test_tracebacks_are_printed_only_when_debugging(quire: Command) -> None:
    quire.patch.setenv("QUIRE_LOG", "debug")
    outcome = quire("run", "-m", "a.gguf", "x", llm=LoadError("[gguf] bad"))
    assert outcome.code == 3
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.endswith("\nquire: [gguf] bad\n")


# quire run


def test_run_prints_only_the_answer(quire: Command) -> None:
    llm = FakeLLM([["Once ", "upon", "", " a time."]])
    assert quire("run", "-m", "a.gguf", "Tell", llm=llm) == Outcome(0, "Once upon a time.\n", "")
    assert llm.asked[0][:2] == ("chat", [{"role": "user", "content": "Tell"}])
    assert llm.closed
    assert llm.n_closed_streams == 1


def test_run_says_that_it_uses_the_packages_model(quire: Command) -> None:
    outcome = quire("run", "Tell", llm=FakeLLM([["x"]]))
    assert outcome.out == "x\n"
    assert outcome.err.count("\n") == 1
    assert "no model given" in outcome.err
    assert quire.opened[0][0].path is None


def test_run_adds_no_second_newline(quire: Command) -> None:
    assert quire("run", "-m", "a", "Tell", llm=FakeLLM([["done.\n"]])).out == "done.\n"


def test_run_with_a_system_message(quire: Command) -> None:
    llm = FakeLLM([["x"]])
    quire("run", "-m", "a", "--system", "Be brief.", "Tell", llm=llm)
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell"}]
    assert llm.asked[0][1] == expected


@pytest.mark.parametrize(("flags", "template"), [(("--raw",), "a template"), ((), None)])
def test_run_completes_the_prompt_with_raw_or_without_a_template(
    quire: Command, flags: tuple[str, ...], template: str | None
) -> None:
    llm = FakeLLM([["x"]], chat_template=template)
    assert quire("run", "-m", "a", *flags, "Tell", llm=llm).code == 0
    assert llm.asked[0][:2] == ("raw", "Tell")


def test_run_rejects_a_system_message_without_a_template(quire: Command) -> None:
    outcome = quire("run", "-m", "a", "--system", "s", "Tell", llm=FakeLLM([["x"]], chat_template=None))
    assert (outcome.code, outcome.out) == (1, "")
    assert "--system needs a chat template" in outcome.err


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_run_reads_the_prompt_from_standard_input(quire: Command, arguments: tuple[str, ...]) -> None:
    llm = FakeLLM([["x"]])
    assert quire("run", "-m", "a", *arguments, llm=llm, stdin="Grüße\nan alle\n".encode()).code == 0
    assert llm.asked[0][1][0]["content"] == "Grüße\nan alle"


@pytest.mark.parametrize(("stdin", "words"), [(b"", "empty prompt"), (b"ab\xff", "not UTF-8: byte 2")])
def test_run_rejects_empty_and_invalid_input(quire: Command, stdin: bytes, words: str) -> None:
    outcome = quire("run", "-m", "a", llm=FakeLLM([["x"]]), stdin=stdin)
    assert (outcome.code, outcome.out) == (1, "")
    assert words in outcome.err


def test_run_json_is_one_object(quire: Command) -> None:
    outcome = quire("run", "-m", "a", "--json", "Tell", llm=FakeLLM([["grün"]]))
    assert outcome.out.count("\n") == 1
    assert json.loads(outcome.out) == {
        "model": "fake",
        "text": "grün",
        "token_ids": [5, 5],
        "finish_reason": "stop",
        "stop_reason": None,
        "n_prompt_tokens": 3,
        "n_cached_tokens": 1,
        "timings": {"queue_s": 0.125, "prefill_s": 0.25, "decode_s": 0.5},
    }


def test_run_keeps_the_partial_answer_after_an_error(quire: Command) -> None:
    llm = FakeLLM([["Once", CapacityError("[kv] full")]])
    assert quire("run", "-m", "a", "Tell", llm=llm) == Outcome(1, "Once\n", "quire: [kv] full\n")
    assert llm.closed


def test_ctrl_c_cancels_the_answer_and_exits_with_130(quire: Command) -> None:
    llm = FakeLLM([["Once", KeyboardInterrupt()]])
    assert quire("run", "-m", "a", "Tell", llm=llm) == Outcome(130, "Once\n", "")
    assert llm.n_closed_streams == 1
    assert llm.closed


def test_control_characters_are_replaced_only_on_terminals(quire: Command) -> None:
    text = "a\x1b[2Jb\tc\nd\r\x9b"
    assert quire("run", "-m", "a", "Tell", llm=FakeLLM([[text]])).out == text + "\n"
    quire.patch.setattr("quire.cli.text.Writer.__init__", _terminal_writer)
    assert quire("run", "-m", "a", "Tell", llm=FakeLLM([[text]])).out == "a\ufffd[2Jb\tc\nd\ufffd\ufffd\n"


def _terminal_writer(self: object, *, wrap: bool = False) -> None:
    self._is_terminal, self._at_line_start, self._wrap = True, True, None  # type: ignore[attr-defined]


# Options


def test_model_options_reach_the_model(quire: Command) -> None:
    arguments = (
        "-m a.gguf -c 512 -t 3 -C 0x5 -ngl all --device CUDA1 --kernels cpu --isa avx2 --kv-dtype bf16 --load lock"
        " --packed-cache d --deterministic --snapshot-tokens 64 -ub 96"
    )
    quire("run", *arguments.split(), "Tell", llm=FakeLLM([["x"]]))
    options, sizes = quire.opened[0]
    engine = {
        "device": "CUDA1", "n_ctx": 512, "threads": 3, "cpu_mask": 5, "kv_dtype": "bf16", "kernels": "cpu", "isa": "avx2",
        "deterministic": True, "load": "lock", "packed_cache": "d", "n_cpu_moe": 0, "snapshot_tokens": 64,
        "max_step_tokens": 96, "draft_max": 16, "draft_min": 0, "n_cpu_ffn": 0, "fit": "on", "fit_target": 1024,
        "fit_ctx": 4096, "split_mode": "auto", "main_gpu": 0, "mmproj": "auto", "cache_disk_size": 16 << 30,
        "max_loras": 32, "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
    }  # fmt: skip
    expected = ModelOptions("a.gguf", "all", engine)
    assert options == expected
    assert options.device_name() == "CUDA1"
    assert sizes == Sizes()


@pytest.mark.parametrize("mask", ["0", "0x", "g", "-1", "", "f" * 257])
def test_invalid_masks_are_rejected(quire: Command, mask: str) -> None:
    result = quire("run", "-m", "a", "--cpu-mask", mask, "Tell", llm=FakeLLM([["x"]]))
    assert result.code == 2
    assert "hexadecimal" in result.err


@pytest.mark.parametrize(
    ("arguments", "device"),
    [
        ("", "default"),
        ("--device CUDA0", "CUDA0"),
        ("-ngl 0", "cpu"),
        ("-ngl -1", "auto"),
        ("-ngl all", "auto"),
        ("-ngl 99", "auto"),
    ],
)
def test_layers_and_device(quire: Command, arguments: str, device: str) -> None:
    quire("run", "-m", "a", *arguments.split(), "Tell", llm=FakeLLM([["x"]]))
    assert quire.opened[0][0].device_name() == device


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-ngl all", {}),
        ("-ngl 12", {"n_gpu_layers": 12}),
        ("-ngl all --n-cpu-moe 3", {"n_cpu_moe": 3}),
        ("-ngl all --cpu-moe", {"n_cpu_moe": 65536}),
        ("-ngl 9 -ot a=CPU,b.*=gpu -ot c=CPU", {"n_gpu_layers": 9, "override_tensor": (("a", "CPU"), ("b.*", "gpu"), ("c", "CPU"))}),
    ],
)  # fmt: skip
def test_options_that_keep_weights_on_the_cpu(quire: Command, arguments: str, expected: dict[str, object]) -> None:
    quire("run", "-m", "a", *arguments.split(), "Tell", llm=FakeLLM([["x"]]))
    found = quire.opened[0][0].config()
    names = ("n_gpu_layers", "n_cpu_moe", "override_tensor")
    assert {name: found[name] for name in names if found.get(name)} == expected


SAMPLING = {
    "-n 7": ("max_tokens", 7),
    "-n -1": ("max_tokens", None),
    "--min-tokens 2": ("min_tokens", 2),
    "--seed 5": ("seed", 5),
    "--seed -1": ("seed", None),
    "--temp 0": ("temperature", 0.0),
    "--top-k 3": ("top_k", 3),
    "--top-p 0.5": ("top_p", 0.5),
    "--min-p 0.2": ("min_p", 0.2),
    "--top-n-sigma 1.5": ("top_n_sigma", 1.5),
    "--typical 0.9": ("typical_p", 0.9),
    "--tfs 0.8": ("tfs_z", 0.8),
    "--xtc-probability 0.5": ("xtc_probability", 0.5),
    "--xtc-threshold 0.2": ("xtc_threshold", 0.2),
    "--min-keep 3": ("min_keep", 3),
    "--dynatemp-range 0.3": ("dynatemp_range", 0.3),
    "--dynatemp-exp 2": ("dynatemp_exponent", 2.0),
    "--repeat-penalty 1.1": ("repetition_penalty", 1.1),
    "--repeat-last-n 9": ("penalty_last_n", 9),
    "--repeat-last-n -1": ("penalty_last_n", None),
    "--presence-penalty 0.4": ("presence_penalty", 0.4),
    "--frequency-penalty 0.6": ("frequency_penalty", 0.6),
    "--dry-multiplier 0.7": ("dry_multiplier", 0.7),
    "--dry-base 2": ("dry_base", 2.0),
    "--dry-allowed-length 4": ("dry_allowed_length", 4),
    "--dry-penalty-last-n 11": ("dry_penalty_last_n", 11),
    "--dry-sequence-breaker ; --dry-sequence-breaker .": ("dry_sequence_breakers", (";", ".")),
    "--mirostat 2": ("mirostat", 2),
    "--mirostat-ent 3": ("mirostat_tau", 3.0),
    "--mirostat-lr 0.2": ("mirostat_eta", 0.2),
    "-l 5+1.5 -l 7-2": ("logit_bias", {5: 1.5, 7: -2.0}),
    "--samplers top_k;min_p;top_p;temperature": ("samplers", ("top_k", "min_p", "top_p", "temperature")),
    "--stop A --stop B": ("stop", ("A", "B")),
    "--ignore-eos": ("ignore_eos", True),
}


@pytest.mark.parametrize("arguments", SAMPLING)
def test_sampling_options_reach_the_request(quire: Command, arguments: str) -> None:
    name, value = SAMPLING[arguments]
    llm = FakeLLM([["x"]])
    assert quire("run", "-m", "a", *arguments.split(), "Tell", llm=llm).err == ""
    assert getattr(llm.asked[0][2], name) == value


NUMBERS = [name for name, parameter in PARAMETERS.items() if parameter.flags and parameter.kind in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_flag_of_a_number_reaches_the_request(quire: Command, name: str) -> None:
    """The declarations tell the flags; the ones that must not be forgotten are in SAMPLING."""
    for flag in PARAMETERS[name].flags.split():
        llm = FakeLLM([["x"]])
        value = 0.5 if name == "adaptive_decay" else 1  # it is less than 1
        assert quire("run", "-m", "a", flag, str(value), "Tell", llm=llm).err == ""
        assert getattr(llm.asked[0][2], name) == value


def test_samplers_turn_off_the_options_of_omitted_stages(quire: Command) -> None:
    llm = FakeLLM([["x"]], advised_sampling={"top_p": 0.7, "temperature": 0.5, "typical_p": 0.9})
    assert quire("run", "-m", "a", "--samplers", "top_k;temp", "Tell", llm=llm).err == ""
    params = llm.asked[0][2]
    assert (params.samplers, params.top_k, params.temperature) == (("top_k", "temperature"), 40, 0.5)
    assert (params.top_p, params.min_p, params.typical_p) == (1.0, 0.0, 1.0)
    named = quire("run", "-m", "a", "--samplers", "top_k", "--min-p", "0.2", "Tell", llm=FakeLLM([["x"]]))
    assert "'min_p'" in named.err


def test_mirostat_replaces_truncation_that_was_not_asked_for(quire: Command) -> None:
    llm = FakeLLM([["x"]])
    quire("run", "-m", "a", "--mirostat", "2", "--top-k", "9", "Tell", llm=llm)
    params = llm.asked[0][2]
    assert (params.top_k, params.top_p, params.min_p) == (9, 1.0, 0.0)


@pytest.mark.parametrize("command", ["run", "chat"])
def test_advice_of_the_file_applies_to_options_not_given(quire: Command, command: str) -> None:
    advised = {"temperature": 0.25, "top_k": 7, "repetition_penalty": 1.5}
    llm = FakeLLM([["x"]], advised_sampling=advised)
    prompt = ("Tell",) if command == "run" else ()
    quire(command, "-m", "a", "--top-k", "9", *prompt, llm=llm, stdin=b"Tell\n")
    params = llm.asked[0][2]
    # The file says nothing about top-p, so the command's own default of 0.95 applies.
    assert (params.temperature, params.top_k, params.repetition_penalty, params.top_p) == (0.25, 9, 1.5, 0.95)


# quire bench


def test_bench_measures_every_batch(quire: Command) -> None:
    arguments = ("bench", "-m", "a", "-p", "40", "-n", "6", "-b", "1,3", "-r", "2", "--json")
    llm = FakeLLM([])
    outcome = quire(*arguments, llm=llm)
    assert outcome.code == 0
    results = json.loads(outcome.out)["results"]
    assert [(r["test"], r["batch"], len(r["runs"])) for r in results] == [
        ("pp40", 1, 2), ("tg6", 1, 2), ("pp40", 3, 2), ("tg6", 3, 2),
    ]  # fmt: skip
    assert all(r["tokens_per_s"] > 0 for r in results)
    options, sizes = quire.opened[0]
    assert options.engine["load"] == "copy"
    # 40 + 1 tokens are 2 blocks of 32; a spare one for each sequence, and the null block.
    assert sizes == Sizes(n_ctx=41, n_blocks=3 * 3 + 1, max_sequences=3)
    shapes = [(len(prompts), len(prompts[0]), params.max_tokens) for _, prompts, params in llm.asked]
    assert shapes == [(1, 40, 1)] * 3 + [(1, 1, 6)] * 3 + [(3, 40, 1)] * 3 + [(3, 1, 6)] * 3
    assert all(params.ignore_eos for _, _, params in llm.asked)
    # No prompt repeats, so nothing can be found in the cache.
    prompts = [tuple(prompt) for _, batch, _ in llm.asked for prompt in batch if len(prompt) == 40]
    assert len(set(prompts)) == len(prompts)


def test_bench_fills_the_cache_to_the_depth_first(quire: Command) -> None:
    llm = FakeLLM([])
    outcome = quire("bench", "-m", "a", "-p", "0", "-n", "6", "-d", "70", "-b", "2", "-r", "1", "--json", llm=llm)
    assert [r["test"] for r in json.loads(outcome.out)["results"]] == ["tg6@70"]
    assert quire.opened[0][1] == Sizes(n_ctx=76, n_blocks=2 * 4 + 1, max_sequences=2)
    asked = [(prompts, params.max_tokens) for _, prompts, params in llm.asked]
    # Both the warm-up run and the measured one process the prompts, then generate after the same prompts.
    assert [(len(prompts), len(prompts[0]), n) for prompts, n in asked] == [(2, 70, 1), (2, 70, 6)] * 2
    assert asked[0][0] == asked[1][0] != asked[2][0] == asked[3][0]


def test_bench_prints_a_table(quire: Command) -> None:
    outcome = quire("bench", "-m", "a", "-p", "0", "-n", "2", "-b", "2", "-r", "1", llm=FakeLLM([]))
    assert outcome.code == 0
    assert "tokens/s" in outcome.out
    assert "tg2" in outcome.out


def test_bench_draws_bars(quire: Command) -> None:
    outcome = quire("bench", "-m", "a", "-p", "0", "-n", "2", "-b", "1,2", "-r", "1", "--plot", llm=FakeLLM([]))
    assert outcome.code == 0
    assert "█" * 10 in outcome.out
    slow, fast = bars([Measurement("tg1", 1, 1, 25.0, 0.0, ()), Measurement("tg1", 1, 8, 100.0, 0.0, ())], width=8)
    assert (slow, fast) == ("tg1 x 1 ██ 25.0", "tg1 x 8 ████████ 100.0")
    assert quire("bench", "-m", "a", "--plot", "--json", llm=FakeLLM([])).code == 2


# quire chat, without a terminal


def chat(quire: Command, lines: str, llm: FakeLLM, *arguments: str) -> Outcome:
    return quire("chat", "-m", "a", *arguments, llm=llm, stdin=lines.encode())


def test_chat_remembers(quire: Command) -> None:
    llm = FakeLLM([["Hi", "!"], ["Fine."]])
    outcome = chat(quire, "Hello\n\nHow are you?\n", llm, "--system", "Be kind.")
    assert outcome == Outcome(0, "Hi!\nFine.\n", "")
    assert llm.asked[1][1] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "How are you?"},
    ]
    assert llm.closed


def test_chat_reset_keeps_the_system_message(quire: Command) -> None:
    llm = FakeLLM([["a"], ["b"]])
    chat(quire, "one\n/reset\ntwo\n", llm, "--system", "s")
    assert llm.asked[1][1] == [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]


def test_chat_joins_lines_that_end_in_a_backslash(quire: Command) -> None:
    llm = FakeLLM([["a"]])
    chat(quire, "one\\\ntwo\\\nthree\n", llm)
    assert llm.asked[0][1][0]["content"] == "one\ntwo\nthree"


def test_chat_commands_for_another_answer(quire: Command) -> None:
    llm = FakeLLM([["a"], ["b"], ["c"], ["d"]])
    lines = "/regen\none\n/regen\n/edit two\n/edit\nthree\n"
    outcome = chat(quire, lines, llm)
    assert outcome.out == "a\nb\nc\nd\n"
    assert "no message yet" in outcome.err
    assert [asked[1][-1]["content"] for asked in llm.asked] == ["one", "one", "two", "three"]
    assert all(len(asked[1]) == 1 for asked in llm.asked)


def test_chat_commands_that_set(quire: Command) -> None:
    llm = FakeLLM([["a"], ["b"]])
    lines = (
        "/set temp 0.5\n/set num_predict 7\n/set nonsense 1\n/set top_p 2\n/set\none\n/system Be brief.\ntwo\n/stats\n"
    )
    outcome = chat(quire, lines, llm)
    assert (llm.asked[0][2].temperature, llm.asked[0][2].max_tokens) == (0.5, 7)
    assert llm.asked[1][1] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "two"}]
    assert "nonsense" in outcome.err
    assert "top_p" in outcome.err
    assert "temperature 0.5" in outcome.err
    assert "tokens, the first after" in outcome.err


@pytest.mark.parametrize(
    ("found", "speed"),
    [
        (Stats(0, 0.0, 0, 0.0), ""),  # cancelled before the first piece
        (Stats(9, 0.5, 0, 0.0), ""),  # a single piece
        (Stats(9, 0.5, 8, 3e-6), ""),  # pieces that had been buffered
        (Stats(9, 0.5, 0, 2.0), ""),  # a last piece without tokens
        (Stats(9, 0.5, 8, 2.0), ", 4.0 tokens/s"),
        (Stats(9, 0.5, 6, 2.0), ", 3.0 tokens/s"),  # the first piece's three tokens have no time of their own
    ],
)
def test_speed_counts_only_tokens_with_a_measured_time(found: Stats, speed: str) -> None:
    assert str(found) == f"{found.n_tokens} tokens, the first after {found.first_s:.2f} s{speed}"


def test_a_buffered_answer_has_no_speed(quire: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece has one token; the fake clock advances by ``step_s`` whenever it is read."""
    for step_s, words in ((1e-6, "4 tokens, the first after 0.00 s\n"), (0.5, "4 tokens, the first after 0.50 s, 2.0")):
        clock = itertools.count()
        times = SimpleNamespace(monotonic=lambda clock=clock, step_s=step_s: step_s * next(clock))
        monkeypatch.setattr(stats, "time", times)
        assert words in chat(quire, "one\n/stats\n", FakeLLM([["a", "b", "c"]])).err


def test_chat_load_and_model(quire: Command, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    chat(quire, f"one\n/save {saved}\n", FakeLLM([["a"]]), "--system", "s")
    llm = FakeLLM([["b"]])
    broken = tmp_path / "broken.json"
    broken.write_text("[]")
    outcome = chat(
        quire, f"/load {tmp_path / 'none'}\n/load {broken}\n/load {saved}\ntwo\n/model\n/model other.gguf\n", llm
    )
    assert [message["role"] for message in llm.asked[0][1]] == ["system", "user", "assistant", "user"]
    assert "No such file" in outcome.err
    assert str(broken) in outcome.err
    assert "fake is ready" in outcome.err


def test_lines_break_between_words() -> None:
    wrap = _Wrap(20)
    text = "The quick brown fox jumps over the lazy dog.\n```\nnothing in here is ever broken at all\n```\nok and \u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57 end"
    shown = "".join(wrap.add(text[i : i + 3]) for i in range(0, len(text), 3)) + wrap.rest()
    lines = shown.split("\n")
    assert lines[:3] == ["The quick brown fox", "jumps over the lazy", "dog."]
    assert "nothing in here is ever broken at all" in lines
    assert lines[-2:] == ["ok and ", "\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57 end"]


def test_chat_exit_and_help(quire: Command) -> None:
    llm = FakeLLM([])
    outcome = chat(quire, "/help\n/exit\nnever asked\n", llm)
    assert outcome.code == 0
    assert "/save FILE" in outcome.out
    assert llm.asked == []


def test_chat_unknown_command(quire: Command) -> None:
    outcome = chat(quire, "/dance\x07\n", FakeLLM([]))
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "quire: /dance\\x07 is not a command: /help lists them\n"


def test_chat_save(quire: Command, tmp_path: Path) -> None:
    llm = FakeLLM([["grün"], ["b"]])
    path = tmp_path / "talk one.json"
    outcome = chat(quire, f"x\n/save {path}\ny\n/save {path}\n/save\n", llm)
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "model": "fake",
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "grün"},
            {"role": "user", "content": "y"},
            {"role": "assistant", "content": "b"},
        ],
    }
    assert "/save FILE" in outcome.err


def test_chat_save_does_not_overwrite_other_files(quire: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("precious")
    outcome = chat(quire, f"/save {path}\n/save {tmp_path}/absent/x\n", FakeLLM([]))
    assert outcome.code == 0
    assert path.read_text() == "precious"
    assert "File exists" in outcome.err
    assert "No such file" in outcome.err


def test_chat_drops_a_failed_turn_and_continues(quire: Command) -> None:
    llm = FakeLLM([["a"], [RequestError("[prompt] too long")], ["c"]])
    outcome = chat(quire, "one\ntwo\nthree\n", llm)
    assert outcome == Outcome(
        0, "a\nc\n", "quire: [prompt] too long (/drop drops the oldest turns, /reset starts over)\n"
    )
    assert [m["content"] for m in llm.asked[2][1]] == ["one", "a", "three"]


def test_chat_ctrl_c_stops_the_answer_and_keeps_it(quire: Command) -> None:
    llm = FakeLLM([["Once", KeyboardInterrupt()], ["c"]])
    outcome = chat(quire, "one\ntwo\n", llm)
    assert outcome == Outcome(0, "Once\nc\n", "")
    assert [m["content"] for m in llm.asked[1][1]] == ["one", "Once", "two"]
    assert llm.n_closed_streams == 2


def test_chat_needs_a_template(quire: Command) -> None:
    outcome = chat(quire, "x\n", FakeLLM([["x"]], chat_template=None))
    assert outcome.code == 1
    assert "no chat template" in outcome.err


# Processes


def test_a_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m quire run --help | true; echo ${{PIPESTATUS[0]}}"
    program = ["bash", "-c", command]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == ""
    assert done.stdout.strip() in {"0", "141"}


def test_python_m_quire() -> None:
    assert in_a_process("--version").stdout.startswith("quire ")


def test_unencodable_characters_are_escaped(quire: Command) -> None:
    import os

    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = in_a_process("tokenize", "-m", "/absent-grün", "x", env=environment)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
