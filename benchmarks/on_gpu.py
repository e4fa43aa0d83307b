"""Run all measurements on a machine with a GPU in one call: parity, then llama.cpp and Quire on the same files.

    python benchmarks/on_gpu.py PEER OUT [--device gpu] [--quick] [--types Q4_K_M,BF16]
    python benchmarks/on_gpu.py PEER OUT --dry-run          # tiny shapes on the CPU, to test the script

PEER has llama-bench, llama-batched-bench and llama-server, built with the same ggml for the same kind of device.  Files
of two published shapes (Qwen3 0.6B and 8B) are made in OUT with random weights, without torch.  Each step writes its
output to its own file.  ``report.json`` and ``report.md`` are rewritten after each step, so that results remain if time
runs out.  A failed step is noted, and the others still run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from quire._native.quant import quantize
from quire.gguf import GGUFWriter


@dataclass(frozen=True)
class Shape:
    """The shape of a model of the qwen3 architecture."""

    name: str
    n_layer: int
    dim: int
    ffn: int
    n_head: int
    n_kv_head: int
    head_dim: int
    n_vocab: int
    has_head: bool  # the head is not the embedding's matrix


SHAPES = (
    Shape("qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, 151936, False),
    Shape("qwen3-8b", 36, 4096, 12288, 32, 8, 128, 151936, True),
)
TINY = (Shape("tiny", 2, 256, 512, 4, 2, 64, 512, True),)
TYPES = {
    "Q4_K_M": ("q4_k", "q6_k"),
    "Q8_0": ("q8_0", "q8_0"),
    "BF16": ("bf16", "bf16"),
}  # type of most matrices, type of the head
PIECE = 1 << 20  # random numbers per matrix; the rest repeats them


@dataclass(frozen=True)
class Sizes:
    prompts: tuple[int, ...]
    streams: tuple[int, ...]
    answer: int
    repetitions: int


FULL = Sizes((512, 4096), (1, 8, 32), 64, 3)
QUICK = Sizes((512,), (1, 32), 128, 2)
DRY = Sizes((64,), (1, 2), 8, 1)


# Bytes of a block, and the offset of its scale, a half-precision number.
SCALES = {"q4_k": (144, 0), "q6_k": (210, 208), "q8_0": (34, 0)}


def varied(stored: npt.NDArray[Any], dtype: str, seed: int) -> npt.NDArray[Any]:
    """Vary repeated rows, since equal rows of the head would have equal logits, unlike in real models."""
    if dtype == "bf16":
        return np.roll(stored, 1 + seed, axis=-1)
    size, at = SCALES[dtype]
    blocks = stored.reshape(stored.shape[0], -1, size).copy()
    scales = blocks[:, :, at : at + 2].copy().view(np.float16)
    scales *= np.random.default_rng(seed).uniform(0.8, 1.2, scales.shape).astype(np.float16)
    blocks[:, :, at : at + 2] = scales.view(np.uint8)
    other: npt.NDArray[Any] = blocks.reshape(stored.shape)
    return other


def make_file(shape: Shape, mix: str, out: Path) -> None:
    """Write a GGUF file of a shape, unless it exists."""
    if out.is_file():
        return
    most, of_head = TYPES[mix]
    matrices = {"token_embd": (shape.n_vocab, shape.dim, of_head)}
    if shape.has_head:
        matrices["output"] = (shape.n_vocab, shape.dim, of_head)
    vectors = {"output_norm": shape.dim}
    for i in range(shape.n_layer):
        b = f"blk.{i}."
        n_q, n_kv = shape.n_head * shape.head_dim, shape.n_kv_head * shape.head_dim
        for name, n_out, n_in in (
            ("attn_q", n_q, shape.dim), ("attn_k", n_kv, shape.dim), ("attn_v", n_kv, shape.dim),
            ("attn_output", shape.dim, n_q), ("ffn_gate", shape.ffn, shape.dim), ("ffn_up", shape.ffn, shape.dim),
            ("ffn_down", shape.dim, shape.ffn),
        ):  # fmt: skip
            matrices[b + name] = (n_out, n_in, most)
        vectors |= {b + "attn_norm": shape.dim, b + "ffn_norm": shape.dim}
        vectors |= {b + "attn_q_norm": shape.head_dim, b + "attn_k_norm": shape.head_dim}
    drawn = np.random.default_rng(1).standard_normal(PIECE).astype(np.float32)
    with GGUFWriter(out, "qwen3") as writer:
        for key, value, kind in (
            ("block_count", shape.n_layer, "u32"), ("context_length", 40960, "u32"),
            ("embedding_length", shape.dim, "u32"), ("feed_forward_length", shape.ffn, "u32"),
            ("attention.head_count", shape.n_head, "u32"), ("attention.head_count_kv", shape.n_kv_head, "u32"),
            ("attention.key_length", shape.head_dim, "u32"), ("attention.value_length", shape.head_dim, "u32"),
            ("attention.layer_norm_rms_epsilon", 1e-6, "f32"), ("rope.freq_base", 1e6, "f32"),
        ):  # fmt: skip
            writer.set(f"qwen3.{key}", value, kind)
        writer.set("tokenizer.ggml.model", "gpt2")
        writer.set("tokenizer.ggml.pre", "qwen2")
        writer.set("tokenizer.ggml.tokens", [f"t{i}" for i in range(shape.n_vocab)], "string[]")
        writer.set("tokenizer.ggml.token_type", [1] * shape.n_vocab, "i32[]")
        writer.set("tokenizer.ggml.merges", ["t 1"], "string[]")
        writer.set("tokenizer.ggml.eos_token_id", 0, "u32")
        for name, n in vectors.items():
            writer.add_tensor(f"{name}.weight", "f32", (n,))
        for name, (n_out, n_in, dtype) in matrices.items():
            writer.add_tensor(f"{name}.weight", dtype, (n_out, n_in))
        for name, n in vectors.items():
            writer.write(f"{name}.weight", np.ones(n, np.float32))
        for name, (n_out, n_in, dtype) in matrices.items():
            n_rows = max(1, min(n_out, PIECE // n_in))
            piece = np.resize(drawn * np.float32(n_in**-0.5), n_rows * n_in).reshape(n_rows, n_in)
            stored = quantize(piece, dtype).numpy()
            for begin in range(0, n_out, n_rows):
                rows = stored[: min(n_rows, n_out - begin)]
                writer.write(f"{name}.weight", varied(rows, dtype, begin // n_rows) if begin else rows)


class Report:
    """The results, written after each step."""

    def __init__(self, out: Path) -> None:
        self.out, self.steps, self.rows = out, list[dict[str, Any]](), list[dict[str, Any]]()

    def step(self, name: str, run: Callable[[], Any]) -> None:
        begin = time.perf_counter()
        try:
            run()
            error = ""
        except (OSError, RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as failed:
            error = f"{type(failed).__name__}: {failed}"[-400:]
        seconds = time.perf_counter() - begin
        self.steps.append({"step": name, "seconds": round(seconds, 1), "error": error})
        print(f"{name}: {seconds:.0f} s {error}", flush=True)
        self.write()

    def write(self) -> None:
        (self.out / "report.json").write_text(json.dumps({"steps": self.steps, "rows": self.rows}, indent=1))
        found: dict[tuple[str, str, int], dict[str, float]] = {}
        for row in self.rows:
            found.setdefault((row["file"], row["test"], row["streams"]), {})[row["program"]] = row["tokens_per_s"]
        lines = ["| file | test | streams | llama.cpp | Quire | ratio |", "|---|---|---|---|---|---|"]
        for (file, test, streams), by in found.items():
            ours, theirs = by.get("quire"), by.get("llama.cpp")
            ratio = f"{ours / theirs:.2f}" if ours and theirs else "-"
            cells = [f"{value:.1f}" if value else "-" for value in (theirs, ours)]
            lines.append(f"| {file} | {test} | {streams} | {cells[0]} | {cells[1]} | {ratio} |")
        lines += ["", "| step | s | error |", "|---|---|---|"]
        lines += [f"| {step['step']} | {step['seconds']} | {step['error'].replace('|', '/')} |" for step in self.steps]
        (self.out / "report.md").write_text("\n".join(lines) + "\n")

    def run(self, name: str, command: list[str], timeout_s: float) -> str:
        """Run a program and return its output.  Raises RuntimeError with the end of its errors if it fails."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        (self.out / f"{name}.txt").write_text(f"{command}\n{done.stdout}\n{done.stderr}")
        if done.returncode != 0:
            raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-300:]}")
        return done.stdout

    def add(self, file: Path, program: str, test: str, streams: int, speed: float) -> None:
        self.rows.append(
            {"file": file.name, "program": program, "test": test, "streams": streams, "tokens_per_s": speed}
        )


@dataclass(frozen=True)
class Machine:
    peer: Path
    device: str
    sizes: Sizes
    timeout_s: float

    @property
    def layers(self) -> str:
        return "0" if self.device == "cpu" else "99"


def batched(report: Report, machine: Machine, file: Path, n_prompt: int) -> None:
    """Run llama-batched-bench: prompts of all streams, then their answers."""
    sizes = machine.sizes
    n_ctx = max(sizes.streams) * (n_prompt + sizes.answer)
    text = report.run(
        f"{file.stem}-batched-{n_prompt}",
        [str(machine.peer / "llama-batched-bench"), "-m", str(file), "-ngl", machine.layers, "-c", str(n_ctx), "-npp",
         str(n_prompt), "-ntg", str(sizes.answer), "-npl", ",".join(map(str, sizes.streams)), "-fa", "on",
         "--output-format", "jsonl"],
        machine.timeout_s,
    )  # fmt: skip
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        report.add(file, "llama.cpp", f"pp{n_prompt}", row["pl"], row["speed_pp"])
        report.add(file, "llama.cpp", f"tg{sizes.answer}@{n_prompt}", row["pl"], row["speed_tg"])


def single(report: Report, machine: Machine, file: Path) -> None:
    """Run llama-bench: one stream with an empty cache."""
    command = [
        str(machine.peer / "llama-bench"),
        "-m",
        str(file),
        "-ngl",
        machine.layers,
        "-p",
        "0",
        "-n",
        str(machine.sizes.answer),
    ]
    command += ["-r", str(machine.sizes.repetitions), "-fa", "1", "-o", "json"]
    for row in json.loads(report.run(f"{file.stem}-bench", command, machine.timeout_s)):
        report.add(file, "llama.cpp", f"tg{row['n_gen']}", 1, row["avg_ts"])


def ours(report: Report, machine: Machine, file: Path, n_prompt: int, n_depth: int) -> None:
    """Run ``quire bench`` with the same tests."""
    sizes = machine.sizes
    streams = sizes.streams if n_prompt or n_depth else (1,)
    command = [sys.executable, "-m", "quire", "bench", "-m", str(file), "--device", machine.device, "-p", str(n_prompt)]
    command += ["-n", str(sizes.answer), "-d", str(n_depth), "-b", ",".join(map(str, streams))]
    command += ["-r", str(sizes.repetitions), "--kv-dtype", "f16", "--json"]
    text = report.run(f"{file.stem}-quire-{n_prompt}-{n_depth}", command, machine.timeout_s)
    for row in json.loads(text)["results"]:
        report.add(file, "quire", row["test"], row["batch"], row["tokens_per_s"])


def served(report: Report, machine: Machine, file: Path, n_vocab: int) -> None:
    """Run both servers, with as many clients as the largest number of streams."""
    n_prompt, n_clients = machine.sizes.prompts[0], machine.sizes.streams[-1]
    command = [sys.executable, str(Path(__file__).with_name("serve_beside_llama_server.py")), str(machine.peer)]
    command += [str(file), "--device", machine.device, "--clients", str(n_clients), "--prompt", str(n_prompt)]
    command += ["--answer", str(machine.sizes.answer), "--vocabulary", str(n_vocab)]
    command += ["--rounds", str(min(machine.sizes.repetitions, 2))]
    found = json.loads(report.run(f"{file.stem}-served", command, machine.timeout_s))
    for program, row in found.items():
        report.add(file, program, f"served {n_prompt}", n_clients, statistics.median(row["tokens_per_s"]))


def parity(report: Report, machine: Machine) -> None:
    if machine.device == "cpu":  # others are compared with the CPU
        report.run("devices", [sys.executable, "-m", "quire", "devices"], machine.timeout_s)
        return
    report.run("parity", [sys.executable, "-m", "quire", "devices", "--check"], machine.timeout_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--shapes", default=",".join(shape.name for shape in SHAPES), help="shapes of the files [all]")
    parser.add_argument("--types", default=",".join(TYPES), help="types of the weights [all]")
    parser.add_argument("--prompts", help="prompt lengths in tokens, such as 512,4096")
    parser.add_argument("--streams", help="numbers of streams, such as 1,32")
    parser.add_argument("--no-parity", action="store_true", help="skip the parity check")
    parser.add_argument("--dry-run", action="store_true", help="run tiny shapes on the CPU, to test the script")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = DRY if options.dry_run else QUICK if options.quick else FULL
    if options.prompts:
        sizes = replace(sizes, prompts=tuple(map(int, options.prompts.split(","))))
    if options.streams:
        sizes = replace(sizes, streams=tuple(map(int, options.streams.split(","))))
    machine = Machine(
        options.peer, "cpu" if options.dry_run else options.device, sizes, 120 if options.dry_run else 600
    )
    report = Report(options.out)
    mixes = options.types.split(",")
    shapes = TINY if options.dry_run else [shape for shape in SHAPES if shape.name in options.shapes.split(",")]
    files = {options.out / f"{shape.name}-{mix}.gguf": (shape, mix) for shape in shapes for mix in mixes}
    # To save time on the machine, files are made while the device is compared with the CPU.
    with ThreadPoolExecutor(1) as pool:
        made = {file: pool.submit(make_file, shape, mix, file) for file, (shape, mix) in files.items()}
        if not options.no_parity:
            report.step("parity", lambda: parity(report, machine))
        for file in files:
            report.step(f"make {file.name}", made[file].result)
    for file in files:
        report.step(f"llama-bench {file.name}", lambda f=file: single(report, machine, f))  # type: ignore[misc]
        report.step(f"quire {file.name}", lambda f=file: ours(report, machine, f, 0, 0))  # type: ignore[misc]
        for n in sizes.prompts:
            report.step(f"batched {file.name} {n}", lambda f=file, n=n: batched(report, machine, f, n))  # type: ignore[misc]
            report.step(f"quire {file.name} {n}", lambda f=file, n=n: ours(report, machine, f, n, n))  # type: ignore[misc]
        report.step(f"served {file.name}", lambda f=file: served(report, machine, f, files[f][0].n_vocab))  # type: ignore[misc]
    print((options.out / "report.md").read_text())
    if any(step["error"] for step in report.steps):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
