"""The tracer, both lowerings and the executor against a NumPy forward pass."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import threads_of
from hypothesis import given
from hypothesis import strategies as st
from quire._native import graph
from quire._native.core import Tensor, find_device
from quire._native.kernels import KernelSet, emulated_isas, supported_isas
from quire._native.quant import quantize
from quire.errors import InternalError, ShapeError, UnsupportedError
from small_model import (
    BASE,
    DIM,
    EPS,
    HEAD_DIM,
    N_HEAD,
    N_KV_HEAD,
    N_VOCAB,
    VARIANTS,
    Variant,
    numpy_forward,
    random_weights,
    trace,
)

Array = npt.NDArray[np.float32]


def executor(trace: graph.Trace, **options: object) -> graph.Executor:
    settings: dict[str, object] = {"n_blocks": 16, "kv_dtype": "f32", "max_rows": 64, "max_sequences": 4}
    settings["threads"] = threads_of(str(options.get("kernels", "auto")))
    return graph.Executor(trace, find_device("cpu"), **(settings | options))  # type: ignore[arg-type]


def run_one(ex: graph.Executor, tokens: list[int], start: int = 0, table: tuple[int, ...] = (3, 1, 2)) -> Array:
    """Logits of tokens[start:], whose predecessors are in the cache already."""
    rows = list(range(start, len(tokens)))
    slots = [table[p // 32] * 32 + p % 32 for p in rows]
    n = len(rows)
    return ex.run(
        tokens[start:],
        positions=rows,
        slots=slots,
        logit_rows=list(range(n)),
        row_begin=[0, n],
        n_kv=[len(tokens)],
        tables=[list(table)],
    )


def tokens_of(n: int, seed: int = 1) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, N_VOCAB, n)]


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_numpy(name: str, kernels: str) -> None:
    weights, tokens = random_weights(0), tokens_of(50)
    expected = numpy_forward(weights, VARIANTS[name], tokens)
    found = run_one(executor(trace(weights, VARIANTS[name]), kernels=kernels), tokens)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("kv_dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["plain", "latent"])
def test_half_precision_cache(name: str, kv_dtype: str, kernels: str) -> None:
    weights, tokens, variant = random_weights(0), tokens_of(50), VARIANTS[name]
    expected = numpy_forward(weights, variant, tokens)
    found = run_one(executor(trace(weights, variant), kernels=kernels, kv_dtype=kv_dtype), tokens)
    bound = {"f16": 2e-3, "bf16": 2e-2}[kv_dtype]
    np.testing.assert_allclose(found, expected, atol=bound * np.abs(expected).max())


@pytest.mark.parametrize("name", ["plain", "latent"])
def test_8_bit_cache(name: str) -> None:
    weights, tokens, variant = random_weights(0), tokens_of(50), VARIANTS[name]
    expected = numpy_forward(weights, variant, tokens)
    ex = executor(trace(weights, variant), kernels="cpu", kv_dtype="q8_0")
    found = np.concatenate([run_one(ex, tokens[:end], start) for start, end in ((0, 33), (33, 34), (34, 50))])
    np.testing.assert_allclose(found, expected, atol=3e-2 * np.abs(expected).max())
    with pytest.raises(UnsupportedError, match="kv_dtype q8_0"):
        executor(trace(weights, variant), kernels="stock", kv_dtype="q8_0")


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("name", ["all", "latent"])
def test_chunks_equal_whole(name: str, kernels: str) -> None:
    weights, tokens = random_weights(2), tokens_of(40)
    expected = numpy_forward(weights, VARIANTS[name], tokens)
    ex = executor(trace(weights, VARIANTS[name]), kernels=kernels)
    found = np.concatenate([run_one(ex, tokens[:end], start) for start, end in ((0, 7), (7, 33), (33, 34), (34, 40))])
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["all", "latent"])
def test_results_are_batch_invariant(name: str) -> None:
    weights, tokens = random_weights(2), tokens_of(40)
    ex = executor(trace(weights, VARIANTS[name]), kernels="cpu")
    whole = run_one(ex, tokens)
    chunks = [run_one(ex, tokens[:end], start) for start, end in ((0, 3), (3, 20), (20, 40))]
    assert np.array_equal(np.concatenate(chunks), whole)
    # The last token alone, then together with another sequence's chunk.
    other = tokens_of(9, seed=5)
    together = ex.run(
        [tokens[39], *other],
        positions=[39, *range(9)],
        slots=[1 * 32 + 7, *(5 * 32 + p for p in range(9))],
        logit_rows=[0, 9],
        row_begin=[0, 1, 10],
        n_kv=[40, 9],
        tables=[[3, 1], [5]],
    )
    assert np.array_equal(together[0], whole[39])
    expected = numpy_forward(weights, VARIANTS[name], other)
    np.testing.assert_allclose(together[1], expected[8], atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
def test_cached_graph_equals_fresh(kernels: str) -> None:
    """Alternating graphs over the one compute buffer give what a fresh executor gives."""
    weights = random_weights(3)
    ex = executor(trace(weights, Variant()), kernels=kernels)
    lengths = [1, 40, 3, 64, 2, 17, 40]
    kept = [run_one(ex, tokens_of(n)) for n in lengths]
    for n, logits in zip(lengths, kept, strict=True):
        fresh = run_one(executor(trace(weights, Variant()), kernels=kernels), tokens_of(n))
        assert np.array_equal(logits, fresh)


def test_a_batch_outside_the_store_is_refused() -> None:
    ex = executor(trace(random_weights(0), Variant()))
    good: dict[str, object] = {
        "positions": [0], "slots": [32], "logit_rows": [0], "row_begin": [0, 1], "n_kv": [1], "tables": [[1]],
    }  # fmt: skip
    ex.run([1], **good)  # type: ignore[arg-type]
    bad: list[dict[str, object]] = [
        {"slots": [16 * 32]}, {"slots": [-1]}, {"tables": [[16]]}, {"tables": [[]]}, {"n_kv": [0]}, {"n_kv": [33]},
        {"logit_rows": [1]}, {"positions": [1]}, {"row_begin": [0, 2]}, {"row_begin": [1, 1]},
    ]  # fmt: skip
    for change in bad:
        with pytest.raises(InternalError, match=r"\[executor\]"):
            ex.run([1], **(good | change))  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="token id"):
        ex.run([N_VOCAB], **good)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 20)), max_size=30).map(
        lambda values: [(size, min(a, b), max(a, b)) for size, a, b in values]
    )
)
def test_values_that_live_at_once_do_not_overlap(values: list[tuple[int, int, int]]) -> None:
    offsets, total = graph.plan_memory(values)
    assert all(
        offset % 64 == 0 and offset + size <= total for offset, (size, _, _) in zip(offsets, values, strict=True)
    )
    taken = [(offset, offset + size, *lives) for offset, (size, *lives) in zip(offsets, values, strict=True)]
    for i, (begin, end, first, last) in enumerate(taken):
        for other_begin, other_end, other_first, other_last in taken[:i]:
            if first <= other_last and other_first <= last:
                assert end <= other_begin or other_end <= begin
    # No more than all side by side, each padded to 64 bytes.
    assert total <= sum(-(-size // 64) * 64 for size, _, _ in values)


def test_values_that_follow_each_other_share_memory() -> None:
    _, total = graph.plan_memory([(6400, i, i + 1) for i in range(50)])
    assert total == 2 * 6400


def unusual_trace(weights: dict[str, Array]) -> graph.Trace:
    """Wiring that looks like what our lowering fuses, but must not be fused or only in part."""

    def w(name: str) -> graph.Weight:
        return graph.Weight(name, Tensor.from_numpy(weights[name]))

    spec = graph.CacheSpec(n_kv_head=N_KV_HEAD, head_dim=HEAD_DIM, window=0)
    tracer = graph.Tracer([spec, spec])
    rope = graph.RopeSpec(n_dims=HEAD_DIM, layout="half", freq_base=BASE)
    part = graph.RopeSpec(n_dims=HEAD_DIM // 2, layout="interleaved", freq_base=500.0)
    x = graph.embed(tracer.tokens, w("embd"))
    for i in range(2):
        h = graph.rms_norm(x, w(f"{i}.norm"), EPS)
        q = graph.linear(h, w(f"{i}.q"), w(f"{i}.bias")).heads(N_HEAD)
        k = graph.linear(h, w(f"{i}.k")).heads(N_KV_HEAD)
        if i == 0:  # queries and keys are read elsewhere, too; a norm without weight; another rotation
            q, extra = graph.rope(graph.rms_norm(q, None, EPS), tracer.positions, part), q
            v = k
            k = graph.rope(k, tracer.positions, part)
            a = graph.attend(i, q, k, v, scale=0.3).merge_heads() + extra.merge_heads()
        else:  # neither norm nor rotation; keys that are not straight from a product
            a = graph.attend(i, q, k + k, graph.rope(k, tracer.positions, rope), scale=0.2).merge_heads()
        o = graph.linear(a, w(f"{i}.o"))
        # The norm is read by more than products; a residual that comes later; a product that is added to itself.
        y = x + h
        x = o + (y + graph.linear(h, w(f"{i}.o2")))
        twice = graph.linear(x, w(f"{i}.o2"))
        x = x + (twice + twice)
        # A gate of two different activations, one that is used twice, and one whose sides are one.
        gate, up = graph.linear(h, w(f"{i}.gate")), graph.linear(x, w(f"{i}.up"))
        down = graph.linear(graph.glu(gate, up, "silu"), w(f"{i}.down"))
        again = graph.linear(graph.activate(up, "relu") * graph.glu(up, up, "silu"), w(f"{i}.down"))
        x = x + graph.soft_cap(down + again, 2.0) * (x * 0.5)
    x = graph.rms_norm(graph.select_rows(x, tracer.logit_rows), w("norm"), EPS)
    return tracer.finish(graph.soft_cap(graph.linear(x, w("embd")), 30.0))


@pytest.mark.parametrize("repack", ["no", "keep"])
def test_wiring_that_is_not_fused_equals_stock(repack: str) -> None:
    weights, tokens = random_weights(3), tokens_of(50)
    rng = np.random.default_rng(8)
    weights |= {f"{i}.o2": (rng.standard_normal((DIM, DIM)) / 8).astype(np.float32) for i in range(2)}
    expected = run_one(executor(unusual_trace(weights), kernels="stock"), tokens)
    found = run_one(executor(unusual_trace(weights), kernels="cpu", repack=repack), tokens)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("repack", ["no", "keep"])
@pytest.mark.parametrize("n_vocab", [1, 64, 65, 1000])
def test_largest_of_every_64_logits(n_vocab: int, repack: str) -> None:
    rng = np.random.default_rng(n_vocab)
    head = (rng.standard_normal((n_vocab, DIM)) / 8).astype(np.float32)
    if n_vocab == 1000:
        head[70] = np.inf
    tracer = graph.Tracer([graph.CacheSpec(n_kv_head=1, head_dim=DIM, window=0)])
    x = graph.embed(tracer.tokens, graph.Weight("embd", Tensor.from_numpy(random_weights(3)["embd"])))
    x = graph.attend(0, *[x.heads(1)] * 3, scale=1.0).merge_heads()
    x = graph.rms_norm(graph.select_rows(x, tracer.logit_rows), None, EPS)
    weight = graph.Weight("head", Tensor.from_numpy(head))
    traced = tracer.finish(graph.linear(x, weight))
    ex = executor(traced, kernels="cpu", repack=repack)
    for n in (1, 5, 40):
        logits = run_one(ex, [t % n_vocab for t in tokens_of(n)])
        logits = np.pad(logits, ((0, 0), (0, -n_vocab % 64)), constant_values=np.finfo(np.float32).min)
        with np.errstate(invalid="ignore"):
            strips = logits.reshape(n, -1, 64)
            expected = np.where(np.isfinite(strips).all(-1), strips.max(-1), np.nan)
        np.testing.assert_array_equal(ex.maxima(n), expected)
        assert np.isnan(expected).any() == (n_vocab == 1000)
    assert executor(traced, kernels="stock").maxima(1) is None
    with pytest.raises(ShapeError, match="n_rows is 65: expected 0 to 64"):
        ex.maxima(65)


def test_rows_of_f16_are_as_they_are() -> None:
    """Where BF16 is multiplied as well: what is only looked up is not rounded."""
    table = np.random.default_rng(1).standard_normal((N_VOCAB, DIM)).astype(np.float16)
    tracer = graph.Tracer([])
    x = graph.select_rows(graph.embed(tracer.tokens, graph.Weight("embd", Tensor.from_numpy(table))), tracer.logit_rows)
    same = graph.linear(x, graph.Weight("same", Tensor.from_numpy(np.eye(DIM, dtype=np.float32))))
    tokens = tokens_of(20)
    found = run_one(executor(tracer.finish(same), kernels="cpu", repack="keep"), tokens)
    np.testing.assert_array_equal(found, table[tokens].astype(np.float32))


@pytest.mark.parametrize("types", [("q4_0", "q8_0", "f16"), ("q8_0", "q8_0", "q4_0"), ("f32", "bf16", "q5_1")])
@pytest.mark.parametrize("n_tokens", [1, 50])
def test_experts_of_any_types_equal_stock(types: tuple[str, str, str], n_tokens: int) -> None:
    weights, tokens = random_weights(4), tokens_of(n_tokens)

    def stored(name: str, value: Array) -> Tensor:
        kinds = dict(zip(("gates", "ups", "downs"), types, strict=True))
        dtype = kinds.get(name.rsplit(".", maxsplit=1)[-1], "f32")
        return Tensor.from_numpy(value) if dtype == "f32" else quantize(Tensor.from_numpy(value), dtype)

    made = trace(weights, VARIANTS["experts"], stored)
    expected = run_one(executor(made, kernels="stock"), tokens)
    found = run_one(executor(made, kernels="cpu"), tokens)
    # A tile of our own layout has 16 or (f32, f16, bf16) 64 rows; experts whose rows do not fill tiles are left as they are.
    as_they_are = run_one(executor(made, kernels="cpu", repack="no"), tokens)
    # A last digit decides now and then which of two numbers of 8 bits an activation is rounded to.
    np.testing.assert_allclose(as_they_are, expected, atol=5e-3 * np.abs(expected).max())
    # Both round activations to 8 bits, in different groups where our own layout is used.
    np.testing.assert_allclose(found, expected, atol=3e-2 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["bias", "experts"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
def test_executors_of_one_process_may_differ(dtype: str, name: str) -> None:
    """Each gives the bits that it gives alone, while others with other kernels take turns with it."""

    def stored(_: str, value: Array) -> Tensor:
        return quantize(value, dtype) if value.ndim > 1 else Tensor.from_numpy(value)

    weights, tokens = random_weights(6), tokens_of(50)
    isas = [*supported_isas(), *emulated_isas()]
    sets = [KernelSet(isa, deterministic=on) for isa in isas for on in (True, False)]

    def made(kernel_set: KernelSet) -> graph.Executor:
        ex = executor(trace(weights, VARIANTS[name], stored), kernels="cpu", kernel_set=kernel_set)
        assert ex.kernel_set is not None
        assert (ex.kernel_set.isa, ex.kernel_set.is_deterministic) == (kernel_set.isa, kernel_set.is_deterministic)
        return ex

    alone = [run_one(made(each), tokens) for each in sets]
    assert len({found.tobytes() for found in alone}) > 1 or len(isas) == 1
    together = [made(each) for each in sets]
    for _ in range(2):
        for ex, expected in zip(together, alone, strict=True):
            np.testing.assert_array_equal(run_one(ex, tokens), expected)
    if dtype != "q8_0":  # 8-bit activations may choose other experts
        expected = numpy_forward(weights, VARIANTS[name], tokens)
        for found in alone:
            np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())


def test_a_kernel_set_needs_our_own_kernels() -> None:
    with pytest.raises(UnsupportedError, match=r"^\[executor\] a kernel set"):
        executor(trace(random_weights(6), VARIANTS["bias"]), kernels="stock", kernel_set=KernelSet())


def test_a_mask_of_processors_needs_our_own_kernels() -> None:
    ex = executor(trace(random_weights(0), Variant()), kernels="cpu", threads=1, cpus=sorted(os.sched_getaffinity(0)))
    assert ex.n_nodes > 0
    with pytest.raises(UnsupportedError, match="a processor mask"):
        executor(trace(random_weights(0), Variant()), kernels="stock", cpus=[0])


def weight(*shape: int) -> graph.Weight:
    return graph.Weight("w", Tensor.from_numpy(np.zeros(shape, np.float32)))


BAD_TRACES: dict[str, tuple[Callable[[graph.Tracer], object], str]] = {
    "embed_vector": (lambda t: graph.embed(t.tokens, weight(4)), r"\[embed\] w is \[4\]"),
    "linear_width": (
        lambda t: graph.linear(graph.embed(t.tokens, weight(8, 4)), weight(3, 5)),
        r"\[linear\] w is \[3, 5\]",
    ),
    "linear_bias": (
        lambda t: graph.linear(graph.embed(t.tokens, weight(8, 4)), weight(3, 4), weight(4)),
        r"\[linear\] w is f32 \[4\]: expected f32 \[3\]",
    ),
    "norm": (lambda t: graph.rms_norm(graph.embed(t.tokens, weight(8, 4)), weight(5), 1e-5), r"\[rms_norm\]"),
    "norm_eps": (lambda t: graph.rms_norm(graph.embed(t.tokens, weight(8, 4)), weight(4), 0.0), r"eps is 0"),
    "heads": (lambda t: graph.embed(t.tokens, weight(8, 4)).heads(3), r"\[heads\] 4 is not divisible"),
    "rope_odd": (
        lambda t: graph.rope(
            graph.embed(t.tokens, weight(8, 4)).heads(1),
            t.positions,
            graph.RopeSpec(n_dims=3, layout="half", freq_base=1e4),
        ),
        r"\[rope\] n_dims is 3",
    ),
    "add": (
        lambda t: graph.embed(t.tokens, weight(8, 4)) + graph.embed(t.tokens, weight(8, 5)),
        r"\[add\] the shapes",
    ),
    "attend_layer": (
        lambda t: graph.attend(1, *(graph.embed(t.tokens, weight(8, 4)).heads(1) for _ in range(3)), scale=1.0),  # type: ignore[call-arg]
        r"\[attend\] layer 1 is out of range",
    ),
    "attend_heads": (
        lambda t: graph.attend(0, *(graph.embed(t.tokens, weight(8, 4)).heads(2) for _ in range(3)), scale=1.0),  # type: ignore[call-arg]
        r"\[attend\] q, k, v .* cache",
    ),
    "logits_of_tokens": (lambda t: t.finish(graph.embed(t.tokens, weight(8, 4))), r"logits \[rows, n_vocab\]"),
    "unattended": (
        lambda t: t.finish(graph.select_rows(graph.embed(t.tokens, weight(8, 4)), t.logit_rows)),
        "layer 0 are never written",
    ),
    "embed_rows": (lambda t: graph.embed(t.logit_rows, weight(8, 4)), r"\[embed\] tokens is"),
    "add_ids": (lambda t: t.tokens + t.positions, r"\[add\] x is \[tokens\]"),
    "activate_ids": (lambda t: graph.activate(t.tokens, "silu"), r"\[activate\] x is"),
    "reshape_ids": (lambda t: graph.reshape(t.tokens, [1]), r"\[reshape\] the row changes its size"),
    "rope_of_rows": (
        lambda t: graph.rope(
            graph.select_rows(graph.embed(t.tokens, weight(8, 4)), t.logit_rows).heads(1),
            t.positions,
            graph.RopeSpec(n_dims=4, layout="half", freq_base=1e4),
        ),
        r"\[rope\] x is \[rows, 1, 4\]",
    ),
    "attend_of_rows": (
        lambda t: graph.attend(
            0,
            graph.select_rows(graph.embed(t.tokens, weight(8, 4)), t.logit_rows).heads(1),
            *(graph.embed(t.tokens, weight(8, 4)).heads(1) for _ in range(2)),
            scale=1.0,
        ),  # type: ignore[call-arg]
        r"\[attend\] q is \[rows, 1, 4\]",
    ),
    "tokens_as_rows": (lambda t: graph.select_rows(graph.embed(t.tokens, weight(8, 4)), t.tokens), r"\[select_rows\]"),
}


@pytest.mark.parametrize("name", BAD_TRACES)
def test_bad_shapes_are_refused(name: str) -> None:
    build, message = BAD_TRACES[name]
    with pytest.raises(ShapeError, match=message):
        build(graph.Tracer([graph.CacheSpec(n_kv_head=1, head_dim=4)]))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"layout .* half, interleaved"):
        graph.RopeSpec(n_dims=4, layout="spiral", freq_base=1e4)  # type: ignore[arg-type]
    for kv_dtype, message in {
        "q4_1": "kv_dtype is 'q4_1'",
        "q8_0/": "kv_dtype is 'q8_0/'",
        "q8_0/bf16": "K and V cannot be 'q8_0/bf16'",
    }.items():
        with pytest.raises(UnsupportedError, match=message):
            executor(trace(random_weights(0), Variant()), kv_dtype=kv_dtype)
