"""Attention by block tables, a kernel of Quire's own on devices that have it: in steps on the device that counts, which computes
it by the CPU, and the kernels' source themselves, run on the CPU."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from counting_device import CountingDevice, counting_device
from small_model import VARIANTS, Variant, numpy_forward
from test_devices import BYTES_OF_TOKEN, LENGTHS, STEPS, Sequences, filled, tokens_of

Array = npt.NDArray[np.float32]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def counting() -> Iterator[CountingDevice]:
    device = counting_device()
    with device.own_operations():
        yield device


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_equal_numpy(name: str, counting: CountingDevice) -> None:
    made = Sequences(VARIANTS[name], counting)
    counting.reset()
    expected = []
    for i, n in enumerate(LENGTHS):
        made.add(tokens_of(n, i))
        expected.append(numpy_forward(made.weights, VARIANTS[name], made.tokens[i]))
    for step in STEPS:
        first = [made.done[s] for s, _ in step]
        for (s, n), at, found in zip(step, first, made.step(step), strict=True):
            np.testing.assert_allclose(found, expected[s][at : at + n], atol=1e-4 * np.abs(expected[s]).max())
    assert (counting.launches("CUSTOM") > 0) == (name != "latent")  # whose values lie in its keys


@pytest.mark.parametrize(("n_streams", "n_tokens"), [(1, 1000), (32, 250)])
def test_a_step_reads_what_its_rows_see_and_no_more(n_streams: int, n_tokens: int, counting: CountingDevice) -> None:
    made = filled(counting, n_streams, n_tokens, 1024)
    counting.reset()
    made.step([(i, 1) for i in range(n_streams)])
    counts = counting.counts()
    assert (counts.computes, counts.uploads, counts.downloads, counts.synchronizations) == (1, 1, 1, 1)
    assert counts.cache_bytes == n_streams * n_tokens * BYTES_OF_TOKEN
    assert counting.launches("FLASH_ATTN_EXT") == 0


def test_drafts_are_rows_of_their_own(counting: CountingDevice) -> None:
    """Few rows of a sequence follow its table; many look at the same stretch of the pool."""
    made = Sequences(Variant(), counting)
    made.add(tokens_of(90, 0))
    expected = numpy_forward(made.weights, Variant(), made.tokens[0])
    for n, has_own in ((40, False), (2, True), (17, False), (1, True), (3, True)):
        counting.reset()
        at = made.done[0]
        found = made.step([(0, n)])[0]
        np.testing.assert_allclose(found, expected[at : at + n], atol=1e-4 * np.abs(expected).max())
        assert (counting.launches("CUSTOM") > 0) == has_own


class Args(ctypes.Structure):
    """``PagedArgs`` of native/cuda/paged_attention.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v")),
        *((name, ctypes.c_size_t) for name in ("k_token_bytes", "v_token_bytes")),
        *((name, ctypes.c_void_p) for name in ("tables", "spans", "sinks", "out", "sums", "stats")),
        *((name, ctypes.c_int) for name in ("n_blocks", "n_head", "n_kv_head", "n_splits")),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap")),
    )


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None or platform.machine() != "x86_64" or sys.platform != "linux":
        pytest.skip("the kernels' emulator needs a C++ compiler, fibers, and halves")
    library = tmp_path_factory.mktemp("cuda") / "kernels.so"
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-clobbered", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{ROOT / 'native'}", str(ROOT / "tests/native/cuda_kernels.cpp"), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def attended(q: Array, k: Array, v: Array, slots: list[int], cap: float, sinks: Array | None) -> Array:
    """Of one row, q [n_head, d] and pools [n_slots, n_kv_head, d], by NumPy."""
    n_head, d = q.shape
    out = np.zeros((n_head, d))
    for h in range(n_head if slots else 0):
        of_kv = h // (n_head // k.shape[1])
        scores = k[slots, of_kv].astype(np.float64) @ q[h] / np.sqrt(d)
        if cap > 0:
            scores = cap * np.tanh(scores / cap)
        top = max(scores.max(), -np.inf if sinks is None else sinks[h])
        odds = np.exp(scores - top)
        whole = odds.sum() + (0 if sinks is None else np.exp(sinks[h] - top))
        out[h] = odds @ v[slots, of_kv] / whole
    return out.astype(np.float32)


@pytest.mark.parametrize(
    ("head_dim", "dtype", "together", "n_head", "n_kv_head", "cap", "has_sinks"),
    [
        (64, "f16", 1, 3, 3, 0.0, False),
        (64, "bf16", 2, 4, 2, 5.0, True),
        (128, "f16", 4, 7, 1, 0.0, True),  # four heads of seven, and the other three
        (256, "f16", 2, 2, 1, 0.0, False),
    ],
)
def test_the_kernels_equal_numpy_in_any_order_of_threads(
    kernels: ctypes.CDLL,
    head_dim: int,
    dtype: str,
    together: int,
    n_head: int,
    n_kv_head: int,
    cap: float,
    has_sinks: bool,
) -> None:
    random = np.random.default_rng(head_dim)
    spans = [(0, 1), (5, 70), (0, 0), (31, 33), (3, 130 if head_dim < 256 else 65)]
    n_blocks = max(first + n for first, n in spans) // 32 + 1
    tables = random.permutation(len(spans) * n_blocks).reshape(len(spans), n_blocks).astype(np.int32)
    n_slots = tables.size * 32
    pools = [random.standard_normal((n_slots, n_kv_head, head_dim)).astype(np.float32) for _ in range(2)]
    if dtype == "f16":
        stored = [pool.astype(np.float16).view(np.uint16) for pool in pools]
        pools = [x.view(np.float16).astype(np.float32) for x in stored]
    else:
        stored = [(pool.view(np.uint32) >> 16).astype(np.uint16) for pool in pools]
        pools = [(x.astype(np.uint32) << 16).view(np.float32) for x in stored]
    stored = [aligned(x) for x in stored]
    q = random.standard_normal((len(spans), n_head, head_dim)).astype(np.float32)
    sinks = random.standard_normal(n_head).astype(np.float32) if has_sinks else None
    flat = np.array(spans, np.int32)
    n_splits = -(-n_blocks * 32 // 64)

    results = []
    for order in range(3):
        out = np.full_like(q, np.nan)
        sums = np.full((len(spans), n_head, n_splits, head_dim), np.nan, np.float32)
        stats = np.full((len(spans), n_head, n_splits, 2), np.nan, np.float32)
        args = Args(
            q.ctypes.data, stored[0].ctypes.data, stored[1].ctypes.data, *[n_kv_head * head_dim * 2] * 2,
            tables.ctypes.data, flat.ctypes.data, None if sinks is None else sinks.ctypes.data, out.ctypes.data,
            sums.ctypes.data, stats.ctypes.data, n_blocks, n_head, n_kv_head, n_splits, head_dim**-0.5, cap,
        )  # fmt: skip
        assert kernels.cuda_attend(ctypes.byref(args), head_dim, int(dtype == "bf16"), together, len(spans), order) == 0
        results.append(out)
    for row, (first, n) in enumerate(spans):
        slots = [int(tables[row, t // 32]) * 32 + t % 32 for t in range(first, first + n)]
        np.testing.assert_allclose(results[0][row], attended(q[row], *pools, slots, cap, sinks), atol=2e-5)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def aligned(x: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """A copy whose first byte is at a multiple of 64."""
    room = np.empty(x.nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    made = room[begin : begin + x.nbytes].view(np.uint16).reshape(x.shape)
    made[...] = x
    return made
