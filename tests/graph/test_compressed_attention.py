"""Compressed attention: NumPy against the kernels, in CPU programs and in ggml's graphs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from quire._native import graph
from quire._native.graph import CacheSpec, Trace, Tracer
from quire.errors import ShapeError, UnsupportedError
from test_attention_kinds import run
from trace_bench import Bench

Array = npt.NDArray[np.float32]
N_HEAD, DIM, INDEX_HEADS, INDEX_DIM, WINDOW, SCALE = 10, 6, 3, 4, 5, 0.4
LENGTHS = [3, 70, 1, 45]


def means(kv: Array, gate: Array, bias: Array, every: int, overlaps: bool) -> Array:
    """Return a row of each whole window of one sequence."""
    half, rows = kv.shape[1] // 2, []
    gate = gate + np.tile(bias, (len(gate) // every + 1, 1))[: len(gate)]
    for end in range(every, len(kv) + 1, every):
        x, g = kv[end - every : end], gate[end - every : end]
        if overlaps:
            before = slice(max(0, end - 2 * every), end - every)
            x = np.concatenate([kv[before, :half], x[:, half:]])
            g = np.concatenate([gate[before, :half], g[:, half:]])
        odds = np.exp(g - g.max(0))
        rows.append((odds * x).sum(0) / odds.sum(0))
    return np.array(rows, np.float32).reshape(-1, half if overlaps else kv.shape[1])


def compressing(every: int, overlaps: bool, n_picked: int) -> tuple[Trace, Array, list[int]]:
    """Return a trace of attention to compressed rows, what NumPy finds, and the tokens; ``n_picked`` 0: to all."""
    width = 2 if overlaps else 1
    tracer = Tracer(
        [
            CacheSpec.latent(rank=DIM, n_rot=0, window=WINDOW),
            CacheSpec.latent(rank=DIM, n_rot=0, every=every),
            CacheSpec(n_kv_head=1, head_dim=width * DIM, window=width * every),
            *([CacheSpec.latent(rank=INDEX_DIM, n_rot=0, every=every)] if n_picked else []),
        ]
    )
    bench = Bench(tracer=tracer)
    bench.tokens = bench.random.integers(0, 24, sum(LENGTHS)).astype(np.int32)
    (q, q_), (k, k_), (kv, kv_), (gate, gate_) = (
        bench.value(*shape) for shape in ((N_HEAD, DIM), (1, DIM), (width * DIM,), (width * DIM,))
    )
    bias, sinks = bench.array(every, width * DIM), bench.array(N_HEAD)
    rows, picked = graph.compress(2, kv, gate, bench.weight(bias), every=every, overlaps=overlaps), None
    (iq, iq_), (weights, w_) = bench.value(INDEX_HEADS, INDEX_DIM), bench.value(INDEX_HEADS)
    if n_picked:  # by the first numbers of the rows
        index = graph.slice(rows, 0, 0, INDEX_DIM).heads(1)
        picked = graph.pick(3, iq, index, weights, n_picked=n_picked, n_ctx=96)
    y = graph.attend_compressed(0, 1, q, k, rows, scale=SCALE, sinks=bench.weight(sinks), picked=picked)
    trace = tracer.finish_vectors(graph.select_rows(y.merge_heads(), tracer.logit_rows))
    expected, first = [], 0
    for n in LENGTHS:
        here = slice(first, first + n)
        far = means(kv_[here], gate_[here], bias, every, overlaps)
        for i in range(n):
            seen = np.arange((i + 1) // every)
            if n_picked and len(seen) > n_picked:
                scores = w_[first + i] @ np.maximum(iq_[first + i] @ far[seen, :INDEX_DIM].T, 0)
                seen = np.argsort(-scores, kind="stable")[:n_picked]
            near = k_[first + max(0, i + 1 - WINDOW) : first + i + 1, 0]
            keys = np.concatenate([near, far[seen]])
            odds = np.exp(np.concatenate([SCALE * q_[first + i] @ keys.T, sinks[:, None]], 1))
            expected.append((odds / odds.sum(1, keepdims=True))[:, :-1] @ keys)
        first += n
    return trace, np.stack(expected).reshape(len(expected), -1), bench.tokens.tolist()


@pytest.mark.parametrize(("kernels", "kv_dtype"), [("stock", "f32"), ("cpu", "f32"), ("cpu", "f16"), ("cpu", "bf16")])
@pytest.mark.parametrize(
    ("every", "overlaps", "n_picked"), [(4, True, 3), (4, True, 0), (8, False, 0), (32, False, 0), (64, False, 0)]
)
def test_rows_attend_to_compressed_rows(every: int, overlaps: bool, n_picked: int, kernels: str, kv_dtype: str) -> None:
    trace, expected, tokens = compressing(every, overlaps, n_picked)
    found = run(trace, LENGTHS, tokens, kernels, kv_dtype)
    if kv_dtype == "f32":
        np.testing.assert_allclose(found, expected, atol=2e-5)
    else:  # another row may be picked where scores are close
        near = np.abs(found - expected).max(1) < 0.05
        assert near.mean() > (0.9 if n_picked else 0.99)


def pooled(every: int, n_picked: int) -> tuple[Trace, Array, list[int]]:
    """Return a trace of attention to the tokens of picked pools, what NumPy finds, and the tokens."""
    tracer = Tracer(
        [
            CacheSpec.latent(rank=DIM, n_rot=0),
            CacheSpec(n_kv_head=1, head_dim=INDEX_DIM, window=every),
            CacheSpec.latent(rank=INDEX_DIM, n_rot=0, every=every),
        ]
    )
    bench = Bench(tracer=tracer)
    bench.tokens = bench.random.integers(0, 24, sum(LENGTHS)).astype(np.int32)
    (q, q_), (k, k_), (kv, kv_), (gate, gate_) = (
        bench.value(*shape) for shape in ((N_HEAD, DIM), (1, DIM), (INDEX_DIM,), (INDEX_DIM,))
    )
    (iq, iq_), (weights, w_) = bench.value(INDEX_HEADS, INDEX_DIM), bench.value(INDEX_HEADS)
    bias = bench.array(every, INDEX_DIM)
    rows = graph.compress(1, kv, gate, bench.weight(bias), every=every, overlaps=False)
    picked = graph.pick(2, iq, rows.heads(1), weights, n_picked=n_picked, n_ctx=96)
    y = graph.attend_pools(0, q, k, picked, every=every, scale=SCALE)
    trace = tracer.finish_vectors(graph.select_rows(y.merge_heads(), tracer.logit_rows))
    expected, first = [], 0
    for n in LENGTHS:
        here = slice(first, first + n)
        pools = means(kv_[here], gate_[here], bias, every, False)
        for i in range(n):
            n_whole = (i + 1) // every
            scores = w_[first + i] @ np.maximum(iq_[first + i] @ pools[:n_whole].T, 0)
            chosen = np.argsort(-scores, kind="stable")[:n_picked]
            seen = [t for t in range(i + 1) if t // every in chosen or t // every == n_whole]
            keys = k_[first:][seen, 0]
            odds = np.exp(SCALE * q_[first + i] @ keys.T)
            expected.append((odds / odds.sum(1, keepdims=True)) @ keys)
        first += n
    return trace, np.stack(expected).reshape(len(expected), -1), bench.tokens.tolist()


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize(("every", "n_picked"), [(4, 3), (16, 1), (16, 9), (64, 1)])
def test_rows_attend_to_picked_pools(every: int, n_picked: int, kernels: str) -> None:
    trace, expected, tokens = pooled(every, n_picked)
    np.testing.assert_allclose(run(trace, LENGTHS, tokens, kernels, "f32"), expected, atol=2e-5)


def test_a_cache_of_codes_is_refused() -> None:
    trace, _, tokens = compressing(4, True, 0)
    with pytest.raises(UnsupportedError, match="q8_0"):
        run(trace, LENGTHS, tokens, "cpu", "q8_0")


def test_compressed_rows_are_checked() -> None:
    for bad in ({"every": 3}, {"every": 48}, {"every": 4, "window": 8}):
        with pytest.raises(ShapeError, match=r"^\[cache\] layer 0 keeps a row of every"):
            Tracer([CacheSpec.latent(rank=4, n_rot=0, **bad)])  # type: ignore[arg-type]
    near, far = CacheSpec.latent(rank=4, n_rot=0, window=5), CacheSpec.latent(rank=4, n_rot=0, every=4)
    bench = Bench(tracer=Tracer([near, far, CacheSpec(n_kv_head=1, head_dim=4, window=4)]))
    (q, _), (k, _), (rows, _) = bench.value(3, 4), bench.value(1, 4), bench.value(4)
    with pytest.raises(ShapeError, match="layer 2 does not keep K and V of one head for the last 8 tokens"):
        graph.compress(2, rows, rows, bench.weight(bench.array(4, 4)), every=4, overlaps=True)
    with pytest.raises(ShapeError, match="layer 1 keeps compressed rows"):
        graph.attend_latent(1, q, k, scale=1.0)
    for local, compressed, layer in ((1, 1, 1), (0, 0, 0)):
        with pytest.raises(ShapeError, match=f"layer {layer} does not keep"):
            graph.attend_compressed(local, compressed, q, k, rows, scale=1.0)
    with pytest.raises(ShapeError, match="not a result of pick"):
        graph.attend_compressed(0, 1, q, k, rows, scale=1.0, picked=rows)
    for layer in (0, 1, 2):
        with pytest.raises(ShapeError, match=f"layer {layer} does not keep a row of every token"):
            graph.attend_pools(layer, q, k, rows, every=4, scale=1.0)
