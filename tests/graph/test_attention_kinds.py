"""Attention of other kinds than causal over all of the past: NumPy against ggml's operators against our own kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import threads_of
from counting_device import counting_device
from quire._native import graph
from quire._native.core import Tensor, find_device
from quire._native.graph import CacheSpec, Executor, Trace, Tracer
from quire.errors import InternalError, ShapeError
from trace_bench import N_VOCAB, Bench

Array = npt.NDArray[np.float32]
N_HEAD, N_KV_HEAD, DIM = 4, 2, 8


def attention(
    q: Array, k: Array, v: Array, seen: npt.NDArray[np.bool_], scale: float, bias: Array | float = 0.0
) -> Array:
    """q ``[n, heads, d]``, k and v ``[m, kv heads, d]``; ``seen [n, m]``; ``bias [heads, n, m]``."""
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = np.where(seen[None], np.einsum("nhd,mhd->hnm", q, k) * scale + bias, -np.inf)
    odds = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hnm,mhd->nhd", odds / odds.sum(-1, keepdims=True), v)


def blocks_of(lengths: list[int]) -> tuple[list[list[int]], list[int]]:
    """Block tables, and slots of all tokens, of sequences whose blocks follow each other."""
    tables, slots, first = [], [], 1
    for n in lengths:
        tables.append(list(range(first, first + -(-n // 32))))
        slots += [first * 32 + i for i in range(n)]
        first += len(tables[-1])
    return tables, slots


def run(trace: Trace, lengths: list[int], tokens: list[int], kernels: str, kv_dtype: str = "f32") -> Array:
    """Sequences of those lengths in one step; block i + 1 and its followers are sequence i's."""
    executor = Executor(
        trace,
        find_device("cpu"),
        n_blocks=64,
        threads=threads_of(kernels),
        kernels=kernels,
        kv_dtype=kv_dtype,
        max_rows=256,
        max_sequences=256,
    )  # type: ignore[arg-type]
    tables, slots = blocks_of(lengths)
    rows = sum(lengths)
    return executor.run(
        tokens,
        positions=[i for n in lengths for i in range(n)],
        slots=slots,
        logit_rows=list(range(rows)),
        row_begin=np.cumsum([0, *lengths]).tolist(),
        n_kv=lengths,
        tables=tables,
    )


def heads_of(bench: Bench, n_rows: int) -> tuple[list[graph.TraceTensor], list[Array], list[int]]:
    bench.tokens = bench.random.integers(0, 24, n_rows).astype(np.int32)
    made = [bench.value(h, DIM) for h in (N_HEAD, N_KV_HEAD, N_KV_HEAD)]
    return [t for t, _ in made], [a for _, a in made], bench.tokens.tolist()


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("window", [0, 9])
def test_rows_attend_both_ways(window: int, kernels: str) -> None:
    lengths = [3, 70, 1, 33]
    bench = Bench()
    (q, k, v), numbers, tokens = heads_of(bench, sum(lengths))
    y = graph.attend_rows(q, k, v, scale=0.3, window=window).merge_heads()
    trace = bench.tracer.finish_vectors(graph.select_rows(y, bench.tracer.logit_rows))
    found = run(trace, lengths, tokens, kernels)
    first = 0
    for n in lengths:
        rows = slice(first, first + n)
        apart = np.abs(np.arange(n)[:, None] - np.arange(n))
        expected = attention(*(x[rows] for x in numbers), apart <= (window // 2 if window else n), 0.3)
        np.testing.assert_allclose(found[rows], expected.reshape(n, -1), atol=1e-5)
        first += n


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("spec", [{"window": 7}, {"chunk": 40}, {}])
def test_windows_and_chunks(spec: dict[str, int], kernels: str) -> None:
    lengths = [90, 5, 41]
    bench = Bench(tracer=Tracer([CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM, **spec)]))
    (q, k, v), numbers, tokens = heads_of(bench, sum(lengths))
    y = graph.attend(0, q, k, v, scale=0.3).merge_heads()
    found = run(bench.tracer.finish(graph.select_rows(y, bench.tracer.logit_rows)), lengths, tokens, kernels)
    first = 0
    for n in lengths:
        rows, at = slice(first, first + n), np.arange(n)
        seen = at[:, None] >= at
        if "window" in spec:
            seen &= at[:, None] - at < spec["window"]
        if "chunk" in spec:
            seen &= at[:, None] // spec["chunk"] == at // spec["chunk"]
        expected = attention(*(x[rows] for x in numbers), seen, 0.3)
        np.testing.assert_allclose(found[rows], expected.reshape(n, -1), atol=1e-5)
        first += n


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("window", [0, 40])
def test_rows_of_images_see_all_of_them(window: int, kernels: str) -> None:
    """In layers that declare it; the second layer is causal.  Steps begin within a cached image, too."""
    lengths, images = [90, 5, 77], [[(3, 60), (60, 64), (70, 90)], [(0, 5)], []]
    rows = {"n_kv_head": N_KV_HEAD, "head_dim": DIM, "window": window}
    bench = Bench(tracer=Tracer([CacheSpec(**rows, bidirectional_media=True), CacheSpec(**rows)]))
    (q, k, v), numbers, tokens = heads_of(bench, sum(lengths))
    y = [graph.attend(layer, q, k, v, scale=0.3).merge_heads() for layer in (0, 1)]
    trace = bench.tracer.finish(graph.select_rows(graph.concat(y[0], y[1], 0), bench.tracer.logit_rows))
    last = [np.arange(n) for n in lengths]
    for of_sequence, spans in zip(last, images, strict=True):
        for begin, end in spans:
            of_sequence[begin:end] = end - 1
    executor = Executor(
        trace, find_device("cpu"), n_blocks=64, threads=threads_of(kernels), kernels=kernels, kv_dtype="f32",
        max_rows=256, max_sequences=256,
    )  # type: ignore[arg-type]  # fmt: skip
    tables, slots = blocks_of(lengths)
    starts = np.cumsum([0, *lengths])

    def run(firsts: list[int]) -> list[Array]:
        """Run the rows from ``firsts`` on of each sequence."""
        at = [np.arange(first, n) for first, n in zip(firsts, lengths, strict=True)]
        chosen = np.concatenate([start + each for start, each in zip(starts[:-1], at, strict=True)])
        found = executor.run(
            [tokens[i] for i in chosen],
            positions=np.concatenate(at).tolist(),
            slots=[slots[i] for i in chosen],
            logit_rows=list(range(len(chosen))),
            row_begin=np.cumsum([0, *map(len, at)]).tolist(),
            n_kv=lengths,
            tables=tables,
            last_visible=np.concatenate([each[i] for each, i in zip(last, at, strict=True)]).tolist(),
        )
        return np.split(found, np.cumsum([len(each) for each in at])[:-1])

    for firsts in ([0, 0, 0], [65, 2, 76], [80, 4, 1]):
        for found, first, start, n, shown in zip(run(firsts), firsts, starts, lengths, last, strict=False):
            part, at = slice(start, start + n), np.arange(n)
            near = at[:, None] - at < (window or n)
            expected = [attention(*(x[part] for x in numbers), near & (at <= end[:, None]), 0.3) for end in (shown, at)]
            wanted = np.concatenate([each.reshape(n, -1) for each in expected], axis=1)[first:]
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_rows_see_no_more_than_is_cached() -> None:
    for spec, last, message in (
        ({"bidirectional_media": True}, [3, 3, 3], "sees up to 3 of 3"),
        ({"bidirectional_media": True}, [2, 1, 2], "sees up to 1 of 3"),
        ({"bidirectional_media": True}, [2, 2], "does not match"),
    ):
        bench = Bench(tracer=Tracer([CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM, **spec)]))
        (q, k, v), _, tokens = heads_of(bench, 3)
        y = graph.attend(0, q, k, v, scale=0.3).merge_heads()
        trace = bench.tracer.finish(graph.select_rows(y, bench.tracer.logit_rows))
        executor = Executor(trace, find_device("cpu"), n_blocks=4, threads=1)
        with pytest.raises(InternalError, match=message):
            executor.run(
                tokens, positions=[0, 1, 2], slots=[32, 33, 34], logit_rows=[2], row_begin=[0, 3], n_kv=[3],
                tables=[[1]], last_visible=last,
            )  # fmt: skip
    with pytest.raises(ShapeError, match="bidirectional media with chunks"):
        Tracer([CacheSpec(n_kv_head=1, head_dim=8, chunk=8, bidirectional_media=True)])


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("reach", [1, 12, 60])
def test_scores_by_distance(reach: int, both_ways: bool, kernels: str) -> None:
    lengths = [5, 70, 1, 33]
    bench = Bench(tracer=Tracer([CacheSpec() if both_ways else CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM)]))
    (q, k, v), numbers, tokens = heads_of(bench, sum(lengths))
    columns = bench.random.normal(size=(N_HEAD, 2 * reach - 1 if both_ways else reach)).astype(np.float32)
    bias = graph.Weight("bias", Tensor.from_numpy(columns))
    y = (
        graph.attend_rows(q, k, v, scale=0.3, bias=bias)
        if both_ways
        else graph.attend(0, q, k, v, scale=0.3, bias=bias)
    ).merge_heads()
    rows = graph.select_rows(y, bench.tracer.logit_rows)
    found = run(bench.tracer.finish_vectors(rows) if both_ways else bench.tracer.finish(rows), lengths, tokens, kernels)
    first = 0
    for n in lengths:
        part, at = slice(first, first + n), np.arange(n)
        away = (at - at[:, None]).clip(1 - reach, reach - 1) + reach - 1
        seen = np.ones((n, n), bool) if both_ways else np.tri(n, dtype=bool)
        by_distance = columns[:, away.clip(0, columns.shape[1] - 1)]
        expected = attention(*(x[part] for x in numbers), seen, 0.3, by_distance)
        np.testing.assert_allclose(found[part], expected.reshape(n, -1), atol=1e-5)
        first += n


def test_a_bias_of_the_wrong_shape_is_refused() -> None:
    bench = Bench(tracer=Tracer([CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM)]))
    (q, k, v), _, _ = heads_of(bench, 3)
    for shape in ((N_HEAD,), (N_HEAD + 1, 3)):
        weight = graph.Weight("odd", Tensor.from_numpy(np.zeros(shape, np.float32)))
        with pytest.raises(ShapeError, match=r"odd is .*: expected f32"):
            graph.attend(0, q, k, v, scale=1.0, bias=weight)
        with pytest.raises(ShapeError, match=r"odd is .*: expected f32"):
            graph.attend_rows(q, k, v, scale=1.0, bias=weight)
    even = graph.Weight("even", Tensor.from_numpy(np.zeros((N_HEAD, 4), np.float32)))
    with pytest.raises(ShapeError, match="expected odd"):
        graph.attend_rows(q, k, v, scale=1.0, bias=even)


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
def test_a_layer_may_be_attended_to_again(kernels: str) -> None:
    bench = Bench(tracer=Tracer([CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM), CacheSpec()]))
    (q, k, v), numbers, tokens = heads_of(bench, 50)
    second, again = bench.value(N_HEAD, DIM)
    once = graph.attend(0, q, k, v, scale=0.3)
    twice = graph.attend_to_written(0, second, scale=0.5)
    y = (once + twice).merge_heads()
    found = run(bench.tracer.finish(graph.select_rows(y, bench.tracer.logit_rows)), [50], tokens, kernels)
    seen = np.tri(50, dtype=bool)
    expected = attention(*numbers, seen, 0.3) + attention(again, *numbers[1:], seen, 0.5)
    np.testing.assert_allclose(found, expected.reshape(50, -1), atol=1e-5)


@pytest.mark.parametrize(("device", "kernels"), [("cpu", "stock"), ("cpu", "cpu"), ("Counting0", "stock")])
def test_cross_attention(device: str, kernels: str) -> None:
    """Rows see all of their sequence's source, however many rows there are."""
    place = find_device("cpu") if device == "cpu" else counting_device().device
    cache = [CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM, of_source=of_source) for of_source in (False, True)]
    sources, lengths = [3, 70, 1, 33, 64], [1, 9, 40, 2, 70]
    encoder, decoder = (Bench(tracer=Tracer(cache), device=place) for _ in range(2))
    (x, k, v), (_, k_source, v_source), source_tokens = heads_of(encoder, sum(sources))
    graph.write_source(1, k, v)
    encoded = encoder.tracer.finish_vectors(graph.select_rows(x.merge_heads(), encoder.tracer.logit_rows))
    (q, k, v), numbers, tokens = heads_of(decoder, sum(lengths))
    cross, to_source = decoder.value(N_HEAD, DIM)
    y = (graph.attend(0, q, k, v, scale=0.3) + graph.attend_to_written(1, cross, scale=0.5)).merge_heads()
    trace = decoder.tracer.finish(graph.select_rows(y, decoder.tracer.logit_rows), encoder=encoded)
    assert trace.encoder is not None
    assert any("write_source layer 1" in line for line in trace.encoder.describe())
    executor = Executor(
        trace, place, n_blocks=64, threads=threads_of(kernels), kernels=kernels, kv_dtype="f32", max_rows=256, max_sequences=256,
    )  # type: ignore[arg-type]  # fmt: skip
    source_tables, source_slots = blocks_of(sources)
    begin = np.cumsum([0, *sources]).tolist()
    # In two steps, as sequences are admitted one after the other.
    for one, end in ((0, 2), (2, len(sources))):
        part = slice(begin[one], begin[end])
        executor.encode(
            source_tokens[part], slots=source_slots[part], row_begin=[b - begin[one] for b in begin[one : end + 1]],
            tables=source_tables[one:end],
        )  # fmt: skip
    tables, slots = blocks_of(lengths)
    rows = executor.run(
        tokens, positions=[i for n in lengths for i in range(n)], slots=slots, logit_rows=list(range(sum(lengths))),
        row_begin=np.cumsum([0, *lengths]).tolist(), n_kv=lengths, tables=tables, source_tables=source_tables,
        n_source=sources,
    )  # fmt: skip
    first = 0
    for n, m, at in zip(lengths, sources, begin, strict=False):
        part, seen = slice(first, first + n), slice(at, at + m)
        expected = attention(*(x[part] for x in numbers), np.tri(n, dtype=bool), 0.3)
        expected += attention(to_source[part], k_source[seen], v_source[seen], np.ones((n, m), bool), 0.5)
        np.testing.assert_allclose(rows[part], expected.reshape(n, -1), atol=1e-5)
        first += n


def test_rows_of_a_source_are_checked() -> None:
    own, source = (CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM, of_source=of_source) for of_source in (False, True))
    assert (own.of_source, source.of_source) == (False, True)
    with pytest.raises(ShapeError, match="keeps rows of the source with"):
        Tracer([CacheSpec(n_kv_head=1, head_dim=8, window=3, of_source=True)])

    def traced(cache: list[CacheSpec]) -> tuple[Bench, list[graph.TraceTensor], graph.TraceTensor]:
        bench = Bench(tracer=Tracer(cache))
        values, _, _ = heads_of(bench, 3)
        return bench, values, graph.select_rows(values[0].merge_heads(), bench.tracer.logit_rows)

    bench, (q, k, v), rows = traced([own, source])
    bias = graph.Weight("bias", Tensor.from_numpy(np.zeros((N_HEAD, 3), np.float32)))
    with pytest.raises(ShapeError, match="layer 1 keeps rows of a source"):
        graph.attend(1, q, k, v, scale=1.0)
    with pytest.raises(ShapeError, match="layer 0 does not keep rows of a source"):
        graph.write_source(0, k, v)
    with pytest.raises(ShapeError, match=r"k and v .* cache of layer 1"):
        graph.write_source(1, q, v)
    with pytest.raises(ShapeError, match="bias by distance"):
        graph.attend_to_written(1, q, scale=1.0, bias=bias)
    graph.attend(0, q, k, v, scale=1.0)
    with pytest.raises(ShapeError, match="encoder and cache do not match"):
        bench.tracer.finish(rows)
    graph.write_source(1, k, v)
    with pytest.raises(ShapeError, match="layer 0 is written by the wrong trace"):
        bench.tracer.finish_vectors(rows)
    bench, (q, k, v), rows = traced([source])
    graph.write_source(0, k, v)
    encoder = bench.tracer.finish_vectors(rows)
    bench, (q, k, v), rows = traced([own, source])
    graph.attend(0, q, k, v, scale=1.0)
    with pytest.raises(ShapeError, match="of the same cache"):
        bench.tracer.finish(rows, encoder=encoder)


def test_cache_specs_are_checked() -> None:
    bench = Bench(tracer=Tracer([CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM), CacheSpec()]))
    (q, k, v), _, _ = heads_of(bench, 3)
    with pytest.raises(ShapeError, match="not written yet"):
        graph.attend_to_written(0, q, scale=1.0)
    with pytest.raises(ShapeError, match="layer 1 keeps no rows"):
        graph.attend(1, q, k, v, scale=1.0)
    y = graph.attend(0, q, k, v, scale=1.0)
    with pytest.raises(ShapeError, match="written twice"):
        graph.attend(0, q, k, v, scale=1.0)
    both = graph.attend_rows(q, k, v, scale=1.0)
    out = graph.select_rows((y + both).merge_heads(), bench.tracer.logit_rows)
    with pytest.raises(ShapeError, match="keeps rows or states"):
        bench.tracer.finish(out)


def test_a_latent_layer_is_written_and_attended_to_by_its_own_operation() -> None:
    bench = Bench(tracer=Tracer([CacheSpec.latent(rank=6, n_rot=2), CacheSpec(n_kv_head=1, head_dim=DIM)]))
    (q, k, v), _, _ = heads_of(bench, 3)
    (one, _), (narrow, _) = bench.value(1, DIM), bench.value(1, DIM - 1)
    with pytest.raises(ShapeError, match="layer 0 keeps values within its keys"):
        graph.attend(0, q, k, v, scale=1.0)
    with pytest.raises(ShapeError, match="layer 1 keeps values in an array"):
        graph.attend_latent(1, q, one, scale=1.0)
    for bad_q, bad_k in ((q, k), (q, narrow), (narrow, one)):
        with pytest.raises(ShapeError, match="rows of layer 0: 8 numbers"):
            graph.attend_latent(0, bad_q, bad_k, scale=1.0)
    assert graph.attend_latent(0, q, one, scale=1.0).shape == ("tokens", N_HEAD, 6)
    assert graph.attend_to_written(0, q, scale=1.0).shape == ("tokens", N_HEAD, 6)


def picking(lengths: list[int], n_picked: int) -> tuple[Trace, Array, npt.NDArray[np.bool_], list[int]]:
    """Return a trace in which rows attend to picked tokens, what NumPy finds, rows where that is unique, the tokens.

    The indexer's keys are whole numbers of which the largest is 127, so that caches of all types store them exactly.
    """
    indexed = CacheSpec.latent(rank=DIM - 1, n_rot=1)
    bench = Bench(tracer=Tracer([CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM), indexed]))
    (q, k, v), numbers, tokens = heads_of(bench, sum(lengths))
    table = np.where(np.arange(DIM) == 2, 127, np.round(40 * bench.array(N_VOCAB, DIM)).clip(-99, 99)).astype(
        np.float32
    )
    ik = table[bench.tokens].reshape(-1, 1, DIM)
    index_k = graph.embed(bench.tracer.tokens, bench.weight(table)).heads(1)
    (index_q, iq), (weights, w) = bench.value(3, DIM), bench.value(3)
    picked = graph.pick(1, index_q, index_k, weights, n_picked=n_picked, n_ctx=96)
    y = graph.attend(0, q, k, v, scale=0.3, picked=picked).merge_heads()
    trace = bench.tracer.finish_vectors(graph.select_rows(y, bench.tracer.logit_rows))
    expected, first, unique = [], 0, np.ones(sum(lengths), bool)
    for n in lengths:
        rows = slice(first, first + n)
        scores = np.einsum("nh,hnm->nm", w[rows], np.maximum(np.einsum("nhd,md->hnm", iq[rows], ik[rows, 0]), 0))
        scores[np.triu_indices(n, 1)] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable").argsort(axis=1)
        seen = (order < n_picked) & np.isfinite(scores)
        unique[rows] = ~(((scores == 0) & seen).any(1) & ((scores == 0) & ~seen).any(1))
        expected.append(attention(*(x[rows] for x in numbers), seen, 0.3).reshape(n, -1))
        first += n
    return trace, np.concatenate(expected), unique, tokens


@pytest.mark.parametrize(
    ("kernels", "kv_dtype"), [("stock", "f32"), ("cpu", "f32"), ("cpu", "f16"), ("cpu", "bf16"), ("cpu", "q8_0")]
)
def test_rows_attend_to_picked_tokens(kernels: str, kv_dtype: str) -> None:
    lengths = [3, 70, 1, 45]
    trace, expected, unique, tokens = picking(lengths, 7)
    assert unique.mean() > 0.6
    same = unique if kernels == "stock" else slice(None)  # Quire's kernels pick the first of equal scores
    found = run(trace, lengths, tokens, kernels, kv_dtype)
    np.testing.assert_allclose(found[same], expected[same], atol=2e-5 if kv_dtype == "f32" else 0.03)


def test_picked_tokens_are_checked() -> None:
    indexed = CacheSpec.latent(rank=DIM - 1, n_rot=1)
    bench = Bench(tracer=Tracer([CacheSpec(n_kv_head=N_KV_HEAD, head_dim=DIM), indexed]))
    (q, k, v), _, _ = heads_of(bench, 3)
    (one, _), (weights, _) = bench.value(1, DIM), bench.value(N_HEAD)
    for bad_k, bad_weights, layer in ((k, weights, 1), (one, bench.value(3)[0], 1), (one, weights, 0)):
        with pytest.raises(ShapeError, match=f"do not fit layer {layer}"):
            graph.pick(layer, q, bad_k, bad_weights, n_picked=2, n_ctx=8)
    with pytest.raises(ShapeError, match="n_picked 0"):
        graph.pick(1, q, one, weights, n_picked=0, n_ctx=8)
    with pytest.raises(ShapeError, match="not a result of pick"):
        graph.attend(0, q, k, v, scale=1.0, picked=weights)
    bias = graph.Weight("bias", Tensor.from_numpy(np.zeros((N_HEAD, 3), np.float32)))
    with pytest.raises(ShapeError, match="bias by distance"):
        graph.attend(0, q, k, v, scale=1.0, bias=bias, picked=graph.pick(1, q, one, weights, n_picked=2, n_ctx=8))


def test_a_window_and_chunks_exclude_each_other() -> None:
    with pytest.raises(ShapeError, match="both a window and chunks"):
        Tracer([CacheSpec(n_kv_head=1, head_dim=8, window=3, chunk=4)])
