"""Quantization.  Oracle: gguf-py, which quantizes and dequantizes with NumPy."""

from __future__ import annotations

import threading
import time

import gguf
import gguf.quants
import numpy as np
import pytest
import quire
from quire import DType, ShapeError, Tensor, UnsupportedError, dequantize, quantize
from quire._native.quant import can_quantize, needs_importance

FILE_TYPES = [d.name for d in DType.all() if can_quantize(d)]
# ggml takes 15 s to build its tables for each of these.
SLOW = {"iq1_m": pytest.mark.slow, "iq1_s": pytest.mark.slow}
# gguf-py cannot dequantize these.
WITHOUT_ORACLE = {"q1_0", "q2_0"}
# gguf-py quantizes these bit for bit like ggml's reference.
MADE_BY_ORACLE = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4"]
# Bits per weight, and the largest plausible error for normal values, relative to their standard deviation.
ERRORS = {
    "q8_0": 0.01,
    "q6_k": 0.03,
    "q5_k": 0.05,
    "q5_1": 0.05,
    "q5_0": 0.06,
    "q4_k": 0.09,
    "iq4_nl": 0.09,
    "iq4_xs": 0.09,
}
ERRORS |= {"q4_1": 0.09, "q4_0": 0.11, "q3_k": 0.18, "iq3_s": 0.2, "q2_k": 0.36, "nvfp4": 0.12, "mxfp4": 0.15}


def each_type(*without: str) -> list[object]:
    return [pytest.param(name, marks=SLOW.get(name, ())) for name in FILE_TYPES if name not in without]


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def importance_for(dtype: str, n: int) -> np.ndarray | None:
    return np.random.default_rng(1).random(n, np.float32) if needs_importance(dtype) else None


def as_bytes(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def test_every_type_of_files_is_covered():
    assert len(FILE_TYPES) >= 26
    assert not {"q8_1", "q8_k", "i32", "f64"} & set(FILE_TYPES)


@pytest.mark.parametrize("dtype", MADE_BY_ORACLE)
def test_bits_equal_the_oracles(dtype):
    array = values(5, 1024)
    expected = gguf.quants.quantize(array, gguf.GGMLQuantizationType(DType(dtype).id))
    assert as_bytes(quantize(array, dtype).numpy()) == as_bytes(expected)


@pytest.mark.parametrize("dtype", each_type(*WITHOUT_ORACLE))
def test_values_equal_the_oracles(dtype):
    tensor = quantize(values(2, 2, 512), dtype, importance_for(dtype, 512))
    assert (tensor.dtype, tensor.shape) == (dtype, (2, 2, 512))
    # gguf-py takes bf16 as bytes.
    storage = tensor.numpy().view("u1") if dtype == "bf16" else tensor.numpy()
    expected = gguf.quants.dequantize(storage, gguf.GGMLQuantizationType(tensor.dtype.id))
    found = dequantize(tensor)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.reshape(found.shape))
    np.testing.assert_array_equal(dequantize(tensor.numpy(), dtype), found)


@pytest.mark.parametrize("dtype", ERRORS)
def test_errors_match_the_number_of_bits(dtype):
    array = values(8, 2048)
    error = np.sqrt(np.mean((dequantize(quantize(array, dtype)) - array) ** 2))
    assert ERRORS[dtype] / 4 < error < ERRORS[dtype]


@pytest.mark.parametrize("dtype", sorted(WITHOUT_ORACLE))
def test_representable_values_survive(dtype):
    # With one scale per block, one bit keeps only signs; two bits keep -1, 0 and 1 times the largest.
    signs = np.sign(values(4, 1024))
    np.testing.assert_array_equal(dequantize(quantize(signs, dtype)), signs)


@pytest.mark.parametrize("dtype", ["q2_k", "q4_k", "iq2_xxs", "iq3_s", "iq4_xs", "q4_0"])
def test_importance_lowers_the_error_where_it_is_high(dtype):
    array = values(16, 512)
    weights = np.ones(512, np.float32)
    weights[::8] = 1000

    def error(importance: np.ndarray) -> float:
        return float(np.mean((dequantize(quantize(array, dtype, importance)) - array)[:, ::8] ** 2))

    assert error(weights) < 0.8 * error(np.ones(512, np.float32))
    # Only ratios matter.
    scaled = quantize(array, dtype, weights * np.float32(2.0**-90))
    assert as_bytes(scaled.numpy()) == as_bytes(quantize(array, dtype, weights).numpy())


@pytest.mark.parametrize("dtype", ["q4_k", "q8_0", "f16", "iq3_xxs"])
def test_bits_do_not_depend_on_threads(dtype):
    array = values(512, 2048)
    importance = importance_for(dtype, 2048)
    one, many = (as_bytes(quantize(array, dtype, importance, threads=n).numpy()) for n in (1, 7))
    assert one == many
    tensor = quantize(array, dtype, importance)
    np.testing.assert_array_equal(dequantize(tensor, threads=1), dequantize(tensor, threads=5))


def test_float16_arrays_and_tensors_are_accepted():
    array = values(4, 256)
    halves = array.astype(np.float16)
    assert as_bytes(quantize(halves, "q8_0").numpy()) == as_bytes(quantize(halves.astype("f4"), "q8_0").numpy())
    tensor = quantize(array, "bf16")
    assert as_bytes(quantize(tensor, "q4_0").numpy()) == as_bytes(quantize(dequantize(tensor), "q4_0").numpy())
    # The array may have any memory layout.
    assert as_bytes(quantize(np.asfortranarray(array), "q8_0").numpy()) == as_bytes(quantize(array, "q8_0").numpy())


@pytest.mark.parametrize("array", [np.zeros((2, 32), "f8"), np.zeros((2, 32), "i4"), np.zeros((), "f4")])
def test_other_arrays_are_errors(array):
    with pytest.raises(ShapeError, match=r"\[quantize\]"):
        quantize(array, "q8_0")


@pytest.mark.parametrize("dtype", each_type())
def test_nan_and_infinity_are_errors_that_name_the_element(dtype):
    for value in (np.nan, np.inf, -np.inf):
        array = values(600, 512)
        array[500, 7] = value
        array[501, 8] = value
        with pytest.raises(ShapeError, match=rf"element {500 * 512 + 7} is"):
            quantize(array, dtype, importance_for(dtype, 512))


@pytest.mark.parametrize("dtype", each_type("f32", "bf16"))
def test_overflow_is_an_error_or_the_result_is_finite(dtype):
    for size in (1.0, 6e4, 1e5, 1e6, 3e7, 3e38):
        array = values(2, 512)
        array[1] *= np.float32(size) / np.abs(array[1]).max()
        try:
            tensor = quantize(array, dtype, importance_for(dtype, 512))
        except ShapeError as error:
            assert (size > 1, "[quantize]" in str(error)) == (True, True)  # noqa: PT017 - either way is right
        else:
            found = dequantize(tensor)
            assert np.isfinite(found).all()
            if dtype != "q1_0":
                assert np.abs(found[1]).max() > size / 4


@pytest.mark.parametrize("dtype", each_type())
def test_zeros_stay_zeros(dtype):
    array = np.zeros((3, 1024), np.float32)
    assert not dequantize(quantize(array, dtype, importance_for(dtype, 1024))).any()


@pytest.mark.parametrize("dtype", each_type())
def test_importance_may_be_zero_or_tiny(dtype):
    for scale in (0.0, 1e-38, 1e38):
        importance = np.random.default_rng(2).random(512, np.float32) * np.float32(scale)
        assert np.isfinite(dequantize(quantize(values(4, 512), dtype, importance))).all()


@pytest.mark.parametrize(
    "importance", [np.ones(31, "f4"), np.ones((1, 32), "f4"), np.ones(0, "f4"), -np.ones(32, "f4")]
)
def test_importance_of_another_length_is_an_error(importance):
    with pytest.raises(ShapeError, match="importance"):
        quantize(values(2, 32), "q4_0", importance)


def test_importance_must_be_finite_and_is_required_by_some_types():
    with pytest.raises(ShapeError, match="column 3 is nan"):
        quantize(values(2, 32), "q4_0", np.array([1, 1, 1, np.nan] * 8, "f4"))
    for dtype in ("iq1_s", "iq2_xxs", "iq2_xs"):
        assert needs_importance(dtype)
        with pytest.raises(ShapeError, match="importance"):
            quantize(values(1, 256), dtype)


def test_rows_are_whole_blocks():
    with pytest.raises(ShapeError, match=r"multiple of 256"):
        quantize(values(2, 128), "q4_k")
    with pytest.raises(ShapeError, match="multiple of 34"):
        dequantize(np.zeros((2, 33), "u1"), "q8_0")


@pytest.mark.parametrize("dtype", ["q8_1", "q8_k", "i32", "f64"])
def test_types_that_files_do_not_have_are_errors(dtype):
    with pytest.raises(UnsupportedError, match=dtype):
        quantize(values(1, 256), dtype)
    with pytest.raises(UnsupportedError, match=dtype):
        dequantize(Tensor.empty(dtype, [256]))


def test_quantization_releases_the_gil():
    array = values(4096, 2048)
    quantize(array[:64], "iq4_xs")
    steps = 0
    done = threading.Event()

    def work():
        quantize(array, "iq4_xs", threads=1)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        steps += 1
        time.sleep(0.001)
    thread.join()
    # While the GIL was held, this thread would make only one or two steps.
    assert steps > 20


def test_public_names():
    assert quire.quantize is quantize
    assert quire.dequantize is dequantize
