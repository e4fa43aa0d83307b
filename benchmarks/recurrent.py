#!/usr/bin/env python3
"""Measure operations with a state alone: portable code, each instruction set, and portable code in ggml's graph.

    recurrent.py [--rounds 5] [--rows 1,512] [--streams 1,8] [--only NAME]

Sizes are those of published models.  A step is run with the operation and without it (its inputs are read, and one of
them is the result); the difference is the time of the operation.  Figures are microseconds with one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from quire import Tensor
from quire._native import graph
from quire._native.core import find_device
from quire._native.graph import CacheSpec, Executor, Tracer, TraceTensor, Weight
from quire._native.kernels import KernelSet, supported_isas

N_VOCAB = 64


@dataclass(frozen=True)
class Case:
    """An operation of a model: its inputs, its state, and a function that records it."""

    name: str
    shapes: list[tuple[int, ...]]
    n_state: int
    record: Callable[[list[TraceTensor], Callable[..., Weight]], TraceTensor]


def cases() -> list[Case]:
    def conv(x: list[TraceTensor], weight: Callable[..., Weight]) -> TraceTensor:
        return graph.conv_state(x[0], weight(2048, 3), None, layer=0, state=0)

    def silu_conv(x: list[TraceTensor], weight: Callable[..., Weight]) -> TraceTensor:
        return graph.conv_state(x[0], weight(8192, 4), None, layer=0, state=0, silu=True)

    def scan(x: list[TraceTensor], weight: Callable[..., Weight]) -> TraceTensor:
        return graph.selective_scan(x[0], x[1], x[2], x[3], weight(1536, 16), weight(1536), layer=0, state=0)

    def dual(x: list[TraceTensor], weight: Callable[..., Weight]) -> TraceTensor:
        return graph.state_space_dual(x[0], x[1], x[2], x[3], weight(24), weight(24), layer=0, state=0)

    def delta(x: list[TraceTensor], weight: Callable[..., Weight]) -> TraceTensor:
        return graph.gated_delta(x[0], x[1], x[2], x[3], x[4], layer=0, state=0)

    def wkv7(x: list[TraceTensor], weight: Callable[..., Weight]) -> TraceTensor:
        return graph.wkv7(x[0], x[1], x[2], x[3], x[4], x[5], layer=0, state=0)

    keys, heads = (16, 128), (32, 128)
    rwkv = (32, 64)
    return [
        Case("conv_state lfm2-1.2b (2048 x 3)", [(2048,)], 2048 * 2, conv),
        Case("conv_state qwen3-next (8192 x 4, silu)", [(8192,)], 8192 * 3, silu_conv),
        Case("selective_scan mamba-130m (1536 x 16)", [(1536,), (1536,), (16,), (16,)], 1536 * 16, scan),
        Case("state_space_dual mamba2-130m (24 x 64 x 128)", [(24, 64), (24,), (1, 128), (1, 128)], 24 * 8192, dual),
        Case("gated_delta qwen3-next (32 x 128 x 128)", [keys, keys, heads, (32,), (32,)], 32 * 16384, delta),
        Case("gated_delta by key (32 x 128 x 128)", [heads, heads, heads, heads, (32,)], 32 * 16384, delta),
        Case("wkv7 rwkv7-1.5b (32 x 64 x 64)", [rwkv] * 6, 32 * 4096, wkv7),
    ]


class Bench:
    """A trace of one operation, or of its inputs only."""

    def __init__(self, case: Case, way: tuple[str, str], rows: int, streams: int, *, is_empty: bool) -> None:
        random = np.random.default_rng(1)
        self.keep: list[object] = []

        def weight(*shape: int) -> Weight:
            # Negative, because some inputs are decays; small, so that no state grows.
            values = random.uniform(-0.1, -0.01, shape).astype(np.float32)
            self.keep.append(values)
            return Weight("weight", Tensor.from_numpy(values))

        tracer = Tracer([] if is_empty else [CacheSpec(states=[("state", case.n_state)])])
        inputs = [
            graph.reshape(graph.embed(tracer.tokens, weight(N_VOCAB, int(np.prod(shape)))), list(shape))
            for shape in case.shapes
        ]
        y = max(inputs, key=lambda x: int(np.prod([int(d) for d in x.shape[1:]])))
        y = y if is_empty else case.record(inputs, weight)
        flat = graph.reshape(y, [int(np.prod([int(d) for d in y.shape[1:]]))])
        trace = tracer.finish(graph.select_rows(flat, tracer.logit_rows))
        self.executor = Executor(
            trace,
            find_device("cpu"),
            n_blocks=1,
            n_states=0 if is_empty else streams + 1,
            threads=1,
            kernels=way[0],  # type: ignore[arg-type]
            kernel_set=None if way[0] == "stock" else KernelSet(way[1]),
            max_rows=max(rows, streams),
            max_sequences=streams,
        )
        n = rows * streams
        self.arguments = {
            "positions": list(range(rows)) * streams,
            "slots": [],
            "logit_rows": [0],
            "row_begin": list(range(0, n + 1, rows)),
            "n_kv": [rows] * streams,
            "tables": [],
            "states": [] if is_empty else list(range(1, streams + 1)),
        }
        self.tokens = random.integers(0, N_VOCAB, n).tolist()

    def seconds(self) -> float:
        begin = time.thread_time()
        self.executor.run(self.tokens, **self.arguments)  # type: ignore[arg-type]
        return time.thread_time() - begin


def microseconds(case: Case, way: tuple[str, str], rows: int, streams: int, rounds: int) -> float:
    """Return the microseconds per step that the operation takes."""
    full = Bench(case, way, rows, streams, is_empty=False)
    empty = Bench(case, way, rows, streams, is_empty=True)
    full.seconds(), empty.seconds()
    repeats = max(3, int(0.02 / full.seconds()))
    return (least(full, rounds * repeats) - least(empty, rounds * repeats)) * 1e6


def least(bench: Bench, repeats: int) -> float:
    """Return the shortest time, as other processes can only lengthen it."""
    return min(bench.seconds() for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="run only operations whose names contain this")
    parser.add_argument("--rows", default="1,512")
    parser.add_argument("--streams", default="1,8")
    options = parser.parse_args()
    steps = [(int(r), int(s)) for r in options.rows.split(",") for s in options.streams.split(",")]
    sets = list(dict.fromkeys(each.split("v", 1)[0] if each == "neoni8mm" else each for each in supported_isas()))
    sets = [each for each in sets if each in ("portable", "neon", "avx2", "avx512")]
    ways = [("stock", "portable"), *(("cpu", each) for each in sets)]
    print(f"| operation | rows | streams | {' | '.join('ggml' if w == 'stock' else i for w, i in ways)} |")
    print("|---|---" + "|---" * (len(ways) + 1) + "|")
    for case in (case for case in cases() if options.only in case.name):
        for rows, streams in steps:
            if rows * streams > 512:
                continue
            figures = [microseconds(case, way, rows, streams, options.rounds) for way in ways]
            print(f"| {case.name} | {rows} | {streams} | {' | '.join(f'{f:.0f}' for f in figures)} |", flush=True)


if __name__ == "__main__":
    main()
