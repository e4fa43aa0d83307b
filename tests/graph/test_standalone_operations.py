"""Every standalone operation on random numbers: NumPy against ggml's operators against our own kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from quire._native import graph
from quire._native.core import find_device
from quire._native.graph import TraceTensor
from quire.errors import ShapeError
from test_recurrent import CASES as WITH_STATE
from trace_bench import Bench

Array = npt.NDArray[np.float32]

Case = Callable[[Bench], tuple[TraceTensor, npt.NDArray[np.floating]]]


def element(operation: Callable[[TraceTensor], TraceTensor], reference: Callable[[Array], Array]) -> Case:
    def case(bench: Bench) -> tuple[TraceTensor, Array]:
        x, numbers = bench.value(3, 5)
        return operation(x), reference(numbers)

    return case


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def xielu(bench: Bench) -> tuple[TraceTensor, Array]:
    x, v = bench.value(12)
    y = graph.xielu(x, alpha_p=0.8, alpha_n=1.3, beta=0.5, eps=-1e-6)
    return y, np.where(v > 0, 0.8 * v * v + 0.5 * v, (np.expm1(np.minimum(v, -1e-6)) - v) * 1.3 + 0.5 * v)


def clamped_swiglu(bench: Bench) -> tuple[TraceTensor, Array]:
    (gate, g), (up, u) = bench.value(9), bench.value(9)
    y = graph.clamped_swiglu(gate, up, alpha=1.702, limit=1.1)
    clipped = np.minimum(g, 1.1)
    return y, clipped * sigmoid(np.float32(1.702) * clipped) * (np.clip(u, -1.1, 1.1) + 1)


def broadcast(
    operation: Callable[..., TraceTensor], reference: Callable[[Array, Array], Array], shape: Sequence[int]
) -> Case:
    def case(bench: Bench) -> tuple[TraceTensor, Array]:
        (a, x), (b, y) = bench.value(3, 4), bench.value(*shape)
        return operation(a, b), reference(x, y)

    return case


def with_weight(
    operation: Callable[..., TraceTensor], reference: Callable[[Array, Array], Array], shape: Sequence[int]
) -> Case:
    def case(bench: Bench) -> tuple[TraceTensor, Array]:
        (a, x), w = bench.value(3, 4), bench.array(*shape)
        return operation(a, bench.weight(w)), reference(x, w)

    return case


def layer_norm(has_weight: bool, has_bias: bool) -> Case:
    def case(bench: Bench) -> tuple[TraceTensor, Array]:
        x, v = bench.value(3, 8)
        w, b = bench.array(8), bench.array(8)
        y = graph.layer_norm(x, bench.weight(w) if has_weight else None, bench.weight(b) if has_bias else None, 1e-3)
        normed = (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-3)
        return y, normed * (w if has_weight else 1) + (b if has_bias else 0)

    return case


def group_norm(bench: Bench) -> tuple[TraceTensor, Array]:
    (x, v), w = bench.value(12), bench.array(12)
    parts = v.reshape(-1, 3, 4)
    normed = parts / np.sqrt((parts**2).mean(-1, keepdims=True) + 1e-5)
    return graph.group_norm(x, 3, bench.weight(w), 1e-5), normed.reshape(-1, 12) * w


def l2_norm(bench: Bench) -> tuple[TraceTensor, Array]:
    x, v = bench.value(3, 4)
    return graph.l2_norm(x, 1e-6), v / np.maximum(np.sqrt((v**2).sum(-1, keepdims=True)), 1e-6)


def softmax(bench: Bench) -> tuple[TraceTensor, Array]:
    x, v = bench.value(3, 4)
    e = np.exp(v - v.max(-1, keepdims=True))
    return graph.softmax(x), e / e.sum(-1, keepdims=True)


def concat(axis: int) -> Case:
    def case(bench: Bench) -> tuple[TraceTensor, Array]:
        (a, x), (b, y) = bench.value(3, 4), bench.value(*((3, 6) if axis == 0 else (2, 4)))
        return graph.concat(a, b, axis), np.concatenate([x, y], axis=-1 - axis)

    return case


def head_linear(n_out: int, n_in: int) -> Case:
    def case(bench: Bench) -> tuple[TraceTensor, Array]:
        (x, v), w = bench.value(3, n_in), bench.array(3, n_out, n_in)
        return graph.head_linear(x, bench.weight(w)), np.einsum("rhi,hoi->rho", v, w)

    return case


def scale_by_position(bench: Bench) -> tuple[TraceTensor, Array]:
    x, v = bench.value(2, 3)
    y = graph.scale_by_position(x, bench.tracer.positions, beta=0.3, n_ctx=2, offset=1)
    factor = 1 + 0.3 * np.log1p(np.floor((np.arange(len(v)) + 1) / 2))
    return y, v * factor[:, None, None]


def hyper_weights(bench: Bench) -> tuple[TraceTensor, Array]:
    n, eps = 3, 1e-3
    (x, v), scale, base = bench.value(2 * n + n * n), bench.array(3), bench.array(2 * n + n * n)
    y = graph.hyper_weights(x, bench.weight(scale), bench.weight(base), n=n, iterations=3, eps=eps)
    a = v * np.repeat(scale, [n, n, n * n]) + base
    mix = np.exp(a[:, 2 * n :].reshape(-1, n, n))
    mix = mix / mix.sum(-1, keepdims=True) + eps
    mix = mix / (mix.sum(-2, keepdims=True) + eps)
    for _ in range(2):
        for axis in (-1, -2):
            mix = mix / (mix.sum(axis, keepdims=True) + eps)
    return y, np.concatenate([sigmoid(a[:, :n]) + eps, 2 * sigmoid(a[:, n : 2 * n]), mix.reshape(len(v), -1)], 1)


def hyper_input(bench: Bench) -> tuple[TraceTensor, Array]:
    (streams, s), (weights, w) = bench.value(3, 5), bench.value(15)
    return graph.hyper_input(streams, weights), np.einsum("rn,rnd->rd", w[:, :3], s)


def hyper_output(bench: Bench) -> tuple[TraceTensor, Array]:
    (streams, s), (y, v), (weights, w) = bench.value(3, 5), bench.value(5), bench.value(15)
    mixed = np.einsum("rjk,rjd->rkd", w[:, 6:].reshape(-1, 3, 3), s)
    return graph.hyper_output(streams, y, weights), mixed + w[:, 3:6, None] * v[:, None]


CASES: dict[str, list[Case]] = {
    "sigmoid": [element(graph.sigmoid, sigmoid)],
    "softplus": [element(graph.softplus, lambda x: np.log1p(np.exp(x)))],
    "tanh": [element(graph.tanh, np.tanh)],
    "exp": [element(graph.exp, np.exp)],
    "relu_squared": [element(graph.relu_squared, lambda x: np.maximum(x, 0) ** 2)],
    "quick_gelu": [element(graph.quick_gelu, lambda x: x * sigmoid(np.float32(1.702) * x))],
    "negate": [element(graph.negate, np.negative)],
    "sqrt": [element(lambda x: graph.sqrt(graph.relu_squared(x)), lambda x: np.maximum(x, 0))],
    "clamp": [element(lambda x: graph.clamp(x, -0.5, 1.0), lambda x: np.clip(x, -0.5, 1.0))],
    "xielu": [xielu],
    "clamped_swiglu": [clamped_swiglu],
    "add_broadcast": [broadcast(graph.add_broadcast, np.add, s) for s in ((3, 4), (3, 1), (1, 4))],
    "multiply_broadcast": [broadcast(graph.multiply_broadcast, np.multiply, s) for s in ((3, 4), (3, 1), (1, 4))],
    "add_weight": [with_weight(graph.add_weight, np.add, s) for s in ((4,), (3, 4), (3, 1))],
    "multiply_weight": [with_weight(graph.multiply_weight, np.multiply, s) for s in ((4,), (3, 4), (3, 1), (1,))],
    "layer_norm": [layer_norm(True, True), layer_norm(True, False), layer_norm(False, False)],
    "l2_norm": [l2_norm],
    "softmax": [softmax],
    "group_norm": [group_norm],
    "slice": [
        element(lambda x: graph.slice(x, 0, 1, 4), lambda x: x[..., 1:4]),
        element(lambda x: graph.slice(x, 1, 1, 3), lambda x: x[..., 1:3, :]),
    ],
    "concat": [concat(0), concat(1)],
    "repeat_heads": [element(lambda x: graph.repeat_heads(x, 3), lambda x: np.repeat(x, 3, axis=1))],
    "reshape": [element(lambda x: graph.reshape(x, [5, 3]), lambda x: x.reshape(-1, 5, 3))],
    "head_linear": [head_linear(5, 8), head_linear(64, 20)],  # the second in a layout of our own
    "scale_by_position": [scale_by_position],
    "hyper_weights": [hyper_weights],
    "hyper_input": [hyper_input],
    "hyper_output": [hyper_output],
}


def test_every_standalone_operation_has_an_entry() -> None:
    assert set(graph.STANDALONE) <= set(CASES) | set(WITH_STATE)


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
def test_numbers_equal_numpy(name: str, case: Case, kernels: str) -> None:
    bench = Bench(seed=len(name))
    y, expected = case(bench)
    assert [int(d) for d in y.shape[1:]] == list(expected.shape[1:])
    # ggml looks quick GELU up in a table of half precision.
    tolerance = 2e-3 if name == "quick_gelu" else 2e-6
    np.testing.assert_allclose(bench.run(y, kernels), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
def test_a_table_may_be_indexed_by_positions(kernels: str) -> None:
    bench = Bench()
    table, (x, numbers) = bench.array(16, 6), bench.value(6)
    y = x + graph.embed(bench.tracer.positions, bench.weight(table))
    np.testing.assert_allclose(bench.run(y, kernels), numbers + table[: len(numbers)], rtol=1e-6, atol=1e-6)


def test_rotation_is_by_the_positions_of_the_step() -> None:
    bench = Bench()
    x, _ = bench.value(2, 4)
    with pytest.raises(ShapeError, match="not the step's positions"):
        graph.rope(x, bench.tracer.tokens, graph.RopeSpec(n_dims=4, layout="half", freq_base=1e4))


@pytest.mark.parametrize(
    "bad",
    [
        lambda x, y: graph.slice(x, 0, 3, 3),
        lambda x, y: graph.slice(x, 2, 0, 1),
        lambda x, y: graph.concat(x, y, 0),
        lambda x, y: graph.clamp(x, 1, 0),
        graph.add_broadcast,
        lambda x, y: graph.repeat_heads(x, 0),
        lambda x, y: graph.reshape(x, [7]),
        lambda x, y: graph.group_norm(x, 2, None, 1e-5),
        lambda x, y: graph.layer_norm(x, None, None, float("nan")),
        lambda x, y: graph.xielu(x, alpha_p=0, alpha_n=1, beta=0.5, eps=0),
        lambda x, y: graph.clamped_swiglu(x, y, alpha=1, limit=1),
        lambda x, y: graph.scale_by_position(x, x, beta=1, n_ctx=2),
    ],
)
def test_mismatched_shapes_are_refused(bad: Callable[[TraceTensor, TraceTensor], TraceTensor]) -> None:
    bench = Bench()
    with pytest.raises(ShapeError):
        bad(bench.value(3, 4)[0], bench.value(2, 5)[0])


def test_operations_computed_by_ggml_are_listed() -> None:
    bench = Bench()
    x, _ = bench.value(3, 8)
    y = graph.head_linear(graph.sigmoid(x), bench.weight(bench.array(3, 5, 8)))
    trace = bench.tracer.finish(graph.select_rows(graph.reshape(y, [15]), bench.tracer.logit_rows))
    for kernels in ("cpu", "stock"):
        executor = graph.Executor(trace, find_device("cpu"), n_blocks=2, kernels=kernels)  # type: ignore[arg-type]
        assert executor.stock_operations == []  # every operation has a kernel of ours
