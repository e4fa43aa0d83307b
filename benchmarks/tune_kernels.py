#!/usr/bin/env python3
"""Time every variant of the kernels for 2 to 64 rows (native/cuda/batch_product.cuh) on the matrices of three published
models, and write the table that ``QUIRE_BATCH_PRODUCTS=TABLE`` reads.

    tune_kernels.py TABLE [--types q4_k,q6_k] [--shapes qwen3-8b] [--library FILE] [--seconds 120]
    tune_kernels.py TABLE --emulate                         # tiny matrices on the CPU, to test the script
    tune_kernels.py --build FILE [--capability 90]          # needs nvcc, but no card

Without ``--library``, it builds one with nvcc for this card.  Each variant is first compared with NumPy; one that is
wrong is never timed, and makes the exit status 1.  The plan with the least time over all numbers of rows wins, as the
order of sums must not depend on it.  A matrix is copied until no cache can hold it, and the copies are taken in turn.
``TABLE.json`` has all timings, with the share of the memory's bandwidth, counting the bytes of the GGUF type.  Types
and shapes come in order of importance; those that ``--seconds`` leaves no time for keep the default.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from quire._native.quant import dequantize, quantize

ROOT = Path(__file__).resolve().parents[1]
# In the order of ArrangedType.
TYPES = ("q4_0", "q8_0", "q4_k", "q5_k", "q6_k", "mxfp4", "bf16", "q4_1", "q5_0", "nvfp4")
BY_IMPORTANCE = ("q4_k", "q6_k", "q8_0", "q4_0", "bf16", "nvfp4", "q5_0", "q5_k", "mxfp4", "q4_1")
ROWS = (2, 8, 16, 32, 64)
SPLITS = (1, 2, 3, 4, 6, 8)
N_VARIANTS = 4
CACHED_BYTES = 256e6  # more than the L2 cache of any card
PIECE = 1 << 20  # random numbers per matrix; the rest repeats them

# The matrices [n_in, n_out] of a layer as Quire stores them, and of the head: q, k and v are one, gate and up are one.
SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "qwen3-8b": ((4096, 24576), (12288, 4096), (4096, 6144), (4096, 4096), (4096, 1024), (4096, 151936)),
    "qwen3-0.6b": ((1024, 6144), (3072, 1024), (1024, 4096), (2048, 1024), (1024, 1024), (1024, 151936)),
    "qwen3-30b-a3b": ((2048, 5120), (4096, 2048), (2048, 512), (2048, 151936)),  # without experts
}
TINY = {"tiny": ((512, 48), (256, 80))}


@dataclass(frozen=True)
class Timing:
    """``share``: of the memory's bandwidth, 0 if that is unknown."""

    dtype: str
    n_in: int
    n_out: int
    variant: int
    n_splits: int
    n_rows: int
    microseconds: float
    share: float


class Kernels:
    """A library of batch_kernels.cu, or its emulation on the CPU."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.batch_device.restype = ctypes.c_char_p
        speed = ctypes.c_double(0)
        self.device = self._library.batch_device(ctypes.byref(speed)).decode()
        self.bytes_per_s = speed.value
        if not self.device:
            raise SystemExit("no CUDA device was found: use --emulate to test the script")

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"CUDA error {status}")

    def open(self, dtype: str, stored: npt.NDArray[np.uint8], n_in: int, n_out: int, n_copies: int) -> None:
        pointer = ctypes.c_void_p(stored.ctypes.data)
        self._check(self._library.batch_open(TYPES.index(dtype), pointer, n_in, n_out, n_copies))

    def run(self, variant: int, n_splits: int, x: npt.NDArray[np.float32], n_out: int) -> npt.NDArray[np.float32]:
        out = np.full((len(x), n_out), np.nan, np.float32)
        pointers = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)
        self._check(self._library.batch_run(variant, n_splits, len(x), *pointers))
        return out

    def time(self, variant: int, n_splits: int, n_rows: int, n_runs: int) -> float:
        """Return the microseconds of a product."""
        found = ctypes.c_float(0)
        self._check(self._library.batch_time(variant, n_splits, n_rows, n_runs, ctypes.byref(found)))
        return found.value

    def default(self, dtype: str, n_in: int, n_out: int) -> tuple[int, int]:
        variant, n_splits = ctypes.c_int(0), ctypes.c_int(0)
        self._library.batch_default(TYPES.index(dtype), n_in, n_out, ctypes.byref(variant), ctypes.byref(n_splits))
        return variant.value, n_splits.value


def build(path: Path, capability: str, source: str = "batch_kernels.cu") -> None:
    """Compile kernels; ``capability`` is such as "90" or "native"."""
    target = "native" if capability == "native" else f"sm_{capability}"
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-O3", "-std=c++17", "-use_fast_math", "-extended-lambda"]
    command += [f"-arch={target}", f"-I{ROOT / 'native'}", str(ROOT / "benchmarks" / source)]
    command += [str(ROOT / "native" / "cuda" / "arranged_matrix.cpp"), "-o", str(path)]
    subprocess.run(command, check=True)


def build_emulation(path: Path, source: str = "cuda_batch.cpp") -> None:
    sources = (ROOT / "tests" / "native" / source, ROOT / "native" / "cuda" / "arranged_matrix.cpp")
    command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{ROOT / 'native'}", *map(str, sources)]
    subprocess.run([*command, "-o", str(path)], check=True)


def add_options(parser: argparse.ArgumentParser, what: str, seconds: float) -> None:
    """Add the options of a script that times kernels of ``what``."""
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--library", type=Path, help="built before with --build")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"time no more {what} after this time")
    parser.add_argument("--build", type=Path, metavar="FILE", help="only build the library")
    parser.add_argument("--capability", default="native", help="of the card to build for, such as 90")
    parser.add_argument("--emulate", action="store_true", help=f"tiny {what} on the CPU, to test the script")


class Matrix:
    """A matrix whose rows repeat, and the products of some rows with it by NumPy."""

    def __init__(self, dtype: str, n_in: int, n_out: int) -> None:
        random = np.random.default_rng(n_in + n_out)
        n_drawn = max(1, min(n_out, PIECE // n_in))
        piece = quantize(random.standard_normal((n_drawn, n_in)).astype(np.float32), dtype)
        repeated = np.arange(n_out) % n_drawn
        self.dtype, self.n_in, self.n_out = dtype, n_in, n_out
        self.stored = np.ascontiguousarray(np.ascontiguousarray(piece.numpy()).view(np.uint8)[repeated])
        self.x = random.standard_normal((max(ROWS), n_in)).astype(np.float32)
        weights = dequantize(piece)
        self.products = (self.x @ weights.T)[:, repeated]
        self.sizes = np.sqrt((self.x**2) @ (weights**2).T)[:, repeated]  # each sum's terms'

    def is_right(self, found: npt.NDArray[np.float32]) -> bool:
        n, step = len(found), 2.0**-8 if self.dtype == "bf16" else 2.0**-10
        return bool((np.abs(found - self.products[:n]) <= 4 * step * self.sizes[:n]).all())


def candidates(dtype: str, n_in: int, emulated: bool) -> list[tuple[int, int]]:
    units = n_in // (128 if dtype == "bf16" else 256)
    splits = [n for n in SPLITS if n == 1 or n * 2 <= units]
    return [(variant, n) for variant in range(N_VARIANTS) for n in (splits[:2] if emulated else splits)]


def tune(
    kernels: Kernels, matrix: Matrix, rows: tuple[int, ...], emulated: bool, timings: list[Timing], wrong: list[str]
) -> tuple[int, int]:
    """Return the best variant and number of parts; (-1, 1), which leaves the matrix to ggml, if none is right."""
    n_bytes = matrix.stored.nbytes
    n_copies = 1 if emulated else max(2, int(CACHED_BYTES // n_bytes) + 1)
    kernels.open(matrix.dtype, matrix.stored, matrix.n_in, matrix.n_out, n_copies)
    best, best_time = (-1, 1), np.inf
    for variant, n_splits in candidates(matrix.dtype, matrix.n_in, emulated):
        name = f"{matrix.dtype} {matrix.n_in} {matrix.n_out}: variant {variant} in {n_splits} parts"
        outputs = [kernels.run(variant, n_splits, matrix.x[:n], matrix.n_out) for n in rows]
        if not all(matrix.is_right(found) for found in outputs):
            wrong.append(f"{name} is not what NumPy computes")
            continue
        if not all(np.array_equal(found, outputs[-1][: len(found)]) for found in outputs):
            wrong.append(f"{name}: the bits of a row depend on other rows")
            continue
        total = 0.0
        for n in rows:
            took = kernels.time(variant, n_splits, n, 1 if emulated else max(20, 2 * n_copies))
            share = n_bytes / (took * 1e-6) / kernels.bytes_per_s if kernels.bytes_per_s else 0.0
            timings.append(Timing(matrix.dtype, matrix.n_in, matrix.n_out, variant, n_splits, n, took, share))
            total += took
        if total < best_time:
            best, best_time = (variant, n_splits), total
    return best


def summary(matrix: Matrix, best: tuple[int, int], default: tuple[int, int], timings: list[Timing]) -> str:
    def times(plan: tuple[int, int]) -> dict[int, Timing]:
        key = (matrix.dtype, matrix.n_in, matrix.n_out, *plan)
        return {t.n_rows: t for t in timings if (t.dtype, t.n_in, t.n_out, t.variant, t.n_splits) == key}

    of_best, of_default = times(best), times(default)
    words = [f"{n}: {t.microseconds:.1f} us ({t.share:.0%})" for n, t in of_best.items()]
    slower = sum(t.microseconds for t in of_default.values()) / max(1e-9, sum(t.microseconds for t in of_best.values()))
    beside = f"; the default takes {slower:.2f} times as long" if of_default else ""
    name = f"{matrix.dtype} {matrix.n_in} {matrix.n_out}"
    return f"{name}: variant {best[0]}, {best[1]} parts; rows {', '.join(words)}{beside}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "matrices", 180)
    parser.add_argument("--types", default=",".join(BY_IMPORTANCE))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    options = parser.parse_args(arguments)
    if options.build:
        build(options.build, options.capability)
    if options.table is None:
        return
    rows = (2, 9) if options.emulate else ROWS
    shapes = TINY if options.emulate else {name: SHAPES[name] for name in options.shapes.split(",")}
    timings, wrong, lines, begin = list[Timing](), list[str](), ["# type n_in n_out variant n_splits"], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        library = options.library or options.build or Path(folder) / "kernels.so"
        if not library.is_file():
            build_emulation(library) if options.emulate else build(library, options.capability)
        kernels = Kernels(library)
        print(kernels.device, flush=True)
        for dtype in options.types.split(","):
            for n_in, n_out in dict.fromkeys(size for sizes in shapes.values() for size in sizes):
                if time.monotonic() - begin > options.seconds:
                    print(f"no time for {dtype} {n_in} {n_out}", flush=True)
                    continue
                matrix = Matrix(dtype, n_in, n_out)
                best = tune(kernels, matrix, rows, options.emulate, timings, wrong)
                lines.append(f"{dtype} {n_in} {n_out} {best[0]} {best[1]}")
                print(summary(matrix, best, kernels.default(dtype, n_in, n_out), timings), flush=True)
                options.table.write_text("\n".join(lines) + "\n")
    whole = {"device": kernels.device, "wrong": wrong, "timings": [asdict(timing) for timing in timings]}
    options.table.with_name(options.table.name + ".json").write_text(json.dumps(whole, indent=1))
    if wrong:
        print("\n".join(wrong))
        raise SystemExit(1)


if __name__ == "__main__":
    main()
