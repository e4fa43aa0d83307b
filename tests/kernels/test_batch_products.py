"""Products of few rows on tensor cores (native/cuda/batch_product.cuh), run on the CPU with the threads of a block in three
orders, where asynchronous copies arrive as late as they may.  Oracle: NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from emulated_kernels import batch_kernels
from quire._native.quant import dequantize, quantize

Array = npt.NDArray[np.float32]
# In the order of ArrangedType.
TYPES = ["q4_0", "q8_0", "q4_k", "q5_k", "q6_k", "mxfp4", "bf16", "q4_1", "q5_0", "nvfp4"]
EPS = 1e-5


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    return ctypes.CDLL(str(batch_kernels()))


def pointer(x: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


class Case:
    """A matrix, and rows to multiply."""

    def __init__(self, dtype: str, n_in: int, n_out: int, n_rows: int, *, weight_scale: float = 1.0) -> None:
        random = np.random.default_rng(n_in + n_out)
        # Rows and groups of very different sizes, so that every scale matters.
        sizes = np.exp(random.uniform(-3, 3, (n_out, n_in // 32, 1)))
        weights = (random.standard_normal((n_out, n_in // 32, 32)) * sizes).reshape(n_out, n_in) * weight_scale
        self.dtype, self.n_in, self.n_out, self.n_rows = dtype, n_in, n_out, n_rows
        matrix = quantize(weights.astype(np.float32), dtype)
        self.stored = np.ascontiguousarray(matrix.numpy()).view(np.uint8)
        self.weights = dequantize(matrix).astype(np.float64)
        self.x = (random.standard_normal((n_rows, n_in)) * np.exp(random.uniform(-9, 9, (n_rows, 1)))).astype(
            np.float32
        )
        self.norm = random.uniform(0.5, 1.5, n_in).astype(np.float32)
        self.added = random.standard_normal((n_rows, n_out)).astype(np.float32)

    def expected(self, normed: bool, added: bool) -> npt.NDArray[np.float64]:
        x = self.x.astype(np.float64)
        if normed:
            x = x / np.sqrt((x * x).mean(1, keepdims=True) + EPS) * self.norm
        made: npt.NDArray[np.float64] = x @ self.weights.T
        return made + self.added if added else made

    def run(
        self, kernels: ctypes.CDLL, *, variant: int, splits: int, order: int = 0, rows: slice = slice(None),
        normed: bool = False, added: bool = False,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Return the products, and the matrix as read back."""
        x, more = np.ascontiguousarray(self.x[rows]), np.ascontiguousarray(self.added[rows])
        out = np.full((len(x), self.n_out), np.nan, np.float32)
        decoded = np.full((self.n_out, self.n_in), np.nan, np.float32)
        assert kernels.batch_open(TYPES.index(self.dtype), pointer(self.stored), self.n_in, self.n_out, 1) == 0
        kernels.batch_decoded(pointer(decoded))
        more_or_none = pointer(more) if added else None, ctypes.c_float(EPS), order
        norm = pointer(self.norm) if normed else None
        kernels.batch_multiply(variant, splits, len(x), pointer(x), pointer(out), norm, *more_or_none)
        return out, decoded


def check(case: Case, found: Array, expected: npt.NDArray[np.float64], added: bool) -> None:
    """Rounding of rows and weights to f16 or bf16, relative to the sizes of the terms of each sum.

    A weight of q4_k or q5_k is a difference of two numbers as large as the largest of its group, each of which is rounded.
    """
    step = 2.0**-8 if case.dtype == "bf16" else 2.0**-10
    groups = np.abs(case.weights).reshape(case.n_out, -1, 32)
    sizes = np.broadcast_to(groups.max(2, keepdims=True), groups.shape).reshape(case.weights.shape)
    terms = np.sqrt((case.x.astype(np.float64) ** 2) @ (sizes**2).T)
    if added:
        terms = terms + np.abs(case.added)
    np.testing.assert_array_less(np.abs(found - expected), 3 * step * terms + 1e-30)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("variant", "splits", "n_in", "n_out", "n_rows"),
    [(0, 1, 512, 40, 3), (1, 2, 768, 48, 9), (2, 3, 1024, 70, 20), (3, 1, 512, 130, 33)],
)
def test_products_equal_numpy(
    kernels: ctypes.CDLL, dtype: str, variant: int, splits: int, n_in: int, n_out: int, n_rows: int
) -> None:
    case = Case(dtype, n_in, n_out, n_rows)
    added = variant % 2 == 1
    found, decoded = case.run(kernels, variant=variant, splits=splits, added=added)
    check(case, found, case.expected(False, added), added)
    np.testing.assert_allclose(decoded, case.weights, rtol=1e-6)  # powers of two change no number


@pytest.mark.parametrize(("dtype", "variant", "splits"), [("q4_k", 0, 2), ("q6_k", 2, 1), ("q8_0", 3, 2)])
def test_threads_may_run_in_any_order(kernels: ctypes.CDLL, dtype: str, variant: int, splits: int) -> None:
    case = Case(dtype, 1024, 36, 7)
    first, *others = (
        case.run(kernels, variant=variant, splits=splits, order=order, normed=True)[0] for order in range(3)
    )
    for other in others:
        np.testing.assert_array_equal(first, other)
    expected = case.expected(True, False)
    np.testing.assert_allclose(first, expected, atol=4e-3 * np.abs(expected).max())


@pytest.mark.parametrize(("dtype", "variant", "splits"), [("q4_k", 3, 2), ("q6_k", 0, 1), ("bf16", 1, 2)])
def test_bits_of_a_row_do_not_depend_on_other_rows(kernels: ctypes.CDLL, dtype: str, variant: int, splits: int) -> None:
    case = Case(dtype, 512, 32, 64)
    together = case.run(kernels, variant=variant, splits=splits, normed=True)[0]
    for rows in (slice(5, 6), slice(5, 13), slice(5, 37)):
        found = case.run(kernels, variant=variant, splits=splits, rows=rows, normed=True)[0]
        np.testing.assert_array_equal(found, together[rows])


@pytest.mark.parametrize("dtype", ["q4_k", "q8_0", "mxfp4"])
@pytest.mark.parametrize("scale", [1e-4, 1e3])
def test_scales_stay_in_the_range_of_halves(kernels: ctypes.CDLL, dtype: str, scale: float) -> None:
    case = Case(dtype, 256, 16, 2, weight_scale=scale)
    found, _ = case.run(kernels, variant=0, splits=1)
    # Scales this small are themselves rounded in the file, which the oracle knows.
    check(case, found, case.expected(False, False), False)


def test_an_empty_row_and_an_empty_matrix_give_zeros(kernels: ctypes.CDLL) -> None:
    case = Case("q4_k", 256, 16, 2)
    case.x[0] = 0
    found, _ = case.run(kernels, variant=1, splits=1)
    assert (found[0] == 0).all()
    assert (found[1] != 0).all()
    case.stored[...] = 0
    assert (case.run(kernels, variant=1, splits=1)[0] == 0).all()


@pytest.mark.parametrize("dtype", ["q8_0", "mxfp4", "bf16"])
def test_units_are_filled_up(kernels: ctypes.CDLL, dtype: str) -> None:
    """Widths such as gpt-oss's 2880 are no multiple of 256."""
    case = Case(dtype, 2 * 256 + 64, 40, 3)
    found, decoded = case.run(kernels, variant=1, splits=2)
    check(case, found, case.expected(False, False), False)
    np.testing.assert_allclose(decoded, case.weights, rtol=1e-6)
