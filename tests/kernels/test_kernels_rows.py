"""Norms, rotations and activations against NumPy in double precision, on every instruction set of this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import chosen, using
from quire._native import kernels, testing
from quire.errors import ShapeError, UnsupportedError

Array = npt.NDArray[np.float32]
SIZES = [1, 2, 3, 7, 15, 16, 17, 64, 80, 129, 1024]


@pytest.fixture(params=kernels.supported_isas(), autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with using(request.param):
        yield request.param


def numbers(n: int, scale: float = 3.0, seed: int = 0) -> Array:
    return (np.random.default_rng(seed + n).standard_normal(n) * scale).astype(np.float32)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e8])
def test_layer_norm(n: int, scale: float) -> None:
    x = numbers(3 * n, scale).reshape(3, n) + np.float32(scale)
    weight, bias = numbers(n, seed=5), numbers(n, seed=6)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(axis=1, keepdims=True)) / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-6)
    for w, b in ((None, None), (weight, None), (None, bias), (weight, bias)):
        found = testing.layer_norm(chosen(), x, w, b, 1e-6)
        exact = expected * (1 if w is None else w) + (0 if b is None else b)
        # The difference from the mean has an error proportional to the numbers.
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5 * float(np.abs(weight).max()))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e8])
def test_rms_norm(n: int, scale: float) -> None:
    x, weight = numbers(3 * n, scale).reshape(3, n), numbers(n, seed=5)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(testing.rms_norm(chosen(), x, None, 1e-6), expected, rtol=2e-6, atol=1e-30)
    np.testing.assert_allclose(testing.rms_norm(chosen(), x, weight, 1e-6), expected * weight, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("n", [2, 6, 14, 16, 30, 34, 64, 80, 128])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotate(n: int, interleaved: bool) -> None:
    x, cosines, sines = numbers(n), numbers(n, 1.0, 1), numbers(n, 1.0, 2)
    partner = x.reshape(-1, 2)[:, ::-1].reshape(-1) if interleaved else np.roll(x, n // 2)
    expected = x.astype(np.float64) * cosines + partner.astype(np.float64) * sines
    found = testing.rotate(chosen(), x, cosines, sines, interleaved=interleaved)
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())


def double(x: Array, activation: str) -> npt.NDArray[np.float64]:
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        if activation == "silu":
            return wide / (1 + np.exp(-wide))
    if activation == "gelu":
        return 0.5 * wide * (1 + np.array([math.erf(v / math.sqrt(2)) for v in wide]))
    if activation == "gelu_tanh":
        return 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    return np.maximum(wide, 0)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("n", SIZES)
def test_activations_and_gates(activation: str, n: int) -> None:
    x, up = numbers(n, 4.0), numbers(n, seed=9)
    expected = double(x, activation)
    # Errors by cancellation near zero are small relative to the operand.
    np.testing.assert_allclose(
        testing.activate(chosen(), x, activation), expected, rtol=1e-6, atol=3e-7 * np.abs(x).max()
    )
    np.testing.assert_allclose(
        testing.gate(chosen(), x, up, activation),
        expected * up,
        rtol=2e-6,
        atol=1e-6 * np.abs(x).max() * np.abs(up).max(),
    )


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_activations_of_extreme_values(activation: str) -> None:
    x = np.array([0.0, -0.0, 1e-40, -1e-40, 88.0, -88.0, 200.0, -200.0, 1e30, -1e30, np.inf, np.nan], np.float32)
    found = testing.activate(chosen(), x, activation)
    assert found[:2].tolist() == [0.0, 0.0]
    assert np.abs(found[2:4]).max() <= 1e-40
    np.testing.assert_allclose(found[[4, 6, 8]], x[[4, 6, 8]], rtol=1e-6)
    np.testing.assert_allclose(found[[5, 7, 9]], 0, atol=1e-7)
    assert found[10] == np.inf
    if activation != "relu":
        assert np.isnan(found[11])


@pytest.mark.parametrize("n", SIZES)
def test_soft_cap(n: int) -> None:
    x = numbers(n, 40.0)
    expected = 30 * np.tanh(x.astype(np.float64) / 30)
    np.testing.assert_allclose(testing.soft_cap(chosen(), x, 30.0), expected, rtol=2e-6, atol=1e-6)


def test_invalid_arguments_are_errors() -> None:
    with pytest.raises(ShapeError, match="different shapes"):
        testing.gate(chosen(), numbers(3), numbers(4), "silu")
    with pytest.raises(UnsupportedError, match="'swish'"):
        testing.activate(chosen(), numbers(3), "swish")
    with pytest.raises(ShapeError, match="even size"):
        testing.rotate(chosen(), numbers(3), numbers(3), numbers(3))


@pytest.mark.parametrize("n", [0, *SIZES])
def test_largest(n: int) -> None:
    x = numbers(n) - 5
    assert testing.largest(chosen(), x) == x.max(initial=-np.inf)
    for i in {0, n // 2, n - 1} if n else set():
        for strange in (np.nan, np.inf, -np.inf):
            y = x.copy()
            y[i] = strange
            assert math.isnan(testing.largest(chosen(), y))
