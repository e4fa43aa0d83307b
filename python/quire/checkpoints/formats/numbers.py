"""Decode small number formats, and round as libraries do."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ...errors import LoadError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...files.safetensors import SafetensorsFolder
    from .matrix import Floats

    Storage = npt.NDArray[Any]

# Floating-point types of safetensors, with Quire's names.
DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def rounded(x: Floats, dtype: str) -> Floats:
    """Round ``x`` to ``f16`` or ``bf16``, ties to even; the result is float32.  ``f32`` leaves ``x`` unchanged."""
    import numpy as np

    if dtype == "f32":
        return x
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(x).view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    values: Floats = np.where(np.isnan(x), x, (nearest & np.uint32(0xFFFF0000)).view(np.float32))
    return values


@cache
def float8_values(exponent_bits: int) -> Floats:
    """Return the value of each byte: E4M3 without infinities, or E5M2 (OCP 8-bit Floating Point, 2023)."""
    import numpy as np

    fraction_bits = 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    code = np.arange(128)
    exponent, fraction = code >> fraction_bits, (code & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if exponent_bits == 4:
        values[127] = np.nan
    else:
        values[124:] = [np.inf, np.nan, np.nan, np.nan]
    return np.concatenate([values, -values]).astype(np.float32)


@cache
def float4_values() -> Floats:
    """Return the value of each 4-bit code (E2M1, OCP Microscaling Formats, 2023)."""
    import numpy as np

    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return np.concatenate([values, -values])


def powers(exponents: npt.NDArray[np.uint8]) -> Floats:
    """Return 2^(e - 127) for each byte e (E8M0); 255 is NaN."""
    import numpy as np

    values: Floats = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    values[exponents == 255] = np.nan
    return values


def floats(tensors: SafetensorsFolder, name: str) -> Floats:
    """Return a tensor of any floating-point type as float32.  Raises LoadError for other types."""
    import numpy as np

    dtype, array = tensors.dtype(name), tensors.array(name)
    values: Floats
    if dtype in ("F32", "F16"):
        values = array.astype(np.float32)
    elif dtype == "BF16":
        values = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype == "F8_E8M0":
        values = powers(array)
    elif dtype.startswith("F8_"):
        values = float8_values(4 if dtype == "F8_E4M3" else 5)[array]
    else:
        raise LoadError(f"[convert] tensor '{name}' is {dtype}: expected a floating-point type")
    return values


def dtype_of(tensors: SafetensorsFolder, name: str) -> str:
    """Return ``f32``, ``f16`` or ``bf16``.  Raises LoadError for a tensor of another type."""
    dtype = tensors.dtype(name)
    if dtype not in DTYPES:
        raise LoadError(f"[convert] tensor '{name}' is {dtype}: expected F32, F16 or BF16")
    return DTYPES[dtype]


def stored(tensors: SafetensorsFolder, name: str, *dtypes: str, n_dims: int | None = None) -> Storage:
    """Return a tensor in the mapped file.

    Raises LoadError if its type is not one of ``dtypes``.  With ``n_dims``, also raises LoadError if it has another
    number of dimensions or is empty.
    """
    dtype = tensors.dtype(name)
    if dtype not in dtypes:
        raise LoadError(f"[convert] tensor '{name}' is {dtype}: expected {' or '.join(dtypes)}")
    array = tensors.array(name)
    if n_dims is not None and (array.ndim != n_dims or not array.size):
        raise LoadError(
            f"[convert] tensor '{name}' has shape {list(array.shape)}: expected {n_dims} dimensions, none of them 0"
        )
    return array


def check_shape(tensors: SafetensorsFolder, name: str, *shapes: tuple[int, ...]) -> None:
    """Raise LoadError unless a tensor has one of the shapes."""
    if tensors.shape(name) not in shapes:
        words = " or ".join(str(list(shape)) for shape in shapes)
        raise LoadError(f"[convert] tensor '{name}' has shape {list(tensors.shape(name))}: expected {words}")


def unpacked(words: Storage, bits: int, n: int) -> npt.NDArray[np.uint8]:
    """Return the first ``n`` codes of each row of 32-bit words, which are one stream of bits, lowest first."""
    import numpy as np

    words = np.ascontiguousarray(words).view(np.uint32)
    codes: npt.NDArray[np.uint8]
    if 32 % bits == 0:
        # One code position at a time, which needs no memory besides the codes.
        codes = np.empty((*words.shape, 32 // bits), np.uint8)
        for i in range(32 // bits):
            codes[..., i] = (words >> np.uint32(i * bits)) & np.uint32((1 << bits) - 1)
        return codes.reshape(*words.shape[:-1], -1)[..., :n]
    places = np.arange(n) * bits
    word, shift = places // 32, (places % 32).astype(np.uint64)
    padded = np.concatenate([words, np.zeros((*words.shape[:-1], 1), np.uint32)], -1).astype(np.uint64)
    both = padded[..., word] | padded[..., word + 1] << np.uint64(32)
    codes = ((both >> shift) & np.uint64((1 << bits) - 1)).astype(np.uint8)
    return codes
