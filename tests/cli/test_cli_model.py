"""The real commands, run as processes on the package's model.

Oracles: transformers' answers with the weights of the package's own file (``references/package.npz``), and gguf-py for
the contents of the file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import quire
from quire._native.kernels import supported_isas
from repackaged import repackaged

PACKAGE = Path(quire.__file__).resolve().parent
PACKAGED = PACKAGE / "data" / "tiny-chat-q8_0.gguf"
REFERENCES = Path(__file__).resolve().parents[1] / "references" / "package.npz"
END_OF_TURN = 2
# Prompts by their number in the references.
CHATS = {
    0: "Tell me a story about a fox",
    1: "Who are you?",
    2: "What is the capital of France?",
    5: "Count from 5 to 14.",
}
# At the 42nd token of prompt 12 the two largest logits differ by 0.005 of 9.3, less than rounding activations to 8 bits.
N_TOKENS = 40
RAW = {12: "Once upon a time", 17: "The old lighthouse"}


def environment() -> dict[str, str]:
    """This process's environment, with the same quire regardless of the working folder."""
    found = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    found.pop("QUIRE_LOG", None)
    return found


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "error", "-m", "quire", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=300, env=environment())


def output(*arguments: str, stdin: bytes = b"") -> str:
    done = run(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def reference(number: int) -> tuple[list[int], list[int]]:
    """Return the prompt's ids and transformers' greedy answer up to the end of the turn."""
    with np.load(REFERENCES) as arrays:
        prompt, answer = (arrays[f"package.{part}.{number}"].tolist() for part in ("prompt", "greedy"))
    return prompt, answer[: answer.index(END_OF_TURN)] if END_OF_TURN in answer else answer


@pytest.mark.parametrize(("number", "kernels"), [*((n, "auto") for n in (*CHATS, *RAW)), (0, "stock"), (12, "stock")])
def test_run_matches_transformers(number: int, kernels: str) -> None:
    prompt, answer = reference(number)
    flags = ("--raw", RAW[number]) if number in RAW else (CHATS[number],)
    if kernels == "stock":
        flags = ("-t", "1", *flags)  # ggml's threads spin while they wait for each other
    text = output(
        "run", "--temp", "0", "-n", str(N_TOKENS), "--kv-dtype", "f32", "--kernels", kernels, "--json", *flags
    )
    found = json.loads(text)
    assert found["n_prompt_tokens"] == len(prompt)
    ids = found["token_ids"]
    if found["finish_reason"] == "stop":
        assert found["stop_reason"] == END_OF_TURN
        ids = ids[:-1] if ids[-1] == END_OF_TURN else ids
    assert ids == answer[:N_TOKENS]


def test_run_streams_the_same_text_as_json() -> None:
    done = run("run", "--temp", "0", "Who are you?")
    assert done.returncode == 0
    assert done.stdout.decode() == json.loads(output("run", "--temp", "0", "--json", "Who are you?"))["text"] + "\n"
    assert done.stderr.decode() == "quire: no model given (-m): using the small one in the package\n"


def test_the_same_seed_gives_the_same_story() -> None:
    arguments = ("run", "--temp", "1.5", "-n", "24", "Tell me a story about a fox", "--seed")
    first, second, other = (output(*arguments, seed) for seed in ("7", "7", "8"))
    assert first == second
    assert first != other


def test_load_modes_and_cache_types_give_the_same_answer() -> None:
    arguments = ("run", "-m", str(PACKAGED), "--temp", "0", "Who are you?")
    expected = output(*arguments)
    assert output(*arguments, "--load", "copy", "-t", "1", "--kv-dtype", "bf16", "-ngl", "0") == expected


def test_ctrl_c_ends_a_run_with_130() -> None:
    command = [sys.executable, "-m", "quire", "run", "--raw", "--ignore-eos", "--temp", "1", "Once upon a time"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        errors = process.stderr.read().decode()
        assert process.wait(60) == 130
    assert errors == "quire: no model given (-m): using the small one in the package\n"


def damaged(folder: Path) -> Path:
    path = folder / "damaged.gguf"
    path.write_bytes(PACKAGED.read_bytes()[:100_000])
    return path


@pytest.mark.parametrize("command", [("run", "-m", "FILE", "x"), ("info", "FILE"), ("tokenize", "-m", "FILE", "x")])
def test_a_damaged_model_is_one_line_and_exits_with_3(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = run(*(str(damaged(tmp_path)) if part == "FILE" else part for part in command))
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.startswith(b"quire: [gguf] ")
    assert done.stderr.count(b"\n") == 1


# quire info


def test_info_agrees_with_gguf_py() -> None:
    gguf = pytest.importorskip("gguf")
    expected = gguf.GGUFReader(PACKAGED)
    found = json.loads(output("info", str(PACKAGED), "--json"))
    tensors = {t["name"]: (t["shape"], t["dtype"], t["size_bytes"]) for t in found["tensors"]}
    assert tensors == {
        t.name: ([int(n) for n in reversed(t.shape)], t.tensor_type.name.lower(), int(t.n_bytes))
        for t in expected.tensors
    }
    fields = {name: field for name, field in expected.fields.items() if not name.startswith("GGUF.")}
    assert set(found["metadata"]) == set(fields)
    for name, field in fields.items():
        value = field.contents()
        if isinstance(value, list):
            assert found["metadata"][name]["length"] == len(value)
            assert found["metadata"][name]["first"] == value[:8]
        else:
            assert found["metadata"][name] == pytest.approx(value)
    assert found["size_bytes"] == PACKAGED.stat().st_size


def test_info_reports_the_memory_of_a_context() -> None:
    memory = json.loads(output("info", str(PACKAGED), "-c", "1000", "--kv-dtype", "f32", "--json"))["memory"]
    # 1000 tokens take 32 blocks, plus the null block; 8 layers, K and V, 2 heads of 64 floats.
    assert memory["cache_bytes"] == 33 * 32 * (8 * 2 * 2 * 64 * 4)
    codes = json.loads(output("info", str(PACKAGED), "-c", "1000", "--kv-dtype", "q8_0", "--json"))["memory"]
    assert codes["cache_bytes"] == 33 * 32 * (8 * 2 * 2 * (64 + 4))  # one byte per number, plus a float scale per head
    assert 0 < memory["compute_bytes"] < 64 << 20
    assert memory["total_bytes"] == memory["weights_bytes"] + memory["cache_bytes"] + memory["compute_bytes"]


def test_info_of_a_vocabulary_without_weights(shared: Path) -> None:
    found = json.loads(output("info", str(shared / "vocab" / "ggml-vocab-bert-bge.gguf"), "--json"))
    assert found["memory"] is None
    assert "token_embd.weight" in found["memory_unknown_because"]
    assert found["tensors"] == []


@pytest.mark.parametrize(
    ("template", "line", "told"),
    [
        (None, "tool calls: hermes", {"takes_tools": True, "format_name": "hermes"}),
        (
            "{{ messages }}",
            "tool calls: hermes, generic (the chat template takes no tools)",
            {"takes_tools": False, "format_name": None},
        ),
        (
            "{{ messages }}{{ tools }}",
            "tool calls: no known format, though the chat template takes tools",
            {"takes_tools": True, "format_name": None},
        ),
    ],
)
def test_info_reports_the_tool_call_format(
    tmp_path: Path, template: str | None, line: str, told: dict[str, object]
) -> None:
    path = PACKAGED
    if template is not None:
        path = repackaged(tmp_path / "x.gguf", {"tokenizer.chat_template": (template, "string")})
    assert line in output("info", str(path)).splitlines()
    assert json.loads(output("info", str(path), "--json"))["tool_calls"] == told


def test_info_escapes_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with quire.GGUFWriter(path, "evil\x1b[2J[bold]") as writer:
        writer.set("key\x07", "a\x1b]0;title\x07\nb")
        writer.add_tensor("t\x1b[1m", "f32", (4,))
        writer.write("t\x1b[1m", bytes(16))
    text = output("info", str(path))
    assert not {letter for letter in text if not letter.isprintable()} - {"\n"}
    assert "evil\\x1b[2J[bold]" in text
    assert "a\\x1b]0;title\\x07\\nb" in text


def test_info_prints_tables() -> None:
    text = output("info")
    for part in (
        "blk.7.ffn_down.weight",
        "256 x 768",
        "qwen3.block_count",
        "memory for a context of 2048",
        "7,345,408",
    ):
        assert part in text
    assert all(line == line.rstrip() for line in text.splitlines())


# quire tokenize


def test_tokenize_matches_the_references() -> None:
    prompt, _ = reference(0)
    text = f"<|im_start|>user\n{CHATS[0]}<|im_end|>\n<|im_start|>assistant\n"
    assert output("tokenize", "--ids", "--parse-special", text).split() == [str(id) for id in prompt]
    found = json.loads(output("tokenize", "--json", "--parse-special", "-", stdin=text.encode()))
    assert found["ids"] == prompt
    assert "".join(token["text"] for token in found["tokens"]) == text
    plain = [int(id) for id in output("tokenize", "--ids", text).split()]
    assert END_OF_TURN not in plain


def test_tokenize_accepts_invalid_utf8() -> None:
    lines = output("tokenize", "--no-special", stdin=b"\xff\n").splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == ["\\xff", "\\n"]


# The rest


def test_convert_reproduces_the_packages_model(shared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = run("convert", str(shared / "models" / "tiny-chat"), str(out), "--dtype", "q8_0")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode().splitlines() == [
        "[convert] ignoring sampling fields of generation_config.json that Quire does not follow: max_new_tokens",
        f"quire: wrote {out}, 7.6 MiB",
    ]
    assert out.read_bytes() == PACKAGED.read_bytes()


def test_a_failed_conversion_leaves_nothing(shared: Path, tmp_path: Path) -> None:
    source = tmp_path / "checkpoint"
    source.mkdir()
    for path in (shared / "models" / "tiny-chat").iterdir():
        data = path.read_bytes()
        (source / path.name).write_bytes(data[: len(data) // 2] if path.suffix == ".safetensors" else data)
    done = run("convert", str(source), str(tmp_path / "out.gguf"))
    assert done.returncode == 3
    assert done.stderr.count(b"\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


@pytest.mark.parametrize("isa", supported_isas())
def test_every_instruction_set_matches_transformers(isa: str) -> None:
    prompt, answer = reference(0)
    arguments = ("--isa", isa, "--temp", "0", "-n", str(N_TOKENS), "--kv-dtype", "f32", "--json")
    found = json.loads(output("run", *arguments, CHATS[0]))
    assert (found["n_prompt_tokens"], found["token_ids"]) == (len(prompt), answer[:N_TOKENS])


def test_unknown_instruction_sets_are_rejected_by_name() -> None:
    for command in (("run", "Tell"), ("chat",), ("bench",)):
        done = run(*command, "--isa", "sse9")
        assert done.returncode == 1
        assert b"quire: [isa] " in done.stderr
        assert b"'sse9'" in done.stderr
    done = run("run", "--isa", "portable", "--kernels", "stock", "Tell")
    assert b"[engine] " in done.stderr


def test_devices() -> None:
    found = json.loads(output("devices", "--json"))
    cpu = next(device for device in found["devices"] if device["kind"] == "cpu")
    assert cpu["name"] == "CPU"
    assert "mul_mat" in {name.lower() for name in cpu["operations"]}
    assert found["kernels"] == {"isa": supported_isas()[-1], "supported": supported_isas()}
    text = output("devices")
    assert f"kernels: {supported_isas()[-1]} (this machine runs {', '.join(supported_isas())};" in text
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        total_kib = int(meminfo.read_text().split()[1])
        assert cpu["memory_total_bytes"] == pytest.approx(total_kib * 1024, rel=0.01)
    assert "CPU" in output("devices", "--operations")


def test_bench() -> None:
    text = output("bench", "-p", "40", "-n", "4", "-b", "1,3", "-r", "1", "-t", "1", "--json")
    found = json.loads(text)
    assert (found["model"], found["architecture"], found["threads"]) == ("tiny-chat", "qwen3", 1)
    assert [(r["test"], r["batch"]) for r in found["results"]] == [("pp40", 1), ("tg4", 1), ("pp40", 3), ("tg4", 3)]
    assert all(0 < r["tokens_per_s"] < 1e6 for r in found["results"])
