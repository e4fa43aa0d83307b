"""Layers of experts as one operation on devices that have it (native/cuda/expert_layer.h), in steps on the simulated device.
The kernels themselves: tests/kernels/test_expert_layers.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from counting_device import CountingDevice, counting_device
from device_steps import Sequences, tokens_of
from quire import LoadError
from quire._native import graph
from quire._native.core import Tensor, find_device
from quire._native.quant import quantize
from small_model import EPS, N_VOCAB, Variant

N_EXPERT, N_USED, INNER = 6, 2, 256


@pytest.fixture
def counting() -> Iterator[CountingDevice]:
    device = counting_device()
    with device.own_operations():
        yield device


def expert_model(types: tuple[str, str], unit: str = "gated", *, biased: bool = False) -> graph.Trace:
    """Attention, then experts whose sum is added to the residual."""
    random = np.random.default_rng(5)

    def floats(name: str, *shape: int) -> graph.Weight:
        values = random.standard_normal(shape) * shape[-1] ** -0.5
        return graph.Weight(name, Tensor.from_numpy(values.astype(np.float32)))

    def matrix(name: str, dtype: str, *shape: int) -> graph.Weight:
        values = random.standard_normal(shape) * shape[-1] ** -0.5
        return graph.Weight(name, quantize(values.astype(np.float32), dtype))

    tracer = graph.Tracer([graph.CacheSpec(n_kv_head=1, head_dim=64)])
    x = graph.embed(tracer.tokens, floats("embd", N_VOCAB, 256))
    q, k, v = (graph.linear(x, floats(name, n * 64, 256)).heads(n) for name, n in (("q", 2), ("k", 1), ("v", 1)))
    x = x + graph.linear(graph.attend(0, q, k, v, scale=0.125).merge_heads(), floats("o", 256, 128))
    h = graph.rms_norm(x, floats("norm", 256), EPS)
    experts = graph.moe(
        h,
        graph.linear(h, floats("router", N_EXPERT, 256)),
        matrix("gate", types[0], N_EXPERT, INNER, 256),
        matrix("up", types[0], N_EXPERT, INNER, 256),
        matrix("down", types[1], N_EXPERT, 256, INNER),
        graph.MoeSpec(n_used=N_USED, unit=unit),  # type: ignore[arg-type]
        gate_bias=floats("gate_bias", N_EXPERT, INNER) if biased else None,
        up_bias=floats("up_bias", N_EXPERT, INNER) if biased else None,
        down_bias=floats("down_bias", N_EXPERT, 256) if biased else None,
    )
    y = graph.rms_norm(graph.select_rows(experts + x, tracer.logit_rows), floats("last", 256), EPS)
    return tracer.finish(graph.linear(y, floats("head", N_VOCAB, 256)))


def steps_of(counting: CountingDevice, traced: graph.Trace, n_rows: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Compare steps with Quire's own kernels on the CPU; return the numbers of products by experts, and of all kernels."""
    options: dict[str, object] = {"max_rows": 96, "kv_dtype": "f16", "traced": traced}
    made = Sequences(Variant(), counting, **options)  # type: ignore[arg-type]
    cpu = Sequences(Variant(), SimpleNamespace(device=find_device("CPU")), **options)  # type: ignore[arg-type]
    for sequences in (made, cpu):
        sequences.add(tokens_of(sum(n_rows), 1))
    products, kernels = [], []
    for n in n_rows:
        counting.reset()
        found, expected = made.step([(0, n)])[0], cpu.step([(0, n)])[0]
        assert np.linalg.norm(found - expected) < 2e-2 * np.linalg.norm(expected)
        products.append(counting.launches("MUL_MAT_ID"))
        kernels.append(counting.counts().launches)
    return products, kernels


@pytest.mark.parametrize(
    ("types", "options"),
    [
        (("q4_k", "q6_k"), {}),
        (("q8_0", "q4_k"), {}),
        (("mxfp4", "mxfp4"), {"unit": "clamped_swiglu", "biased": True}),
    ],
)
def test_experts_are_one_operation(
    types: tuple[str, str], options: dict[str, object], counting: CountingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = expert_model(types, **options)  # type: ignore[arg-type]
    products, before = steps_of(counting, traced, (9, 1))
    assert products == [3, 3]
    monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", "1")
    products, after = steps_of(counting, traced, (9, 1, 40))
    assert products == [0, 0, 0]
    assert all(a <= b - 6 for a, b in zip(after, before, strict=False))


@pytest.mark.parametrize(("unit", "types"), [("clipped", ("q8_0", "q8_0")), ("gated", ("q8_0", "q5_1"))])
def test_other_experts_are_left_to_ggml(
    unit: str, types: tuple[str, str], counting: CountingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", "1")
    assert steps_of(counting, expert_model(types, unit), (5, 1))[0] == [3, 3]


@pytest.mark.parametrize(
    ("lines", "n_products"),
    [
        (f"experts:q8_0 256 {INNER} 1 1\n", 0),
        (f"experts:q8_0 {INNER} 256 -1 1\n", 3),
        (f"q8_0 {INNER} 256 -1 1\n", 0),  # is of a matrix that is no expert's
    ],
)
def test_a_table_says_how_experts_are_multiplied(
    lines: str, n_products: int, counting: CountingDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "table.txt").write_text(lines)
    monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", str(tmp_path / "table.txt"))
    assert steps_of(counting, expert_model(("q8_0", "q8_0")), (3,))[0] == [n_products]


@pytest.mark.parametrize("line", ["experts:q5_k 256 256 0 1", "experts:q8_0 256 256 2 1", "experts:q8_0 256 256 0 2"])
def test_a_wrong_line_for_experts_is_named(
    line: str, counting: CountingDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "table.txt").write_text(line)
    monkeypatch.setenv("QUIRE_BATCH_PRODUCTS", str(tmp_path / "table.txt"))
    with pytest.raises(LoadError, match=line):
        Sequences(Variant(), counting, traced=expert_model(("q8_0", "q8_0")), max_rows=16)
