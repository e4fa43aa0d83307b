"""Measure what LoRA adapters per request cost: decoding of many streams, with and without them, in alternation.

    PYTHONPATH=python python benchmarks/lora.py MODEL [--streams 32] [--adapters 8] [--rank 16] [--rounds 7]
                                                [--tokens 32] [--threads N]

MODEL is a GGUF file, such as one of ``make_shape.py``.  The adapters are random and change all matrices of attention
and MLP.  Each round generates with every stream once without adapters and once with stream i using adapter i modulo
their number; both in one process, and in turn.  It prints the medians of tokens per second, the medians of the rounds'
ratios of time and of processor time, and the memory of the adapters.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from quire import LLM, SamplingParams
from quire.gguf import GGUFReader, GGUFWriter

TARGETS = (
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_gate", "ssm_out",
)  # fmt: skip


def write_adapter(path: Path, base: GGUFReader, rank: int, seed: int) -> Path:
    """Write a random adapter for all matrices of attention and MLP."""
    random = np.random.default_rng(seed)
    shapes = {
        info.name: info.shape for info in base.tensors if len(info.shape) == 2 and info.name.split(".")[-2] in TARGETS
    }
    with GGUFWriter(path, base.metadata.text("general.architecture")) as writer:
        writer.set("general.type", "adapter")
        writer.set("adapter.type", "lora")
        writer.set("adapter.lora.alpha", float(rank), "f32")
        halves = {}
        for name, (n_out, n_in) in shapes.items():
            halves[f"{name}.lora_a"] = (random.standard_normal((rank, n_in)) * n_in**-0.5).astype(np.float32)
            halves[f"{name}.lora_b"] = (random.standard_normal((n_out, rank)) * 0.01).astype(np.float32)
        for name, half in halves.items():
            writer.add_tensor(name, "f32", half.shape)
        for name, half in halves.items():
            writer.write(name, half)
    return path


def seconds(model: LLM, options: argparse.Namespace, adapters: list[str]) -> tuple[float, float]:
    """Return the time to generate with all streams, and the processor time."""
    params = [
        SamplingParams(max_tokens=options.tokens, ignore_eos=True, temperature=0, adapter=adapters[i % len(adapters)])
        for i in range(options.streams)
    ]
    prompts = [[7 + i, 11, 13] for i in range(options.streams)]
    begun, busy = time.perf_counter(), time.process_time()
    model.generate(prompts, params)
    return time.perf_counter() - begun, time.process_time() - busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, default in (
        ("streams", 32),
        ("adapters", 8),
        ("rank", 16),
        ("rounds", 7),
        ("tokens", 32),
        ("threads", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = GGUFReader(options.model)
        paths = {
            f"a{i}": write_adapter(Path(folder) / f"{i}.gguf", base, options.rank, i) for i in range(options.adapters)
        }
        with LLM(
            options.model, lora_modules=paths, threads=options.threads, n_ctx=256, max_sequences=options.streams,
            max_loras=options.adapters,
        ) as model:  # fmt: skip
            ways = {"without": [""], "with": [*paths]}
            times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for names in ways.values():
                seconds(model, options, names)
            for i in range(options.rounds):
                for way in sorted(ways, reverse=i % 2 == 1):
                    times[way].append(seconds(model, options, ways[way]))
            size = sum(each.size_bytes for each in model.adapters)
    n = options.streams * options.tokens
    for way, found in times.items():
        print(f"{way:20} {n / statistics.median(wall for wall, _ in found):9.1f} tokens/s")
    for i, kind in enumerate(("time", "processor time")):
        ratios = [adapted[i] / plain[i] for adapted, plain in zip(times["with"], times["without"], strict=True)]
        shown = f"{statistics.median(ratios):9.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"{'ratio of ' + kind:20} {shown}")
    print(f"{'memory':20} {size / 2**20:9.1f} MiB for {options.adapters} adapters of rank {options.rank}")


if __name__ == "__main__":
    main()
