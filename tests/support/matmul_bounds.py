"""The largest allowed error of Quire's matrix products: the bounds in docs/kernels.md, per weight type."""

from __future__ import annotations

import numpy as np
import quire
from chosen_kernels import chosen
from quire import dequantize

FLOATS = ["f32", "f16", "bf16"]
# Instruction sets that multiply BF16 weights, and F16 weights rounded to BF16, in BF16.
MULTIPLYING_BF16 = ["avx512bf16", "avx512amx", "avx512amx-emulated"]
MANY_ROWS = 25  # from this number of rows on, products with quantized weights may use BF16
HALF_ULP = 2.0**-24  # half a unit in the last place, in single precision
# Columns that share a scale if not 32, and the bytes of a block that contain codes if there are minima.
AS_Q2_K = ("tq1_0", "tq2_0")
SCALE_COLUMNS = dict.fromkeys(
    (*AS_Q2_K, "q2_k", "q3_k", "q6_k", "nvfp4", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s"), 16
)
CODES_WITH_MINIMA = {"q4_1": (4, 20), "q5_1": (4, 24), "q2_k": (16, 80), "q4_k": (16, 144), "q5_k": (16, 176)}


def rounded_to_codes(x: np.ndarray) -> np.ndarray:
    """Round to 8 bits with a scale per 32 columns; columns whose scale has no inverse count as zero."""
    groups = x.reshape(x.shape[0], -1, 32)
    scales = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = np.where(scales > np.float32(1e-37), np.rint(groups * (np.float32(1) / scales)), 0)
    return (codes.astype(np.float64) * scales).reshape(x.shape)


def rounded_to_bf16(x: np.ndarray) -> np.ndarray:
    """Round to the nearest, ties to even."""
    bits = x.view(np.uint32)
    return np.where(np.isnan(x), x, ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32))


def rounds_to_bf16(dtype: str, n_rows: int = 1) -> bool:
    """Return whether the current instruction set multiplies so many rows by weights of the type as BF16."""
    if dtype in ("f16", "bf16"):
        return chosen().isa in MULTIPLYING_BF16
    return dtype != "f32" and n_rows >= MANY_ROWS and chosen().determinism_costs and not chosen().is_deterministic


def held_weights(tensor: quire.Tensor) -> np.ndarray:
    """Return the multiplied weights in double precision, before quantized ones are rounded to BF16 for many rows."""
    values = dequantize(tensor)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return (rounded_to_bf16(values) if rounds_to_bf16(tensor.dtype.name) else values).astype(np.float64)


def seen_activations(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return the activations that the current instruction set multiplies by weights of the type."""
    if rounds_to_bf16(dtype, len(x)):
        return rounded_to_bf16(x).astype(np.float64)
    return x.astype(np.float64) if dtype in FLOATS else rounded_to_codes(x)


def magnitudes(tensor: quire.Tensor) -> np.ndarray:
    """Return |weight|, or for scale * code + minimum the sum of both magnitudes, as they may cancel."""
    values, name = held_weights(tensor), tensor.dtype.name
    if name in AS_Q2_K:  # codes of 0 to 2, and a minimum as large as the largest value
        return np.abs(values) + 2 * np.abs(values).reshape(len(values), -1, 256).max(-1).repeat(256, axis=1)
    if name not in CODES_WITH_MINIMA:
        return np.abs(values)
    begin, end = CODES_WITH_MINIMA[name]
    storage = tensor.numpy().copy()
    storage.reshape(-1, tensor.dtype.block_bytes)[:, begin:end] = 0
    minima = dequantize(quire.Tensor.from_numpy(storage, name)).astype(np.float64)
    return np.abs(minima) + np.abs(values - minima)


def arithmetic_bound(x: np.ndarray, tensor: quire.Tensor) -> np.ndarray:
    """Return the bound of arithmetic errors: each floating-point operation errs by half a unit in the last place."""
    n_in, name = x.shape[1], tensor.dtype.name
    size = np.abs(x) @ magnitudes(tensor).T
    in_pairs = rounds_to_bf16(name, len(x))
    if in_pairs and name not in FLOATS:
        # In addition, each weight is rounded to 8 bits when it is read, and before that with its minimum.
        size = size * (1 + 2.0**-8 / ((n_in + 1) * HALF_ULP))
    if name in FLOATS or in_pairs:
        # AVX512_BF16 treats subnormal weights, activations, products and sums as zero.
        weights = np.abs(dequantize(tensor).astype(np.float64)).sum(-1)
        tiny = 2.0**-126 * (n_in + weights + np.abs(x).sum(-1, keepdims=True)) if in_pairs else n_in * 2.0**-150
        return (n_in + 1) * HALF_ULP * size + tiny
    n_sums = -(-n_in // SCALE_COLUMNS.get(name, 32)) * (2 if name in (*CODES_WITH_MINIMA, *AS_Q2_K) else 1)
    # A product of two scales may be subnormal, and is multiplied by a sum of codes.
    return (n_sums + 4) * HALF_ULP * size + n_in * 2.0**-134


def rounding_bound(x: np.ndarray, tensor: quire.Tensor) -> np.ndarray:
    """Return the bound of errors from rounding activations, and F16 weights."""
    name = tensor.dtype.name
    weights = np.abs(dequantize(tensor).astype(np.float64))
    in_pairs = rounds_to_bf16(name, len(x))
    if name in FLOATS and not in_pairs:
        return np.zeros((len(x), len(weights)))
    if in_pairs:
        both = 2.01 if name == "f16" else 1.0  # weights are rounded too
        return both * 2.0**-8 * (np.abs(x).astype(np.float64) @ weights.T)
    groups = np.abs(x.astype(np.float64)).reshape(len(x), -1, 32).max(-1)
    # Half a code, and a little more, as the scale and its inverse are also rounded.
    step = np.maximum(groups / 254 * (1 + 2.0**-15), np.where(groups <= 1.28e-35, groups, 0))
    return np.repeat(step, 32, axis=1) @ weights.T
