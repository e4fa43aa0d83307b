#!/usr/bin/env python3
"""Measure matrix products alone: every weight type, from one row to many, relative to this machine's limits.

    products.py [--types q4_k,bf16] [--rows 1,4,8,32,512] [--shape 4096x4096] [--threads 2] [--rounds 5] [--isa NAME]
        [--torch]

Few rows (up to 16) are multiplied by a matrix larger than all caches; their share is the time to read the file's bytes
at the measured bandwidth, relative to the product's time.  More rows are multiplied by a matrix of ``--shape``; their
share is of the peak of the instructions used: int8 for quantized weights, bfloat16 for F16 and BF16 if it is used, else
single precision.  Limits are measured before and after each type (limits.py), as other machines' load changes them.
``--torch`` adds PyTorch's bfloat16 linear, if it is installed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from limits import Kind, Machine, other_load, warning_of_load
from quire import DType, Tensor, quantize
from quire._native.kernels import KernelSet
from quire._native.quant import needs_importance
from quire._native.testing import PackedMatrix

TYPES = [
    "f32",
    "f16",
    "bf16",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
    "nvfp4",
    "iq1_s",
    "iq1_m",
    "iq2_xxs",
    "iq2_xs",
    "iq2_s",
    "iq3_xxs",
    "iq3_s",
    "tq1_0",
    "tq2_0",
    "q1_0",
    "q2_0",
]
FEW_ROWS = 16
LARGE_BYTES = 200e6
STORAGE = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


@dataclass(frozen=True)
class Limits:
    """Bytes and operations per second: medians of the measurements around a type."""

    bandwidth: float
    peak: float


def weights_of(dtype: str, n_out: int, n_in: int) -> Tensor:
    """Return a matrix of a few quantized rows that repeat."""
    importance = np.ones(n_in, np.float32) if needs_importance(dtype) else None
    few = quantize(np.random.default_rng(0).standard_normal((64, n_in)).astype(np.float32), dtype, importance)
    storage = few.numpy().view(np.uint8).reshape(64, -1)
    return Tensor.from_numpy(np.tile(storage, (n_out // 64, 1)).view(STORAGE.get(dtype, np.uint8)), dtype)


def seconds_of(multiply: Callable[[], object], rounds: int) -> float:
    """Return the median time; short products are repeated within a round."""
    begin = time.perf_counter()
    multiply()
    repeats = max(1, int(0.005 / (time.perf_counter() - begin)))
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(repeats):
            multiply()
        taken.append((time.perf_counter() - begin) / repeats)
    return statistics.median(taken)


def activations(n_rows: int, n_in: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((n_rows, n_in)).astype(np.float32)


def peak_kind(dtype: str, kernels: KernelSet) -> Kind:
    if dtype in ("f16", "bf16") and kernels.multiplies_bf16:
        return "bf16"
    return "f32" if dtype in STORAGE else "int8"


class Table:
    """Prints a line per type: for each number of rows the speed, and the share of the limit."""

    def __init__(self, rows: list[int], shape: tuple[int, int]) -> None:
        self.rows = rows
        print(f"many rows: [{shape[0]}, {shape[1]}]; few rows: as many output rows as take {LARGE_BYTES / 1e6:.0f} MB")
        units = [f"{n} row{'s' if n > 1 else ''}, {'GB/s' if n <= FEW_ROWS else 'Gop/s'}" for n in rows]
        print("| weights | " + " | ".join(f"{unit} | share" for unit in units) + " |")
        print("|---" * (1 + 2 * len(rows)) + "|", flush=True)

    def line(self, name: str, speeds: dict[int, float], limits: Limits) -> None:
        cells = [f"{name:7}"]
        for n in self.rows:
            limit = limits.bandwidth if n <= FEW_ROWS else limits.peak
            cells.append(f"{speeds[n] / 1e9:6.1f} | {speeds[n] / limit * 100:3.0f} %" if limit else "- | -")
        print("| " + " | ".join(cells) + " |", flush=True)


def speed_of(multiply: Callable[[], object], n_rows: int, size: tuple[int, int, int], rounds: int) -> float:
    """Return the weights' bytes per second for few rows, operations per second for many."""
    n_out, n_in, size_bytes = size
    work = size_bytes if n_rows <= FEW_ROWS else 2 * n_rows * n_out * n_in
    return work / seconds_of(multiply, rounds)


def measured(kind: Kind, machine: Machine, measure: Callable[[], dict[int, float]]) -> tuple[dict[int, float], Limits]:
    found = [(machine.read_bandwidth(), machine.peak(kind, 0.05))]
    speeds = measure()
    found.append((machine.read_bandwidth(), machine.peak(kind, 0.05)))
    return speeds, Limits(statistics.mean(f[0] for f in found), statistics.mean(f[1] for f in found))


def measure_ours(
    dtype: str, kernels: KernelSet, table: Table, shape: tuple[int, int], threads: int, rounds: int
) -> dict[int, float]:
    speeds: dict[int, float] = {}
    n_in = shape[1]
    for is_few in (True, False):
        rows = [n for n in table.rows if (n <= FEW_ROWS) == is_few]
        if not rows:
            continue
        n_out = int(LARGE_BYTES / DType(dtype).row_bytes(n_in)) // 64 * 64 if is_few else shape[0]
        packed = PackedMatrix(weights_of(dtype, n_out, n_in), kernels, threads=threads)
        file_bytes = n_out * DType(dtype).row_bytes(n_in)
        for n in rows:
            x = activations(n, n_in)
            speeds[n] = speed_of(
                lambda x=x, packed=packed: packed.multiply(x, n_workers=threads), n, (n_out, n_in, file_bytes), rounds
            )
    return speeds


def measure_torch(table: Table, shape: tuple[int, int], threads: int, rounds: int) -> dict[int, float]:
    import torch

    torch.set_num_threads(threads)
    speeds: dict[int, float] = {}
    n_in = shape[1]
    with torch.inference_mode():
        for n in table.rows:
            n_out = int(LARGE_BYTES / 2 / n_in) // 64 * 64 if n <= FEW_ROWS else shape[0]
            linear = torch.nn.Linear(n_in, n_out, bias=False, dtype=torch.bfloat16)
            x = torch.from_numpy(activations(n, n_in)).to(torch.bfloat16)
            speeds[n] = speed_of(lambda x=x, linear=linear: linear(x), n, (n_out, n_in, n_out * n_in * 2), rounds)
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--rows", default="1,4,8,32,512")
    parser.add_argument("--shape", default="4096x4096", help="output rows x columns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", help="the instruction set to use [the best]")
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    rows = [int(n) for n in options.rows.split(",")]
    n_out, n_in = (int(n) for n in options.shape.split("x"))
    kernels = KernelSet(options.isa)
    machine = Machine(options.threads)
    loads = [other_load()]
    print(f"{kernels.isa}, {options.threads} threads, medians of {options.rounds}")
    print(f"read bandwidth {machine.read_bandwidth() / 1e9:.1f} GB/s;", end=" ")
    print(", ".join(f"{kind} {machine.peak(kind) / 1e9:.0f} Gop/s" for kind in ("int8", "bf16", "f32")))
    table = Table(rows, (n_out, n_in))
    for dtype in options.types.lower().split(",") if options.types else []:
        ours = measured(
            peak_kind(dtype, kernels),
            machine,
            lambda dtype=dtype: measure_ours(dtype, kernels, table, (n_out, n_in), options.threads, options.rounds),
        )
        table.line(dtype, *ours)
    if options.torch:
        line = measured("bf16", machine, lambda: measure_torch(table, (n_out, n_in), options.threads, options.rounds))
        table.line("torch", *line)
    loads.append(other_load())
    print(warning_of_load(loads))


if __name__ == "__main__":
    main()
