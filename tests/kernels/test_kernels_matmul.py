"""Quire's matrix products.  Oracle: NumPy in double precision on the dequantized weights."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import quire
from chosen_kernels import chosen, using
from matmul_bounds import (
    FLOATS,
    MANY_ROWS,
    MULTIPLYING_BF16,
    arithmetic_bound,
    held_weights,
    rounding_bound,
    rounds_to_bf16,
    seen_activations,
)
from quire import ShapeError, UnsupportedError, dequantize
from quire._native.kernels import KernelSet, emulated_isas, supported_isas
from quire._native.quant import needs_importance
from quire._native.testing import PackedMatrix

SMALL_BLOCKS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "nvfp4", "q2_0"]
QUANTIZED = [*SMALL_BLOCKS, "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "iq2_xs"]
FORMATS = [*FLOATS, *QUANTIZED]
# Types whose packed form takes more than 1.06 of their size.
PACKED_BITS = {
    "tq1_0": 2.625, "tq2_0": 2.625, "q1_0": 2.5, "q2_0": 2.5, "iq1_s": 3.625, "iq1_m": 3.625, "iq2_xxs": 3.625,
    "iq2_xs": 3.625, "iq2_s": 3.625, "iq3_xxs": 4.375, "iq3_s": 4.375,
}  # fmt: skip


ISAS = [*supported_isas(), *emulated_isas()]


@pytest.fixture(params=ISAS)
def each_isa(request):
    with using(request.param):
        yield request.param


by_tiles = pytest.mark.parametrize("each_isa", [isa for isa in ISAS if "amx" in isa], indirect=True)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantize(weights: np.ndarray, dtype: str) -> quire.Tensor:
    importance = np.ones(weights.shape[-1], np.float32) if needs_importance(dtype) else None
    return quire.quantize(weights, dtype, importance)


def columns_of(dtype: str, n: int) -> int:
    size = quire.DType(dtype).block_size
    return -(-n // size) * size


def check(dtype: str, weights: np.ndarray, x: np.ndarray, **options: object) -> np.ndarray:
    """Return the product after comparing it with the oracle."""
    return check_tensor(quantize(weights, dtype), x, **options)


def check_tensor(tensor: quire.Tensor, x: np.ndarray, **options: object) -> np.ndarray:
    found = PackedMatrix(tensor, chosen()).multiply(x, **options)
    assert found.dtype == np.float32
    seen = seen_activations(x, tensor.dtype.name)
    arithmetic = arithmetic_bound(seen, tensor)
    assert (np.abs(found - seen @ held_weights(tensor).T) <= arithmetic).all()
    assert (
        np.abs(found - x.astype(np.float64) @ dequantize(tensor).astype(np.float64).T)
        <= arithmetic + rounding_bound(x, tensor)
    ).all()
    return found


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", [(1, 32), (16, 64), (17, 96), (100, 512), (33, 800)])
def test_packing_keeps_every_value(dtype, shape):
    n_out, n_in = shape[0], columns_of(dtype, shape[1])
    weights = normal(n_out, n_in)
    weights[0, :3] = [1e-7, 0, -1e-6]  # subnormal as f16
    tensor = quantize(weights, dtype)
    packed = PackedMatrix(tensor, chosen(), threads=3)
    assert packed.shape == (n_out, n_in)
    np.testing.assert_array_equal(packed.values(), held_weights(tensor))


def test_f16_is_rounded_if_bf16_is_multiplied(each_isa):
    """Weights that were BF16 before lose nothing, except numbers that are subnormal in F16."""
    values = normal(70, 96)
    as_bf16 = dequantize(quantize(values, "bf16"))
    np.testing.assert_array_equal(PackedMatrix(quantize(as_bf16, "f16"), chosen()).values(), as_bf16)
    others = PackedMatrix(quantize(values, "f16"), chosen()).values()
    exact = dequantize(quantize(values, "f16"))
    assert (others == exact).all() == (not rounds_to_bf16("f16"))
    assert (np.abs(others - exact) <= 2.0**-8 * np.abs(exact)).all()


@pytest.mark.parametrize("dtype", FORMATS)
def test_packing_takes_any_bytes(dtype):
    """Also scales and minima that no quantizer produces: negative, subnormal, the largest."""
    d = quire.DType(dtype)
    storage = np.random.default_rng(3).integers(0, 256, (48, d.row_bytes(512)), np.uint8)
    tensor = quire.Tensor.from_numpy(storage.view({"f32": "f4", "f16": "f2", "bf16": "u2"}.get(dtype, "u1")), dtype)
    np.testing.assert_array_equal(PackedMatrix(tensor, chosen()).values(), held_weights(tensor))


@pytest.mark.parametrize("dtype", FORMATS)
def test_packing_costs_little_memory(dtype):
    tensor = quantize(normal(64, 1024), dtype)
    most = PACKED_BITS[dtype] * 64 * 1024 / 8 if dtype in PACKED_BITS else 1.06 * tensor.size_bytes
    assert PackedMatrix(tensor, chosen()).size_bytes <= most


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 24, 25, 31, 200])
def test_products(each_isa, dtype, n_rows):
    n_in = columns_of(dtype, 32 * (n_rows % 5 + 1))
    for n_out in (1, 17, 64, 130):
        check(dtype, normal(n_out, n_in, seed=n_out), normal(n_rows, n_in, seed=n_rows), n_workers=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_number_of_columns(each_isa, dtype):
    """BF16 is multiplied in pairs of columns, so each tile of 64 output rows ends with padding if their number is odd."""
    for n_in in (1, 2, 31, 257):
        for n_out in (64, 130):
            tensor = quantize(normal(n_out, n_in, seed=n_out), dtype)
            np.testing.assert_array_equal(PackedMatrix(tensor, chosen()).values(), held_weights(tensor))
            for n_rows in (1, 7, 33):
                check_tensor(tensor, normal(n_rows, n_in, seed=n_rows))


@functools.cache
def large_matrix(dtype: str) -> quire.Tensor:
    return quantize(normal(1100, 1024), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_rows_bits_depend_on_that_row_alone(each_isa, dtype):
    """Alone or in a batch, in any part, with any number of workers, rounded by each worker or once."""
    weights = PackedMatrix(large_matrix(dtype), chosen())
    x = normal(400, 1024, seed=1)
    whole = weights.multiply(x, n_workers=3)
    for row in (0, 5, 191, 192, 399):
        np.testing.assert_array_equal(weights.multiply(x[row : row + 1], raw=True)[0], whole[row])
    for n in (2, 4, 5, 7, 8, 9, 16, 17, 24, 25, 60):
        np.testing.assert_array_equal(weights.multiply(x[100 : 100 + n], n_workers=n), whole[100 : 100 + n])
    np.testing.assert_array_equal(weights.multiply(x[:30], raw=True, n_workers=2), whole[:30])


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-3, 1e3, 1e30])
def test_activations_of_any_size(each_isa, dtype, size):
    x = normal(3, 1280) * np.float32(size)
    x[1, 32:64] = 0
    x[2, ::7] *= 1e-4
    check(dtype, normal(20, 1280), x)


def noise(dtype: str, n_out: int, n_in: int, rng: np.random.Generator) -> quire.Tensor:
    """Any codes, and any finite scales: negative, subnormal, zero, large."""
    size = quire.DType(dtype).row_bytes(n_in)
    storage = rng.integers(0, 256, (n_out, size), np.uint8) & rng.choice(np.array([0xBB, 0x83, 0x8B], np.uint8))
    return quire.Tensor.from_numpy(storage.view({"f32": "f4", "f16": "f2", "bf16": "u2"}.get(dtype, "u1")), dtype)


@pytest.mark.parametrize("dtype", FORMATS)
def test_errors_stay_within_the_stated_bounds(each_isa, dtype):
    """The bounds of docs/kernels.md, for random shapes with odd remainders, noise, and activations of all magnitudes."""
    rng = np.random.default_rng(FORMATS.index(dtype))
    for _ in range(6):
        n_out, n_rows = int(rng.integers(1, 150)), int(rng.integers(1, 50))
        n_in = columns_of(dtype, 32 * int(rng.integers(1, 20)))
        x = rng.standard_normal((n_rows, n_in)).astype(np.float32)
        x *= np.float32(10) ** rng.integers(-42, 20, (n_rows, n_in // 32)).repeat(32, axis=1).astype(np.float32)
        check_tensor(noise(dtype, n_out, n_in, rng), x, n_workers=2)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_usual_error_is_small(each_isa, dtype):
    """The error for normal activations and weights, relative to the root mean square of the product."""
    x, tensor = normal(16, 2048, seed=1), quantize(normal(64, 2048, seed=2), dtype)
    exact = x.astype(np.float64) @ dequantize(tensor).astype(np.float64).T
    error = np.sqrt(np.square(PackedMatrix(tensor, chosen()).multiply(x) - exact).mean() / np.square(exact).mean())
    limit = 7e-3 if dtype in QUANTIZED else 3e-3 if rounds_to_bf16(dtype) else 1e-6
    assert error < limit


@by_tiles
@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("n_rows", [24, 25, 33, 100])
def test_many_rows(each_isa, dtype, n_rows):
    for n_out, columns in [(1, 32), (17, 96), (64, 1024), (130, 1056), (300, 160)]:
        n_in = columns_of(dtype, columns)
        check(dtype, normal(n_out, n_in, seed=n_out), normal(n_rows, n_in, seed=n_rows), n_workers=2)


@by_tiles
@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("dtype", FORMATS)
def test_many_rows_of_any_weights_and_activations(each_isa, dtype):
    rng = np.random.default_rng(FORMATS.index(dtype))
    for _ in range(4):
        n_out, n_rows = int(rng.integers(1, 150)), int(rng.integers(MANY_ROWS, 70))
        x = rng.standard_normal((n_rows, columns_of(dtype, 32 * int(rng.integers(1, 20))))).astype(np.float32)
        x *= np.float32(10) ** rng.integers(-30, 15, (n_rows, x.shape[1] // 32)).repeat(32, axis=1).astype(np.float32)
        check_tensor(noise(dtype, n_out, x.shape[1], rng), x, n_workers=2)


@pytest.mark.slow
@by_tiles
@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("dtype", FORMATS)
def test_with_many_rows_a_rows_bits_depend_on_that_row_alone(each_isa, dtype):
    weights = PackedMatrix(quantize(normal(300, 1536), dtype), chosen())
    x = normal(70 if each_isa in emulated_isas() else 600, 1536, seed=1)
    whole = weights.multiply(x, n_workers=3)
    for first, n in [(0, 25), (3, 25), (20, 32), (37, 33), (1, 65)]:
        for raw in (False, True):
            found = weights.multiply(x[first : first + n], n_workers=2, raw=raw)
            np.testing.assert_array_equal(found, whole[first : first + n])


@pytest.mark.usefixtures("each_isa", "free")
@pytest.mark.parametrize("dtype", QUANTIZED)
def test_many_rows_have_smaller_errors(dtype):
    x, tensor = normal(MANY_ROWS, 2048, seed=1), quantize(normal(64, 2048, seed=2), dtype)
    exact = x.astype(np.float64) @ dequantize(tensor).astype(np.float64).T
    found = PackedMatrix(tensor, chosen()).multiply(x)
    error = np.sqrt(np.square(found - exact).mean() / np.square(exact).mean())
    assert error < (3e-3 if chosen().determinism_costs else 7e-3)
    few = np.concatenate([PackedMatrix(tensor, chosen()).multiply(x[i : i + 8]) for i in range(0, MANY_ROWS, 8)])
    assert (found == few).all() == (not chosen().determinism_costs)
    with using(deterministic=True):
        np.testing.assert_array_equal(PackedMatrix(tensor, chosen()).multiply(x), few)


@pytest.mark.usefixtures("each_isa", "free")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [40, 1055])
def test_nan_and_infinity_show_in_the_result_of_many_rows(value, column):
    x = normal(40, 1056)
    x[3, column] = value
    found = PackedMatrix(quantize(normal(32, 1056), "q8_0"), chosen()).multiply(x)
    assert not np.isfinite(found[3]).any()
    assert np.isfinite(np.delete(found, 3, axis=0)).all()


def test_extreme_codes_do_not_overflow(each_isa):
    weights = np.full((16, 4096), -1.0, np.float32)
    weights[1::2] = 1
    for dtype in FORMATS:
        for sign in (1, -1):
            check(dtype, weights, np.full((7, 4096), sign, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("n_in", "column"), [(128, 40), (1056, 40), (1056, 1055)])
def test_nan_and_infinity_show_in_the_result(each_isa, value, n_in, column):
    x = normal(8, n_in)
    x[3, column] = value
    for raw in (False, True):
        found = PackedMatrix(quantize(normal(32, n_in), "q8_0"), chosen()).multiply(x, raw=raw)
        assert not np.isfinite(found[3]).any()
        assert np.isfinite(np.delete(found, 3, axis=0)).all()


def test_instruction_sets_give_the_same_bits():
    """Integer sums are exact and floats are summed in a fixed order; 16- and 32-bit weights agree within rounding."""
    best = chosen().isa
    x = normal(40, 512, seed=5)
    x[3, :32] = 0
    x[4] *= np.float32(1e-20)
    tensors = {dtype: quantize(normal(70, 512, seed=6), dtype) for dtype in FORMATS}
    storage = np.random.default_rng(7).integers(0, 256, (70, 10_000), np.uint8)
    for dtype in QUANTIZED:  # any scales and codes
        d = quire.DType(dtype)
        tensors[dtype + " of noise"] = quire.Tensor.from_numpy(storage[:, : d.row_bytes(512)].copy(), dtype)
    for name, tensor in tensors.items():
        found = {}
        for each in (*supported_isas(), *emulated_isas()):
            packed = PackedMatrix(tensor, KernelSet(each))
            found[each] = [packed.multiply(x[:n]) for n in (1, 2, 3, 7, 40)]
        for each, products in found.items():
            for some, wanted in zip(products, found[best], strict=True):
                if name in FLOATS:
                    size = np.abs(x[: len(some)]) @ np.abs(dequantize(tensor)).T
                    rounds = name != "f32" and not {each, best}.isdisjoint(MULTIPLYING_BF16)
                    factor = 2 if name == "f16" else 1  # weights are rounded to BF16, too
                    bound = 2.0**-8 * factor if rounds else 1e-6
                    assert (np.abs(some - wanted) <= bound * size).all()
                else:
                    np.testing.assert_array_equal(some, wanted, err_msg=f"{name} {each}")


@pytest.mark.parametrize("dtype", PACKED_BITS)
def test_types_that_are_converted_to_another_format(each_isa: str, dtype: str) -> None:
    """Any bytes give ggml's values, bit for bit."""
    rng = np.random.default_rng(5)
    anything = rng.integers(0, 256, (39, quire.DType(dtype).row_bytes(2048)), np.uint8)
    tensor = quire.Tensor.from_numpy(anything, dtype)
    packed, exact = PackedMatrix(tensor, chosen(), threads=2), dequantize(tensor)
    assert packed.size_bytes * 8 / (48 * 2048) == PACKED_BITS[dtype]
    if dtype in ("tq1_0", "tq2_0"):  # a minimum is subtracted, which gives NaN if both are infinite
        np.testing.assert_array_equal(packed.values()[np.isfinite(exact)], exact[np.isfinite(exact)])
    else:
        np.testing.assert_array_equal(packed.values(), exact)
    tensor = noise(dtype, 39, 768, rng)
    for x in (normal(1, 768), normal(40, 768)):
        check_tensor(tensor, x)


def test_concurrent_calls_do_not_interfere():
    packed = PackedMatrix(quantize(normal(130, 256), "q4_k"), chosen())
    inputs = [normal(20, 256, seed=seed) for seed in range(6)]
    alone = [packed.multiply(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: [packed.multiply(x, n_workers=2) for x in inputs], range(8)):
            np.testing.assert_array_equal(found, alone)


def test_shapes_that_do_not_fit_are_errors():
    with pytest.raises(UnsupportedError, match="i32"):
        PackedMatrix(quire.Tensor.from_numpy(np.zeros((16, 256), np.int32)), chosen())
    with pytest.raises(UnsupportedError, match=r"\[2, 15, 32\]"):  # a tile would have rows of two matrices
        PackedMatrix(quantize(normal(2, 15, 32), "q8_0"), chosen())
    packed = PackedMatrix(quantize(normal(16, 32), "q8_0"), chosen())
    for x in (normal(1, 31), normal(32), normal(0, 32)):
        with pytest.raises(ShapeError, match=r"\[1 or more, 32\]"):
            packed.multiply(x)
    for n_workers in (0, 257):
        with pytest.raises(ShapeError, match=rf"n_workers .*{n_workers}\b"):
            packed.multiply(normal(1, 32), n_workers=n_workers)


def test_matrices_of_one_shape_are_packed_as_one():
    values = normal(3, 16, 64)
    packed = PackedMatrix(quantize(values, "q8_0"), chosen())
    assert packed.shape == (48, 64)
    np.testing.assert_array_equal(packed.values(), dequantize(quantize(values, "q8_0")).reshape(48, 64))
