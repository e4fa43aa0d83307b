"""Attention to blocks that an indexer picks for each head: NumPy against the kernels, in CPU programs and ggml's graphs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from quire._native import graph
from quire._native.graph import CacheSpec, Trace, Tracer
from quire.errors import ShapeError, UnsupportedError
from test_attention_kinds import N_KV_HEAD, attention, heads_of, run
from trace_bench import N_VOCAB, Bench

Array = npt.NDArray[np.float32]
DIM, LENGTHS = 8, [3, 170, 64, 1]
LAYERS = [CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM), CacheSpec.latent(rank=DIM - 1, n_rot=1)]


def seen_by(iq: Array, ik: Array, n_picked: int, n_local: int, block: int) -> npt.NDArray[np.bool_]:
    """Return ``[heads, n, n]`` for one sequence."""
    n = len(ik)
    owner = np.arange(n) // block
    seen = np.zeros((iq.shape[1], n, n), bool)
    for head in range(iq.shape[1]):
        for i in range(n):
            scores = np.array([(ik[owner == b] @ iq[i, head]).max() for b in range(owner[i])] + [np.inf])
            scores[max(0, owner[i] + 1 - n_local) :] = np.inf
            chosen = np.argsort(-scores, kind="stable")[:n_picked]
            seen[head, i] = np.isin(owner, chosen) & (np.arange(n) <= i)
    return seen


def picking(n_picked: int, n_local: int, block: int, index_heads: int) -> tuple[Trace, Array, list[int]]:
    """Return a trace, what NumPy finds, and the tokens.

    The indexer's keys are whole numbers of which the largest is 127, so that caches of all types store them exactly.
    """
    bench = Bench(tracer=Tracer(LAYERS))
    (q, k, v), numbers, tokens = heads_of(bench, sum(LENGTHS))
    table = np.where(np.arange(DIM) == 2, 127, np.round(40 * bench.array(N_VOCAB, DIM)).clip(-99, 99))
    table = table.astype(np.float32)
    ik = table[bench.tokens]
    index_k = graph.embed(bench.tracer.tokens, bench.weight(table)).heads(1)
    index_q, iq = bench.value(index_heads, DIM)
    picked = graph.pick_blocks(1, index_q, index_k, block=block, n_picked=n_picked, n_local=n_local)
    y = graph.attend(0, q, k, v, scale=0.3, picked=picked).merge_heads()
    trace = bench.tracer.finish_vectors(graph.select_rows(y, bench.tracer.logit_rows))
    expected, first, together = [], 0, numbers[0].shape[1] // index_heads
    for n in LENGTHS:
        rows = slice(first, first + n)
        seen = seen_by(iq[rows], ik[rows], n_picked, n_local, block)
        found = [
            attention(numbers[0][rows], numbers[1][rows], numbers[2][rows], seen[h // together], 0.3)[:, h]
            for h in range(numbers[0].shape[1])
        ]
        expected.append(np.stack(found, 1).reshape(n, -1))
        first += n
    return trace, np.concatenate(expected), tokens


@pytest.mark.parametrize(
    ("kernels", "kv_dtype"), [("stock", "f32"), ("stock", "f16"), ("cpu", "f32"), ("cpu", "f16"), ("cpu", "q8_0")]
)
@pytest.mark.parametrize(
    ("n_picked", "n_local", "block", "index_heads"), [(2, 1, 32, 2), (3, 2, 32, 1), (1, 1, 64, 2), (9, 1, 32, 2)]
)
def test_heads_attend_to_their_picked_blocks(
    n_picked: int, n_local: int, block: int, index_heads: int, kernels: str, kv_dtype: str
) -> None:
    trace, expected, tokens = picking(n_picked, n_local, block, index_heads)
    found = run(trace, LENGTHS, tokens, kernels, kv_dtype)
    np.testing.assert_allclose(found, expected, atol=2e-5 if kv_dtype == "f32" else 0.04)


def test_a_cache_of_few_bits_is_refused() -> None:
    bench = Bench(tracer=Tracer([CacheSpec(n_kv_head=1, head_dim=32), CacheSpec.latent(rank=32, n_rot=0)]))
    q, one = bench.value(2, 32)[0], bench.value(1, 32)[0]
    picked = graph.pick_blocks(1, bench.value(1, 32)[0], one, block=32, n_picked=2, n_local=1)
    y = graph.attend(0, q, one, one, scale=0.3, picked=picked).merge_heads()
    trace = bench.tracer.finish_vectors(graph.select_rows(y, bench.tracer.logit_rows))
    with pytest.raises(UnsupportedError, match="q4_0"):
        run(trace, [3], [1, 2, 3], "cpu", "q4_0")


def test_layers_may_be_left_unused() -> None:
    tracer = Tracer(LAYERS)
    tracer.leave_unused(1)
    for layer in (1, 2, -1):
        with pytest.raises(ShapeError, match=f"layer {layer}"):
            tracer.leave_unused(layer)


def test_picked_blocks_are_checked() -> None:
    bench = Bench(tracer=Tracer(LAYERS))
    (q, k, v), _, _ = heads_of(bench, 3)
    (one, _), (three, _) = bench.value(1, DIM), bench.value(3, DIM)
    for layer, keys in ((0, one), (1, k)):
        with pytest.raises(ShapeError, match=f"do not fit layer {layer}"):
            graph.pick_blocks(layer, three, keys, block=32, n_picked=2, n_local=1)
    with pytest.raises(ShapeError, match="blocks of 48 tokens"):
        graph.pick_blocks(1, three, one, block=48, n_picked=2, n_local=1)
    for n_picked, n_local in ((2, 0), (2, 3), (1 << 24, 1)):
        with pytest.raises(ShapeError, match=f"n_local {n_local} and n_picked {n_picked}"):
            graph.pick_blocks(1, three, one, block=32, n_picked=n_picked, n_local=n_local)
    picked = graph.pick_blocks(1, three, one, block=32, n_picked=2, n_local=1)
    with pytest.raises(ShapeError, match="heads divisible by 3"):
        graph.attend(0, q, k, v, scale=1.0, picked=picked)
