"""Layers of experts on tensor cores (native/cuda/expert_layer.cuh), run on the CPU with the threads of a block in three
orders, where asynchronous copies arrive as late as they may.  Oracle: NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from emulated_kernels import expert_kernels
from quire._native.quant import dequantize, quantize

Array = npt.NDArray[np.float32]
# In the order of ArrangedType.
TYPES = ["q4_0", "q8_0", "q4_k", "q5_k", "q6_k", "mxfp4", "bf16", "q4_1", "q5_0", "nvfp4"]
UNITS = ["silu", "gelu_tanh", "silu_limited"]
ALPHA, LIMIT = 1.702, 2.5


class LayerParams(ctypes.Structure):
    """ExpertLayer of native/cuda/expert_layer.h."""

    _fields_ = [
        ("magic", ctypes.c_uint32), ("up_type", ctypes.c_uint8), ("down_type", ctypes.c_uint8),
        ("up_variant", ctypes.c_uint8), ("down_variant", ctypes.c_uint8), ("n_inner", ctypes.c_int32),
        ("n_expert", ctypes.c_int32), ("alpha", ctypes.c_float), ("limit", ctypes.c_float), ("unit", ctypes.c_uint8),
        ("weighs_input", ctypes.c_uint8), ("unused", ctypes.c_uint8 * 2),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    return ctypes.CDLL(str(expert_kernels()))


class Layer:
    """Experts, the tokens that they read, and each token's choice."""

    def __init__(
        self, types: tuple[str, str], n_in: int, n_inner: int, n_expert: int, n_tokens: int, n_used: int,
        *, unit: str = "silu", weighs_input: bool = False, biased: bool = False,
    ) -> None:  # fmt: skip
        random = np.random.default_rng(n_in + n_inner + n_tokens)
        self.types, self.n_in, self.n_inner, self.n_expert = types, n_in, n_inner, n_expert
        self.unit, self.weighs_input = unit, weighs_input
        shapes = [(n_inner, n_in), (n_inner, n_in), (n_in, n_inner)]
        self.stored, self.matrices = list[npt.NDArray[np.uint8]](), list[npt.NDArray[np.float64]]()
        for (n_out, n), dtype in zip(shapes, (types[0], types[0], types[1]), strict=True):
            drawn = random.standard_normal((n_expert * n_out, n)) * n**-0.5
            matrix = quantize(drawn.astype(np.float32), dtype)
            self.stored.append(np.ascontiguousarray(matrix.numpy()).view(np.uint8).reshape(n_expert, -1))
            self.matrices.append(dequantize(matrix).astype(np.float64).reshape(n_expert, n_out, n))
        self.biases = [random.standard_normal((n_expert, n)).astype(np.float32) for n, _ in shapes] if biased else []
        self.x = random.standard_normal((n_tokens, n_in)).astype(np.float32)
        # Choices are a part of longer rows, as ggml has them; some experts are chosen often, some never.
        ranked = np.argsort(random.random((n_tokens, n_expert)) + np.arange(n_expert) / n_expert, axis=1)
        self.ranked, self.n_used = ranked.astype(np.int32), n_used
        self.weights = random.uniform(0.1, 1, (n_tokens, n_used)).astype(np.float32)
        self.added = random.standard_normal((n_tokens, n_in)).astype(np.float32)

    def expected(self, added: bool) -> npt.NDArray[np.float64]:
        out = np.zeros((len(self.x), self.n_in))
        for token, choices in enumerate(self.ranked[:, : self.n_used]):
            for weight, expert in zip(self.weights[token].astype(np.float64), choices, strict=True):
                x = self.x[token] * (weight if self.weighs_input else 1.0)
                bias = [each[expert] for each in self.biases] or [0, 0, 0]
                gate, up = (self.matrices[i][expert] @ x + bias[i] for i in (0, 1))
                if self.unit == "silu_limited":
                    gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
                    inner = gate / (1 + np.exp(-ALPHA * gate)) * (up + 1)
                elif self.unit == "silu":
                    inner = gate / (1 + np.exp(-gate)) * up
                else:
                    inner = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
                out[token] += (self.matrices[2][expert] @ inner + bias[2]) * (1.0 if self.weighs_input else weight)
        return out + self.added if added else out

    def run(
        self, kernels: ctypes.CDLL, *, variants: tuple[int, int] = (0, 0), order: int = 0,
        rows: slice = slice(None), added: bool = False,
    ) -> Array:  # fmt: skip
        x, ranked, weights, more = (
            np.ascontiguousarray(each[rows]) for each in (self.x, self.ranked, self.weights, self.added)
        )
        stored = (ctypes.c_void_p * 3)(*(each.ctypes.data for each in self.stored))
        sizes = self.n_in, self.n_inner, self.n_expert, self.n_expert, self.n_used, len(x)
        assert kernels.experts_open(*map(TYPES.index, self.types), stored, *sizes) == 0
        layer = LayerParams(up_variant=variants[0], down_variant=variants[1], alpha=ALPHA, limit=LIMIT)
        layer.unit, layer.weighs_input = UNITS.index(self.unit), self.weighs_input
        biases = (ctypes.c_void_p * 3)(*(each.ctypes.data for each in self.biases))
        out = np.full((len(x), self.n_in), np.nan, np.float32)
        arrays = (ctypes.c_void_p(a.ctypes.data) for a in (x, ranked, weights))
        last = ctypes.c_void_p(more.ctypes.data if added else None), ctypes.c_void_p(out.ctypes.data)
        kernels.cuda_run_experts(ctypes.byref(layer), biases, *arrays, *last, len(x), ranked.shape[1], order)
        return out


def check(layer: Layer, found: Array, expected: npt.NDArray[np.float64]) -> None:
    step = 2.0**-7 if "bf16" in layer.types else 2.0**-9
    np.testing.assert_allclose(found, expected, rtol=0, atol=step * np.abs(expected).max())


@pytest.mark.parametrize(
    ("types", "sizes", "variants", "options"),
    [
        (("q4_k", "q6_k"), (256, 256, 5, 3, 2), (0, 0), {}),
        (("q4_k", "q8_0"), (256, 96, 3, 24, 2), (1, 1), {"weighs_input": True}),  # 16 tokens an expert
        (("q8_0", "q8_0"), (96, 80 * 4, 4, 9, 3), (0, 1), {"unit": "gelu_tanh"}),  # units are filled up
        (("mxfp4", "mxfp4"), (288, 96, 4, 9, 2), (1, 0), {"unit": "silu_limited", "biased": True}),
        (("bf16", "bf16"), (160, 64, 2, 40, 2), (0, 1), {}),  # every token chooses both
    ],
)
def test_layers_equal_numpy(
    kernels: ctypes.CDLL,
    types: tuple[str, str],
    sizes: tuple[int, int, int, int, int],
    variants: tuple[int, int],
    options: dict[str, object],
) -> None:
    layer = Layer(types, *sizes, **options)  # type: ignore[arg-type]
    added = variants[0] == 1
    check(layer, layer.run(kernels, variants=variants, added=added), layer.expected(added))


def test_threads_may_run_in_any_order(kernels: ctypes.CDLL) -> None:
    layer = Layer(("q4_k", "mxfp4"), 256, 64, 4, 7, 2)
    first, *others = (layer.run(kernels, variants=(0, 1), order=order) for order in range(3))
    check(layer, first, layer.expected(False))
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_bits_of_a_token_do_not_depend_on_other_tokens(kernels: ctypes.CDLL) -> None:
    """Blocks of 8, 16 and 64 rows give the same bits."""
    layer = Layer(("q8_0", "q8_0"), 32, 64, 3, 40, 2)
    together = layer.run(kernels, variants=(1, 0))
    for rows in (slice(5, 6), slice(5, 13), slice(5, 23)):
        np.testing.assert_array_equal(layer.run(kernels, variants=(1, 0), rows=rows), together[rows])
