"""Numbers of few bits, and rounding as libraries do it."""

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

# The types of safetensors that hold numbers with a fraction, and ours of 16 and 32 bits among them.
DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def rounded(x: Floats, dtype: str) -> Floats:
    """The numbers of ``f16`` or ``bf16`` nearest to ``x`` (ties to even), in float32; ``x`` itself for ``f32``."""
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
    """What each byte stands for: E4M3 without infinities, and E5M2 (OCP 8-bit Floating Point, 2023)."""
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
    """What 4 bits stand for (E2M1, OCP Microscaling Formats, 2023)."""
    import numpy as np

    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return np.concatenate([values, -values])


def powers(exponents: npt.NDArray[np.uint8]) -> Floats:
    """2^(e - 127) of a byte (E8M0); 255 is not a number."""
    import numpy as np

    values: Floats = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    values[exponents == 255] = np.nan
    return values


def floats(tensors: SafetensorsFolder, name: str) -> Floats:
    """A tensor of any type with a fraction, as float32; LoadError for others."""
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
        raise LoadError(f"[convert] tensor '{name}' must hold numbers with a fraction but is {dtype}")
    return values


def dtype_of(tensors: SafetensorsFolder, name: str) -> str:
    """``f32``, ``f16`` or ``bf16``; LoadError for a tensor of another type."""
    dtype = tensors.dtype(name)
    if dtype not in DTYPES:
        raise LoadError(f"[convert] tensor '{name}' must be F32, F16 or BF16 but is {dtype}")
    return DTYPES[dtype]


def stored(tensors: SafetensorsFolder, name: str, *dtypes: str, n_dims: int | None = None) -> Storage:
    """A tensor over the mapped file; LoadError where its type is none of ``dtypes``, and with
    ``n_dims`` where it has other dimensions or is empty."""
    dtype = tensors.dtype(name)
    if dtype not in dtypes:
        raise LoadError(f"[convert] tensor '{name}' must be {' or '.join(dtypes)} but is {dtype}")
    array = tensors.array(name)
    if n_dims is not None and (array.ndim != n_dims or not array.size):
        raise LoadError(f"[convert] tensor '{name}' must be full of {n_dims} dimensions but is {list(array.shape)}")
    return array


def check_shape(tensors: SafetensorsFolder, name: str, *shapes: tuple[int, ...]) -> None:
    """LoadError where a tensor is of none of the shapes."""
    if tensors.shape(name) not in shapes:
        words = " or ".join(str(list(shape)) for shape in shapes)
        raise LoadError(f"[convert] tensor '{name}' must be {words} but is {list(tensors.shape(name))}")


def unpacked(words: Storage, bits: int, n: int) -> npt.NDArray[np.uint8]:
    """The first ``n`` codes of each row of 32-bit words: one stream of bits, the lowest first."""
    import numpy as np

    words = np.ascontiguousarray(words).view(np.uint32)
    codes: npt.NDArray[np.uint8]
    if 32 % bits == 0:
        # Byte by byte, which takes the memory of the codes alone.
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
