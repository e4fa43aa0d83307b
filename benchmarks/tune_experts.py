#!/usr/bin/env python3
"""Time the kernels for layers of experts (native/cuda/expert_layer.cuh) on the shapes of two published models, and add
the best variants to the table that ``QUIRE_BATCH_PRODUCTS=TABLE`` reads.

    tune_experts.py TABLE [--types q4_k:q6_k,q4_k:q4_k] [--library FILE] [--seconds 60]
    tune_experts.py TABLE --emulate                         # tiny experts on the CPU, to test the script
    tune_experts.py --build FILE [--capability 90]          # needs nvcc, but no card

Types are those of gate and up, and of down.  Each variant is first compared with NumPy; one that is wrong is never
timed, and makes the exit status 1.  The variants with the least time over all numbers of tokens win.
``TABLE.experts.json`` has all timings.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from quire._native.quant import dequantize, quantize
from tune_kernels import TYPES, add_options, build, build_emulation

SOURCE, EMULATED = "expert_kernels.cu", "cuda_experts.cpp"
TOKENS = (1, 8, 32, 64, 512)
N_VARIANTS, N_RUNS, N_GIVEN = 2, 64, 4  # N_GIVEN: experts that differ; the others repeat them
DEFAULT_TYPES = "q4_k:q6_k,q4_k:q4_k,q8_0:q8_0,mxfp4:mxfp4,bf16:bf16"
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    name: str
    n_in: int
    n_inner: int
    n_expert: int
    n_used: int


SHAPES = (Shape("qwen3-30b-a3b", 2048, 768, 128, 8), Shape("gpt-oss-20b", 2880, 2880, 32, 4))
TINY = (Shape("tiny", 256, 256, 5, 2),)


@dataclass(frozen=True)
class Timing:
    shape: str
    types: str
    variants: tuple[int, int]
    n_tokens: int
    microseconds: float


class Experts:
    """A layer on the device, inputs, and its results by NumPy."""

    def __init__(self, library: ctypes.CDLL, shape: Shape, types: tuple[str, str], most_tokens: int) -> None:
        random = np.random.default_rng(shape.n_in)
        n_in, n_inner, n_given = shape.n_in, shape.n_inner, min(N_GIVEN, shape.n_expert)
        self.shape, self.types, self.library = shape, types, library
        stored, weights = [], []
        for n_out, n, dtype in ((n_inner, n_in, types[0]), (n_inner, n_in, types[0]), (n_in, n_inner, types[1])):
            matrix = quantize((random.standard_normal((n_given * n_out, n)) * n**-0.5).astype(np.float32), dtype)
            stored.append(np.ascontiguousarray(matrix.numpy()))
            weights.append(dequantize(matrix).reshape(n_given, n_out, n))
        pointers = (ctypes.c_void_p * 3)(*(each.ctypes.data for each in stored))
        sizes = n_in, n_inner, shape.n_expert, n_given, shape.n_used, most_tokens
        check(library.experts_open(*map(TYPES.index, types), pointers, *sizes))
        x = random.standard_normal((most_tokens, n_in)).astype(np.float32)
        drawn = random.random((N_RUNS, most_tokens, shape.n_expert)).argsort(2)[:, :, : shape.n_used]
        experts = np.ascontiguousarray(drawn.astype(np.int32))
        shares = random.uniform(0.1, 1, (most_tokens, shape.n_used)).astype(np.float32)
        check(library.experts_inputs(*(ctypes.c_void_p(a.ctypes.data) for a in (x, experts, shares))))
        self.expected = np.zeros((most_tokens, n_in), np.float32)
        for given in range(n_given):
            gate, up = (x @ weights[i][given].T for i in (0, 1))
            made = (gate / (1 + np.exp(-gate)) * up) @ weights[2][given].T
            self.expected += made * (shares * (experts[0] % n_given == given)).sum(1, keepdims=True)

    def run(self, variants: tuple[int, int], n_tokens: int) -> Array:
        out = np.full((n_tokens, self.shape.n_in), np.nan, np.float32)
        check(self.library.experts_run(*variants, n_tokens, ctypes.c_void_p(out.ctypes.data)))
        return out

    def time(self, variants: tuple[int, int], n_tokens: int) -> float:
        found = ctypes.c_float(0)
        check(self.library.experts_time(*variants, n_tokens, ctypes.byref(found)))
        return found.value

    def is_right(self, found: Array) -> bool:
        expected = self.expected[: len(found)]
        step = 2.0**-7 if "bf16" in self.types else 2.0**-9
        return bool((np.abs(found - expected) <= step * np.abs(expected).max()).all())


def check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"CUDA error {status}")


def tune(experts: Experts, tokens: tuple[int, ...], timings: list[Timing], wrong: list[str]) -> tuple[int, int]:
    """Return the best variants; -1 for both, which leaves the layer to ggml, if none is right."""
    best, best_time = (-1, -1), np.inf
    for variants in ((up, down) for up in range(N_VARIANTS) for down in range(N_VARIANTS)):
        name = f"{experts.shape.name} {':'.join(experts.types)}: variants {variants[0]} and {variants[1]}"
        outputs = [experts.run(variants, n) for n in tokens]
        if not all(experts.is_right(found) for found in outputs):
            wrong.append(f"{name} are not what NumPy computes")
            continue
        if not all(np.array_equal(found, outputs[-1][: len(found)]) for found in outputs):
            wrong.append(f"{name}: the bits of a token depend on other tokens")
            continue
        took = [experts.time(variants, n) for n in tokens]
        types = ":".join(experts.types)
        timings += [Timing(experts.shape.name, types, variants, n, us) for n, us in zip(tokens, took, strict=True)]
        if sum(took) < best_time:
            best, best_time = variants, sum(took)
            print(f"{name}: " + ", ".join(f"{n}: {us:.1f} us" for n, us in zip(tokens, took, strict=True)), flush=True)
    return best


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "layers", 60)
    parser.add_argument("--types", default=DEFAULT_TYPES)
    options = parser.parse_args(arguments)
    if options.build:
        build(options.build, options.capability, SOURCE)
    if options.table is None:
        return
    tokens = (1, 9) if options.emulate else TOKENS
    timings, wrong, begin = list[Timing](), list[str](), time.monotonic()
    best: dict[str, int] = {}  # variants, by type and size
    with tempfile.TemporaryDirectory() as folder:
        library = options.library or options.build or Path(folder) / "experts.so"
        if not library.is_file():
            build_emulation(library, EMULATED) if options.emulate else build(library, options.capability, SOURCE)
        loaded = ctypes.CDLL(str(library))
        for types in options.types.split(","):
            for shape in TINY if options.emulate else SHAPES:
                up, down = types.split(":")
                if ({up, down} & {"q4_k", "q6_k"}) and (shape.n_in % 256 or shape.n_inner % 256):
                    continue  # no file has such a matrix
                if time.monotonic() - begin > options.seconds:
                    print(f"no time for {shape.name} {types}", flush=True)
                    continue
                variants = tune(Experts(loaded, shape, (up, down), max(tokens)), tokens, timings, wrong)
                sizes = (f"{up} {shape.n_in} {shape.n_inner}", f"{down} {shape.n_inner} {shape.n_in}")
                for name, variant in zip(sizes, variants, strict=True):
                    best.setdefault(f"experts:{name}", variant)  # the first types are the most common ones
    before = options.table.read_text() if options.table.is_file() else "# type n_in n_out variant n_splits\n"
    kept = [line for line in before.splitlines() if not line.startswith("experts:")]
    lines = [f"{name} {variant} 1" for name, variant in best.items()]
    options.table.write_text("\n".join(kept + lines) + "\n")
    whole = {"wrong": wrong, "timings": [asdict(timing) for timing in timings]}
    options.table.with_name(options.table.name + ".experts.json").write_text(json.dumps(whole, indent=1))
    if wrong:
        print("\n".join(wrong))
        raise SystemExit(1)


if __name__ == "__main__":
    main()
