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
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
from counting_device import CountingDevice, counting_device
from quire._native import graph
from quire._native.core import Tensor, find_device
from quire._native.quant import dequantize, quantize
from quire.parity.gate import case_names
from quire.parity.gate_process import compare
from small_model import BASE, EPS, N_VOCAB, VARIANTS, Variant, numpy_forward
from test_devices import BYTES_OF_TOKEN, LENGTHS, STEPS, Sequences, filled, tokens_of

Array = npt.NDArray[np.float32]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def counting() -> Iterator[CountingDevice]:
    device = counting_device()
    with device.own_operations():
        yield device


@pytest.mark.parametrize("lacks", [(), ("FLASH_ATTN_EXT",)])
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_equal_numpy(name: str, lacks: tuple[str, ...], counting: CountingDevice) -> None:
    with counting.without(*lacks):
        check_steps(name, counting)


def check_steps(name: str, counting: CountingDevice) -> None:
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
    assert (counting.launches("SET_ROWS") == 0) == (name != "latent")


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
    for n, by_stretch in ((40, True), (2, False), (17, True), (1, False), (3, False)):
        counting.reset()
        at = made.done[0]
        found = made.step([(0, n)])[0]
        np.testing.assert_allclose(found, expected[at : at + n], atol=1e-4 * np.abs(expected).max())
        assert (counting.launches("FLASH_ATTN_EXT") > 0) == by_stretch


def normed_heads(layout: str, dim: int, factors: bool) -> graph.Trace:
    """A layer whose heads are normed and partly turned, and whose weights lie on the CPU."""
    random = np.random.default_rng(7)

    def w(name: str, *shape: int) -> graph.Weight:
        values = random.standard_normal(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3) + (len(shape) == 1)
        return graph.Weight(name, Tensor.from_numpy(values.astype(np.float32)))

    tracer = graph.Tracer([graph.CacheSpec(n_kv_head=2, head_dim=24)])
    rope = graph.RopeSpec(
        n_dims=16, layout=layout, freq_base=BASE, factors=w("factors", 8) if factors else None  # type: ignore[arg-type]
    )
    x = graph.embed(tracer.tokens, w("embd", N_VOCAB, dim))
    h = graph.rms_norm(x, w("norm", dim), EPS)
    q, k, v = (graph.linear(h, w(name, n * 24, dim)).heads(n) for name, n in (("q", 4), ("k", 2), ("v", 2)))
    q = graph.rope(graph.rms_norm(q, w("q_norm", 24), EPS), tracer.positions, rope)
    k = graph.rope(graph.rms_norm(k, w("k_norm", 24), EPS), tracer.positions, rope)
    x = x + graph.linear(graph.attend(0, q, k, v, scale=0.2).merge_heads(), w("o", dim, 96))
    return tracer.finish(graph.linear(graph.select_rows(x, tracer.logit_rows), w("head", N_VOCAB, dim)))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dim", [512, 64])
@pytest.mark.parametrize(("layout", "factors"), [("half", True), ("interleaved", False)])
def test_products_of_the_same_rows_are_one(
    layout: str, factors: bool, dim: int, own: bool, counting: CountingDevice
) -> None:
    """Of matrices whose rows ggml does not pad; numbers are those of Quire's own kernels on the CPU."""
    with nullcontext() if own else counting.without("CUSTOM"):
        made = Sequences(Variant(), counting, traced=normed_heads(layout, dim, factors))
        cpu = Sequences(Variant(), SimpleNamespace(device=find_device("CPU")), traced=normed_heads(layout, dim, factors))  # type: ignore[arg-type]
        for sequences in (made, cpu):
            for i, n in enumerate(LENGTHS):
                sequences.add(tokens_of(n, i))
        for step in STEPS:
            counting.reset()
            for found, expected in zip(made.step(step), cpu.step(step), strict=True):
                np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
            assert counting.launches("MUL_MAT") == (3 if dim == 512 else 5)
            assert (counting.launches("ROPE"), counting.launches("RMS_NORM")) == ((0, 1) if own else (2, 3))


def quantized_layer(dtype: str) -> graph.Trace:
    """As models have it, with quantized matrices."""
    random = np.random.default_rng(5)

    def norm(name: str) -> graph.Weight:
        return graph.Weight(name, Tensor.from_numpy(random.uniform(0.5, 1.5, 512).astype(np.float32)))

    def matrix(name: str, n_out: int, n_in: int, of: str = dtype) -> graph.Weight:
        return graph.Weight(name, quantize(random.standard_normal((n_out, n_in)).astype(np.float32) * n_in**-0.5, of))

    tracer = graph.Tracer([graph.CacheSpec(n_kv_head=2, head_dim=64)])
    rope = graph.RopeSpec(n_dims=64, layout="half", freq_base=BASE)
    table = Tensor.from_numpy(random.standard_normal((N_VOCAB, 512)).astype(np.float32))
    x = graph.embed(tracer.tokens, graph.Weight("embd", table))
    h = graph.rms_norm(x, norm("norm"), EPS)
    q, k, v = (graph.linear(h, matrix(name, n * 64, 512)).heads(n) for name, n in (("q", 4), ("k", 2), ("v", 2)))
    q, k = (graph.rope(y, tracer.positions, rope) for y in (q, k))
    x = x + graph.linear(graph.attend(0, q, k, v, scale=0.125).merge_heads(), matrix("o", 512, 256))
    h = graph.rms_norm(x, norm("ffn_norm"), EPS)
    gated = graph.glu(graph.linear(h, matrix("gate", 768, 512)), graph.linear(h, matrix("up", 768, 512)), "silu")
    x = graph.linear(gated, matrix("down", 512, 768)) + x
    y = graph.rms_norm(graph.select_rows(x, tracer.logit_rows), norm("last"), EPS)
    return tracer.finish(graph.linear(y, matrix("head", N_VOCAB, 512, "q6_k")))


@pytest.mark.parametrize("dtype", ["q4_k", "q8_0"])
def test_products_of_one_row_take_what_stands_around_them(dtype: str, counting: CountingDevice) -> None:
    """Numbers are those of Quire's own kernels on the CPU, which round rows to 8 bits."""
    options: dict[str, object] = {"max_rows": 96, "kv_dtype": "f16"}
    made = Sequences(Variant(), counting, traced=quantized_layer(dtype), **options)  # type: ignore[arg-type]
    cpu = Sequences(Variant(), SimpleNamespace(device=find_device("CPU")), traced=quantized_layer(dtype), **options)  # type: ignore[arg-type]
    for sequences in (made, cpu):
        sequences.add(tokens_of(60, 1))
    for n in (40, 1, 3, 1):
        counting.reset()
        found, expected = made.step([(0, n)])[0], cpu.step([(0, n)])[0]
        assert np.linalg.norm(found - expected) < 2e-2 * np.linalg.norm(expected)
        if n == 1:  # q, k and v; heads; attention; its output and the sum; gate and up; down and the sum; the head
            assert counting.launches("CUSTOM") == 7
            assert counting.launches("MUL_MAT") == counting.launches("ADD") == counting.launches("GLU") == 0
            assert counting.launches("RMS_NORM") == 1  # the last one, which is the hidden state
        else:  # q, k and v; the output; gate and up; down; the head
            assert (counting.launches("MUL_MAT"), counting.launches("GLU")) == (5, 1)


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


class HeadsArgs(ctypes.Structure):
    """``HeadsArgs`` of native/cuda/cache_heads.cuh."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("q", "k", "v", "k_pool", "v_pool", "slots", "positions", "q_weight", "k_weight", "factors", "out")
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
    """Heads [rows, heads, d], normed and turned (Su et al. 2021), at half of their positions, 1.5 times as long."""
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
def test_heads_are_normed_turned_and_cached(
    kernels: ctypes.CDLL, head_dim: int, n_dims: int, halves: bool, dtype: str, normed: bool
) -> None:
    random = np.random.default_rng(head_dim)
    n_rows, n_head, n_kv_head, n_slots = 3, 5, 2, 70
    # As a merged product gives them: the rows of q, k and v are parts of longer ones.
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


@pytest.mark.parametrize("dtype", ["q4_k", "q6_k", "q8_0"])
@pytest.mark.parametrize(("n_in", "normed", "gate", "added"), [(1280, True, 0, False), (512, False, 0, True), (1024, True, 1, False), (256, False, 2, True)])
def test_a_row_is_multiplied(kernels: ctypes.CDLL, dtype: str, n_in: int, normed: bool, gate: int, added: bool) -> None:
    random = np.random.default_rng(n_in)
    n_out = 19
    matrices = [quantize(random.standard_normal((n_out, n_in)).astype(np.float32), dtype) for _ in range(2 if gate else 1)]
    stored = [aligned(m.numpy().reshape(-1).view(np.uint16)) for m in matrices]
    x, norm, more = (random.standard_normal(n).astype(np.float32) * 3 for n in (n_in, n_in, n_out))
    row = x.astype(np.float64)
    if normed:
        row = row / np.sqrt((row * row).mean() + EPS) * norm
    # As it is rounded: to 8 bits in blocks of 32.
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
        kernels.cuda_multiply_row(ctypes.byref(args), ["q4_k", "q6_k", "q8_0"].index(dtype), 2, order)
        # A number between two codes may go either way.
        np.testing.assert_allclose(out, expected, atol=2e-3 * np.abs(expected).max())


def aligned(x: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """A copy whose first byte is at a multiple of 64."""
    room = np.empty(x.nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    made = room[begin : begin + x.nbytes].view(np.uint16).reshape(x.shape)
    made[...] = x
    return made


def test_the_gate_agrees(counting: CountingDevice) -> None:
    """Of all operations and tiny models: what stands before a kernel of Quire's own, and behind it, is that of models."""
    counting.reset()
    results = [compare(name, counting.device) for name in case_names()]
    assert [result for result in results if result.state != "agrees"] == []
    assert counting.launches("CUSTOM") > 300
