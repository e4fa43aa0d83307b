"""Operations of Quire's own on devices that have them (native/cuda): in steps on the device that counts, which computes them by
the CPU.  The kernels themselves: tests/kernels/test_cuda_kernels.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from counting_device import CountingDevice, counting_device
from device_steps import BYTES_OF_TOKEN, LENGTHS, STEPS, Sequences, check_steps, filled, tokens_of
from quire import LoadError
from quire._native import graph
from quire._native.core import Tensor, find_device
from quire._native.quant import quantize
from quire.selftest.gate import case_names
from quire.selftest.gate_process import compare
from small_model import BASE, EPS, N_VOCAB, VARIANTS, Variant, numpy_forward


@pytest.fixture
def counting() -> Iterator[CountingDevice]:
    device = counting_device()
    with device.own_operations():
        yield device


@pytest.mark.parametrize("lacks", [(), ("FLASH_ATTN_EXT",)])
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_equal_numpy(name: str, lacks: tuple[str, ...], counting: CountingDevice) -> None:
    with counting.without(*lacks):
        made = Sequences(VARIANTS[name], counting)
        counting.reset()
        check_steps(made, VARIANTS[name])
    assert (counting.launches("CUSTOM") > 0) == (name != "latent")  # latent values lie in the keys
    assert (counting.launches("SET_ROWS") == 0) == (name != "latent")


@pytest.mark.parametrize("name", VARIANTS)
def test_prompts_follow_block_tables_on_request(
    name: str, counting: CountingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_PROMPT_ATTENTION", "1")
    made = Sequences(VARIANTS[name], counting)
    counting.reset()
    check_steps(made, VARIANTS[name])
    assert (counting.launches("FLASH_ATTN_EXT") == 0) == (name != "latent")


@pytest.mark.parametrize(("n_streams", "n_tokens"), [(1, 1000), (32, 250)])
def test_a_step_reads_only_visible_blocks(n_streams: int, n_tokens: int, counting: CountingDevice) -> None:
    made = filled(counting, n_streams, n_tokens, 1024)
    counting.reset()
    made.step([(i, 1) for i in range(n_streams)])
    counts = counting.counts()
    assert (counts.computes, counts.uploads, counts.downloads, counts.synchronizations) == (1, 1, 1, 1)
    assert counts.cache_bytes == n_streams * n_tokens * BYTES_OF_TOKEN
    assert counting.launches("FLASH_ATTN_EXT") == 0


def test_devices_that_claim_every_operation_are_ignored(counting: CountingDevice) -> None:
    with counting.claiming_all():
        made = Sequences(Variant(), counting)
        made.add(tokens_of(9, 0))
        counting.reset()
        found = made.step([(0, 9)])[0]
    np.testing.assert_allclose(found, numpy_forward(made.weights, Variant(), made.tokens[0]), atol=1e-3)
    assert counting.launches("CUSTOM") == 0


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
        n_dims=16,
        layout=layout,
        freq_base=BASE,
        factors=w("factors", 8) if factors else None,  # type: ignore[arg-type]
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
    """Products whose rows ggml does not pad give the numbers of Quire's own kernels on the CPU."""
    with nullcontext() if own else counting.without("CUSTOM"):
        made = Sequences(Variant(), counting, traced=normed_heads(layout, dim, factors))
        cpu = Sequences(
            Variant(), SimpleNamespace(device=find_device("CPU")), traced=normed_heads(layout, dim, factors)
        )  # type: ignore[arg-type]
        for sequences in (made, cpu):
            for i, n in enumerate(LENGTHS):
                sequences.add(tokens_of(n, i))
        for step in STEPS:
            counting.reset()
            for found, expected in zip(made.step(step), cpu.step(step), strict=True):
                np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
            assert counting.launches("MUL_MAT") == (3 if dim == 512 else 5)
            assert (counting.launches("ROPE"), counting.launches("RMS_NORM")) == ((0, 1) if own else (2, 3))


@pytest.mark.parametrize(("most_bytes", "n_products"), [(1 << 20, 3), (300_000, 5)])
def test_products_beyond_a_buffer_are_not_merged(most_bytes: int, n_products: int, counting: CountingDevice) -> None:
    with counting.largest_buffer(most_bytes):  # q, k and v together have 393216
        made = Sequences(Variant(), counting, 8, traced=normed_heads("half", 512, False), max_rows=16)
        made.add(tokens_of(9, 0))
        counting.reset()
        made.step([(0, 9)])
    assert counting.launches("MUL_MAT") == n_products


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
def test_single_row_products_are_fused_with_neighbours(dtype: str, counting: CountingDevice) -> None:
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


@pytest.mark.parametrize("dtype", ["q4_0", "q5_k", "bf16", "f16"])
def test_more_types_of_a_single_row_are_fused_on_request(
    dtype: str, counting: CountingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = []
    for setting in ("0", "1"):
        monkeypatch.setenv("QUIRE_ROW_PRODUCTS", setting)
        options: dict[str, object] = {"max_rows": 96, "kv_dtype": "f16", "traced": quantized_layer(dtype)}
        made = Sequences(Variant(), counting, **options)  # type: ignore[arg-type]
        cpu = Sequences(Variant(), SimpleNamespace(device=find_device("CPU")), **options)  # type: ignore[arg-type]
        for sequences in (made, cpu):
            sequences.add(tokens_of(10, 1))
        for n in (9, 1):
            counting.reset()
            found, expected = made.step([(0, n)])[0], cpu.step([(0, n)])[0]
            assert np.linalg.norm(found - expected) < 2e-2 * np.linalg.norm(expected)
        kernels.append(counting.counts().launches)
        assert (counting.launches("MUL_MAT") == 0) == (setting == "1")
    assert kernels == [19, 11]


@pytest.mark.parametrize("dtype", ["q4_k", "q8_0", "q4_1", "q5_0", "nvfp4"])
def test_few_rows_are_multiplied_by_arranged_matrices(
    dtype: str, counting: CountingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", "1")
    options: dict[str, object] = {"max_rows": 96, "kv_dtype": "f16"}
    made = Sequences(Variant(), counting, traced=quantized_layer(dtype), **options)  # type: ignore[arg-type]
    cpu = Sequences(Variant(), SimpleNamespace(device=find_device("CPU")), traced=quantized_layer(dtype), **options)  # type: ignore[arg-type]
    for sequences in (made, cpu):
        sequences.add(tokens_of(160, 1))
    for n in (40, 1, 3, 70, 8, 1, 37):
        counting.reset()
        found, expected = made.step([(0, n)])[0], cpu.step([(0, n)])[0]
        assert np.linalg.norm(found - expected) < 2e-2 * np.linalg.norm(expected)
        # The last norm is left, which is the hidden state.  A single row of the other types is ggml's.
        by_ggml = n == 70 or (n == 1 and dtype not in ("q4_k", "q8_0"))
        assert (counting.launches("MUL_MAT") > 0, counting.launches("RMS_NORM")) == (
            (True, 3) if by_ggml else (False, 1)
        )
        assert counting.launches("ADD") == (2 if by_ggml else 0)


@pytest.mark.parametrize(
    ("table", "n_products"),
    [
        ("", 0),
        ("# type n_in n_out variant n_splits\nq4_k 512 512 3 2  # q, k and v\n", 0),
        (f"q4_k 512 512 -1 1\nq6_k 512 {N_VOCAB} -1 1\n", 2),
    ],
)
def test_a_table_says_how_matrices_are_multiplied(
    table: str, n_products: int, counting: CountingDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "table.txt").write_text(table)
    monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", str(tmp_path / "table.txt"))
    made = Sequences(Variant(), counting, traced=quantized_layer("q4_k"), max_rows=16)
    made.add(tokens_of(9, 1))
    counting.reset()
    made.step([(0, 9)])
    assert counting.launches("MUL_MAT") == n_products


@pytest.mark.parametrize(
    "line", ["q4_k 512 512 4 1", "q4_k 512 512 0 0", "q4_k 512 512 0", "f32 512 512 0 1", "q4_k 512 512 0 1 2", "what"]
)
def test_a_wrong_line_of_the_table_is_named(
    line: str, counting: CountingDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "table.txt").write_text(f"q4_k 512 512 0 1\n{line}\n")
    monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", str(tmp_path / "table.txt"))
    with pytest.raises(LoadError, match=line):
        Sequences(Variant(), counting, traced=quantized_layer("q4_k"), max_rows=16)


def test_a_table_that_is_absent_is_named(counting: CountingDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", "/absent/table")
    with pytest.raises(LoadError, match="/absent/table"):
        Sequences(Variant(), counting, traced=quantized_layer("q4_k"), max_rows=16)


@pytest.mark.parametrize("setting", ["0", "", None])
def test_matrices_are_arranged_only_on_request(
    setting: str | None, counting: CountingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is None:
        monkeypatch.delenv("QUIRE_BATCH_PRODUCTS", raising=False)
    else:
        monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", setting)
    held = counting.held_bytes()
    made = Sequences(Variant(), counting, traced=quantized_layer("q4_k"), max_rows=16)
    without = counting.held_bytes() - held
    monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", "1")
    more = Sequences(Variant(), counting, traced=quantized_layer("q4_k"), max_rows=16)
    arranged = counting.held_bytes() - held - 2 * without
    stored = sum(n_out * n_in * 144 // 256 for n_out, n_in in ((512, 512), (512, 256), (1536, 512), (512, 768)))
    assert stored < arranged < 1.2 * stored + N_VOCAB * 512
    for sequences in (made, more):
        sequences.add(tokens_of(9, 1))
        counting.reset()
        sequences.step([(0, 9)])
        assert counting.launches("MUL_MAT") == (5 if sequences is made else 0)


def test_the_gate_agrees(counting: CountingDevice) -> None:
    """Operations and tiny models: what stands before a kernel of Quire's own, and behind it, is that of models."""
    counting.reset()
    results = [compare(name, counting.device) for name in case_names()]
    assert [result for result in results if result.state != "agrees"] == []
    assert counting.launches("CUSTOM") > 300
