"""Measure the attention kernels alone: decoding at long contexts, prompts, shared prefixes.

Times are of one layer, with pools that together exceed the processor's caches.  ``limit`` is the time to read the bytes
of K and V at the bandwidth that the script measures.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt
from quire._native import kernels, testing
from quire.params.engine_options import CacheDType

BLOCK = 32
POOL_BYTES = 400e6
LARGE_PAGE = 2 << 20
CODED = {"q8_0": BLOCK, "q5_1": 24, "q4_0": 18}  # bytes per block, head and dimension; q8_0 without scales


@dataclass(frozen=True)
class Case:
    """Sequences of ``n_kv`` tokens; the last ``n_rows`` are new, and the first ``n_shared`` are in shared blocks."""

    name: str
    n_head: int
    n_kv_head: int
    head_dim: int
    n_sequences: int = 1
    n_kv: int = 4096
    n_rows: int = 1
    n_shared: int = 0


CASES = [
    Case("decode, 1 stream at 4096 (qwen3-0.6b)", 16, 8, 128),
    Case("decode, 1 stream at 4096 (llama-3.2-1b)", 32, 8, 64),
    Case("decode, 8 streams at 1024", 16, 8, 128, n_sequences=8, n_kv=1024),
    Case("decode, 8 streams at 4096", 16, 8, 128, n_sequences=8),
    Case("decode, 32 streams at 1088, 1024 shared", 16, 8, 128, n_sequences=32, n_kv=1088, n_shared=1024),
    Case("decode, 1 stream at 4096, 1 kv head", 8, 1, 128),
    Case("prompt of 4096 in steps of 512, head size 128", 16, 8, 128, n_rows=512),
    Case("prompt of 4096 in steps of 512, head size 64", 32, 8, 64, n_rows=512),
    Case("prompt of 512, head size 128", 16, 8, 128, n_kv=512, n_rows=512),
]


def aligned(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return a copy in large pages, like the engine's pools."""
    pages = mmap.mmap(-1, array.nbytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    begin = -memory.ctypes.data % LARGE_PAGE
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def pool_of(kv_type: str, head_blocks: tuple[int, int], dim: int, are_keys: bool) -> npt.NDArray[np.generic]:
    """Return a pool of zeros."""
    if kv_type not in CODED:
        return np.zeros((*head_blocks, *((dim, BLOCK) if are_keys else (BLOCK, dim))), np.float16)
    scale_bytes = 4 * BLOCK if kv_type == "q8_0" else 0
    return np.zeros((*head_blocks, CODED[kv_type] * dim + scale_bytes), np.int8 if kv_type == "q8_0" else np.uint8)


class Layers:
    """Pools of so many layers that none is in the processor's caches when its turn comes."""

    def __init__(self, case: Case, kv_type: str) -> None:
        self.case = case
        shared, own = -(-case.n_shared // BLOCK), -(-(case.n_kv - case.n_shared) // BLOCK)
        n_blocks = 1 + shared + own * case.n_sequences
        rng = np.random.default_rng(0)
        self.v_head_dim = case.head_dim
        ids = [int(i) for i in rng.permutation(np.arange(1, n_blocks))]
        self.tables = [ids[:shared] + ids[shared + i * own :][:own] for i in range(case.n_sequences)]
        self.n_blocks = n_blocks
        head_blocks = (n_blocks, case.n_kv_head)
        k, v = self._pools(head_blocks, kv_type, rng)
        n_layer = 1 if case.n_rows > 1 else max(1, int(POOL_BYTES / (k.nbytes + v.nbytes)))
        self.layers = [(aligned(k), aligned(v)) for _ in range(n_layer)]
        self.q = rng.normal(size=(case.n_sequences * case.n_rows, case.n_head, case.head_dim)).astype(np.float32)
        # The bytes of K and V that must be read, with each shared block counted once.
        self.read_bytes = (k.nbytes + v.nbytes) / n_blocks * (n_blocks - 1)

    def _pools(
        self, head_blocks: tuple[int, int], kv_type: str, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
        dim = self.case.head_dim
        k = rng.normal(size=(*head_blocks, dim, BLOCK)).astype(np.float32)
        v = rng.normal(size=(*head_blocks, BLOCK, dim)).astype(np.float32)
        k_type, _, v_type = kv_type.partition("/")
        if not {k_type, v_type}.isdisjoint(CODED):
            pools = [pool_of(each, head_blocks, dim, i == 0) for i, each in enumerate((k_type, v_type or k_type))]
            rows = rng.normal(size=(head_blocks[0] * BLOCK, head_blocks[1], dim)).astype(np.float32)
            n = len(rows)
            slots = list(range(n))
            whole = testing.AttentionBatch(
                row_begin=[0, n], n_kv=[n], tables=[list(range(head_blocks[0]))], slots=slots
            )
            testing.kv_write(kernels.KernelSet(), rows, rows, pools[0], pools[1], whole)
            return pools[0], pools[1]
        if kv_type == "bf16":
            return (k.view(np.uint32) >> 16).astype(np.uint16), (v.view(np.uint32) >> 16).astype(np.uint16)
        kind = np.float16 if kv_type == "f16" else np.float32
        return k.astype(kind), v.astype(kind)

    def batch(self, n_kv: int) -> testing.AttentionBatch:
        case = self.case
        n = min(case.n_rows, n_kv)
        slots = [t[p // BLOCK] * BLOCK + p % BLOCK for t in self.tables for p in range(n_kv - n, n_kv)]
        row_begin = [i * n for i in range(case.n_sequences + 1)]
        return testing.AttentionBatch(
            row_begin=row_begin, n_kv=[n_kv] * case.n_sequences, tables=self.tables, slots=slots
        )

    def pass_over(self, used: kernels.KernelSet, n_workers: int) -> Callable[[], float]:
        """Return a function that runs attention once per layer and returns a layer's multiplications and additions."""
        case, dim = self.case, self.v_head_dim
        steps = range(case.n_rows, case.n_kv + 1, case.n_rows) if case.n_rows > 1 else [case.n_kv]
        batches = [self.batch(n_kv) for n_kv in steps]
        seen = sum(n_kv - case.n_rows + (case.n_rows + 1) / 2 for n_kv in steps) * case.n_rows * case.n_sequences

        def run() -> float:
            for k, v in self.layers:
                for batch in batches:
                    testing.paged_attention(
                        used, self.q, k, v, batch, scale=case.head_dim**-0.5, v_head_dim=dim, n_workers=n_workers
                    )
            return 4.0 * seen * case.n_head * case.head_dim

        return run


def bandwidth(memory: list[npt.NDArray[np.int64]]) -> float:
    """Return the bytes per second that one thread per array reads, all at once, in a search for the maximum."""
    threads = [threading.Thread(target=array.max) for array in memory]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(array.nbytes for array in memory) / (time.perf_counter() - begin)


class Timed:
    """A case with one type of cache, and the seconds per layer of each round."""

    def __init__(self, case: Case, kv_type: str, used: kernels.KernelSet, n_workers: int) -> None:
        self.layers = Layers(case, kv_type)
        self._run = self.layers.pass_over(used, n_workers)
        self.times: list[float] = []
        self.n_operations = self._run()

    def again(self) -> None:
        begin = time.perf_counter()
        self._run()
        self.times.append((time.perf_counter() - begin) / len(self.layers.layers))

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--kv-dtype", choices=get_args(CacheDType), metavar="TYPE", default="f16")
    parser.add_argument("--beside", choices=get_args(CacheDType), metavar="TYPE", help="alternate with this type")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", choices=kernels.supported_isas(), default=kernels.supported_isas()[-1])
    parser.add_argument("-k", "--only", default="", help="run only cases whose name contains this")
    options = parser.parse_args()
    print(f"{options.isa}, {options.kv_dtype} cache, {options.threads} threads")
    head = f"{'':45} {'us/layer':>9} {'GFLOP/s':>8} {'GB/s':>6} {'limit':>6} {'time/limit':>10}"
    print(f"{head} {'time/' + options.beside:>10}" if options.beside else head)
    memory = [np.ones(int(POOL_BYTES) // 8 // options.threads, np.int64) for _ in range(options.threads)]
    used = kernels.KernelSet(options.isa)
    for case in CASES:
        if options.only not in case.name:
            continue
        types = [options.kv_dtype, *([options.beside] if options.beside else [])]
        timed = [Timed(case, kv_type, used, options.threads) for kv_type in types]
        limits = []
        for _ in range(options.rounds):
            limits.append(bandwidth(memory))
            for each in timed:
                each.again()
        one, limit = timed[0], statistics.median(limits)
        line = f"{case.name:45} {one.seconds * 1e6:9.1f} {one.n_operations / one.seconds / 1e9:8.1f}"
        if case.n_rows == 1:
            reached = one.layers.read_bytes / one.seconds
            line += f" {reached / 1e9:6.1f} {limit / 1e9:6.1f} {limit / reached:10.2f}"
        if options.beside:
            ratio = statistics.median(a / b for a, b in zip(one.times, timed[1].times, strict=True))
            line = f"{line:88} {ratio:10.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
