"""CUDA kernels (native/cuda), run on the CPU with the threads of a block in three orders.  Oracle: NumPy."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from emulated_kernels import aligned, emulated_kernels
from quire._native.quant import dequantize, quantize

Array = npt.NDArray[np.float32]
BASE, EPS = 10000.0, 1e-5


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
    return emulated_kernels(tmp_path_factory.mktemp("cuda"), "tests/native/cuda_kernels.cpp")


def attended(q: Array, k: Array, v: Array, slots: list[int], cap: float, sinks: Array | None) -> Array:
    """Compute the attention of one row with NumPy: q [n_head, d], pools [n_slots, n_kv_head, d]."""
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
        (128, "f16", 4, 7, 1, 0.0, True),  # seven heads in blocks of four and three
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


class PromptArgs(ctypes.Structure):
    """``PromptArgs`` of native/cuda/prompt_attention.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v")),
        *((name, ctypes.c_size_t) for name in ("k_token_bytes", "v_token_bytes")),
        *((name, ctypes.c_void_p) for name in ("tables", "spans", "sinks", "out")),
        *((name, ctypes.c_int) for name in ("n_blocks", "n_head", "n_kv_head", "stream_rows")),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap")),
    )


@pytest.mark.parametrize(
    ("head_dim", "dtype", "n_head", "n_kv_head", "cap", "has_sinks", "window"),
    [
        (64, "f16", 2, 1, 0.0, True, 1000),
        (128, "bf16", 1, 1, 5.0, False, 1000),
        (128, "f16", 2, 2, 0.0, False, 40),  # a sliding window
    ],
)
def test_prompts_follow_block_tables(
    kernels: ctypes.CDLL,
    head_dim: int,
    dtype: str,
    n_head: int,
    n_kv_head: int,
    cap: float,
    has_sinks: bool,
    window: int,
) -> None:
    random = np.random.default_rng(head_dim)
    n_rows, done = (70, 20), (33, 0)  # rows of two streams, after cached tokens
    stream_rows, n_blocks = max(n_rows), 4
    tables = random.permutation(2 * n_blocks).reshape(2, n_blocks).astype(np.int32)
    pools = random.standard_normal((2, tables.size * 32, n_kv_head, head_dim)).astype(np.float32)
    stored = (
        pools.astype(np.float16).view(np.uint16) if dtype == "f16" else (pools.view(np.uint32) >> 16).astype(np.uint16)
    )
    pools = (
        stored.view(np.float16).astype(np.float32)
        if dtype == "f16"
        else (stored.astype(np.uint32) << 16).view(np.float32)
    )
    spans = np.zeros((2, stream_rows, 2), np.int32)  # nothing for the rows that are missing
    for s in range(2):
        for i in range(n_rows[s]):
            first = max(0, done[s] + i + 1 - window)
            spans[s, i] = first, done[s] + i + 1 - first
        seen = tables[s].repeat(32) * 32 + np.tile(np.arange(32), n_blocks)
        stored[:, seen[done[s] + n_rows[s] :]] = 0x7FFF  # not a number where nothing was written
    kept = [aligned(x) for x in stored]
    q = random.standard_normal((2, stream_rows, n_head, head_dim)).astype(np.float32)
    sinks = random.standard_normal(n_head).astype(np.float32) if has_sinks else None

    def run(of: slice, order: int) -> Array:
        rows, seen = np.ascontiguousarray(q[:, of]), np.ascontiguousarray(spans[:, of])
        out = np.full_like(rows, np.nan)
        args = PromptArgs(
            rows.ctypes.data, kept[0].ctypes.data, kept[1].ctypes.data, *[n_kv_head * head_dim * 2] * 2,
            tables.ctypes.data, seen.ctypes.data, None if sinks is None else sinks.ctypes.data, out.ctypes.data,
            n_blocks, n_head, n_kv_head, rows.shape[1], head_dim**-0.5, cap,
        )  # fmt: skip
        assert kernels.cuda_attend_prompt(ctypes.byref(args), head_dim, int(dtype == "bf16"), 2, order) == 0
        return out

    found = run(slice(None), 0)
    for s, row in ((0, 0), (0, 15), (0, 31), (0, 63), (0, 64), (0, 69), (1, 0), (1, 19)):
        first, n = spans[s, row]
        slots = [int(tables[s, t // 32]) * 32 + t % 32 for t in range(first, first + n)]
        expected = attended(q[s, row], *pools, slots, cap, sinks)
        np.testing.assert_allclose(found[s, row], expected, atol=4e-3 if dtype == "f16" else 3e-2)
    assert (found[1, n_rows[1] :] == 0).all()
    for order in (1, 2):
        np.testing.assert_array_equal(run(slice(None), order), found)
    # A row's bits do not depend on how the prompt is cut.
    for of in (slice(0, 1), slice(17, 40), slice(60, 70)):
        np.testing.assert_array_equal(run(of, 0), found[:, of])


class HeadsArgs(ctypes.Structure):
    """``HeadsArgs`` of native/cuda/cache_heads.cuh."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in (
                "q",
                "k",
                "v",
                "k_pool",
                "v_pool",
                "slots",
                "positions",
                "q_weight",
                "k_weight",
                "factors",
                "out",
            )
        ),
        *((name, ctypes.c_longlong) for name in ("q_row", "k_row", "v_row")),
        *((name, ctypes.c_size_t) for name in ("k_token_bytes", "v_token_bytes")),
        *(
            (name, ctypes.c_int)
            for name in ("n_head", "n_kv_head", "head_dim", "n_dims", "norms_q", "norms_k", "halves", "is_bf16")
        ),
        *((name, ctypes.c_float) for name in ("eps", "freq_scale", "magnitude")),
        ("octaves", ctypes.c_double),
    )


def turned(x: Array, weight: Array | None, positions: Array, n_dims: int, halves: bool, factors: Array | None) -> Array:
    """Norm and rotate heads [rows, heads, d] (Su et al. 2021), at half of their positions, scaled by 1.5."""
    y = x.astype(np.float64)
    if weight is not None:
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + EPS) * weight
    frequencies = BASE ** (-np.arange(0, n_dims, 2) / n_dims) / (1 if factors is None else factors)
    angles = positions[:, None, None] * frequencies * 0.5
    cosine, sine = 1.5 * np.cos(angles), 1.5 * np.sin(angles)
    half = n_dims // 2
    first, second = (slice(0, half), slice(half, n_dims)) if halves else (slice(0, n_dims, 2), slice(1, n_dims, 2))
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = a * cosine - b * sine, a * sine + b * cosine
    return y.astype(np.float32)


@pytest.mark.parametrize(
    ("head_dim", "n_dims", "halves", "dtype", "normed"),
    [(128, 128, True, "f16", True), (64, 48, False, "bf16", False), (80, 20, True, "f16", True)],
)
def test_heads_are_normed_rotated_and_cached(
    kernels: ctypes.CDLL, head_dim: int, n_dims: int, halves: bool, dtype: str, normed: bool
) -> None:
    random = np.random.default_rng(head_dim)
    n_rows, n_head, n_kv_head, n_slots = 3, 5, 2, 70
    # Like the result of a merged product: the rows of q, k and v are parts of longer rows.
    whole = random.standard_normal((n_rows, (n_head + 2 * n_kv_head) * head_dim)).astype(np.float32)
    ends = np.cumsum([0, n_head, n_kv_head, n_kv_head]) * head_dim
    q, k, v = (whole[:, a:b].reshape(n_rows, -1, head_dim) for a, b in pairwise(ends))
    weights = [random.standard_normal(head_dim).astype(np.float32) if normed else None for _ in range(2)]
    factors = random.uniform(0.5, 4, n_dims // 2).astype(np.float32) if normed else None
    slots, positions = np.array([65, 3, 31], np.int64), np.array([0, 3, 4321], np.int32)
    for order in range(3):
        out = np.full((n_rows, n_head, head_dim), np.nan, np.float32)
        pools = [np.full((n_slots, n_kv_head, head_dim), 0x7FFF, np.uint16) for _ in range(2)]
        address = [None if x is None else x.ctypes.data for x in (*weights, factors)]
        args = HeadsArgs(
            *(whole.ctypes.data + int(end) * 4 for end in ends[:3]), *(pool.ctypes.data for pool in pools),
            slots.ctypes.data, positions.ctypes.data, *address, out.ctypes.data, *[whole.shape[1]] * 3,
            *[n_kv_head * head_dim * 2] * 2, n_head, n_kv_head, head_dim, n_dims, int(normed), int(normed), int(halves),
            int(dtype == "bf16"), EPS, 0.5, 1.5, -2 / n_dims * np.log2(BASE),
        )  # fmt: skip
        kernels.cuda_cache_heads(ctypes.byref(args), n_rows, order)
        np.testing.assert_allclose(out, turned(q, weights[0], positions, n_dims, halves, factors), atol=2e-3)
        step = {"f16": 2e-3, "bf16": 2e-2}[dtype]
        for pool, expected in zip(pools, (turned(k, weights[1], positions, n_dims, halves, factors), v), strict=True):
            kept = pool.view(np.float16) if dtype == "f16" else (pool.astype(np.uint32) << 16).view(np.float32)
            np.testing.assert_allclose(kept[slots], expected, atol=step, rtol=step)
            assert (np.delete(pool, slots, axis=0) == 0x7FFF).all()  # nothing else is written


class ProductArgs(ctypes.Structure):
    """``ProductArgs`` of native/cuda/row_product.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("matrix", "second", "x", "norm", "added", "out")),
        ("row_bytes", ctypes.c_size_t),
        *((name, ctypes.c_int) for name in ("n_in", "n_out", "is_normed", "gate")),
        ("eps", ctypes.c_float),
    )


ROW_TYPES = ["q4_k", "q6_k", "q8_0", "q4_0", "q5_k", "f16", "bf16"]  # in the order of cuda_multiply_row


@pytest.mark.parametrize("dtype", ROW_TYPES)
@pytest.mark.parametrize(
    ("n_in", "normed", "gate", "added"),
    [(1280, True, 0, False), (512, False, 0, True), (1024, True, 1, False), (256, False, 2, True)],
)
def test_a_row_is_multiplied(kernels: ctypes.CDLL, dtype: str, n_in: int, normed: bool, gate: int, added: bool) -> None:
    random = np.random.default_rng(n_in)
    n_out = 19
    matrices = [
        quantize(random.standard_normal((n_out, n_in)).astype(np.float32), dtype) for _ in range(2 if gate else 1)
    ]
    stored = [aligned(m.numpy().reshape(-1).view(np.uint16)) for m in matrices]
    x, norm, more = (random.standard_normal(n).astype(np.float32) * 3 for n in (n_in, n_in, n_out))
    row = x.astype(np.float64)
    if normed:
        row = row / np.sqrt((row * row).mean() + EPS) * norm
    is_wide = dtype in ("f16", "bf16")
    if not is_wide:  # the kernel rounds to 8 bits in blocks of 32
        blocks = row.reshape(-1, 32)
        steps = np.abs(blocks).max(1, keepdims=True) / 127
        row = (np.round(blocks / steps) * steps).reshape(-1)
    made = [dequantize(m).astype(np.float64) @ row for m in matrices]
    expected = made[0]
    if gate:
        g = made[0]
        half = g / (1 + np.exp(-g)) if gate == 1 else 0.5 * g * (1 + np.tanh(0.7978845608 * (g + 0.044715 * g**3)))
        expected = half * made[1]
    expected = expected + (more if added else 0)
    for order in range(3):
        out = np.full(n_out, np.nan, np.float32)
        args = ProductArgs(
            stored[0].ctypes.data, stored[1].ctypes.data if gate else None, x.ctypes.data, norm.ctypes.data if normed else None,
            more.ctypes.data if added else None, out.ctypes.data, stored[0].nbytes // n_out, n_in, n_out, int(normed), gate, EPS,
        )  # fmt: skip
        kernels.cuda_multiply_row(ctypes.byref(args), ROW_TYPES.index(dtype), 2, order)
        # A number between two codes may be rounded either way.
        np.testing.assert_allclose(out, expected, atol=(1e-5 if is_wide else 2e-3) * np.abs(expected).max())
