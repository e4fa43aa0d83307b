"""``quantize`` and ``dequantize`` for arrays, with messages for users who want to quantize a model."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from .._native import quant as native
from .._native.core import DType, Tensor
from ..errors import RequestError
from ..runtime.native_docs import describe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["dequantize", "quantize"]

describe(native)
# Names of llama.cpp's mixes: several types in one model.
_MIX = re.compile(r"(I?Q\d(?:_K)?)_(XXS|XS|S|M|L|XL)", re.IGNORECASE)


def quantize(
    values: Tensor | npt.ArrayLike,
    dtype: DType | str,
    importance: npt.NDArray[np.float32] | None = None,
    *,
    threads: int = 0,
) -> Tensor:
    """Quantize ``values`` [..., n] to ``dtype``: f32, f16, bf16 or a quantized type of files.

    To quantize a model, use ``quire quantize IN OUT TYPE``, or ``LLM(model, quantize=TYPE)`` to do so while loading it.

    Args:
        values: float32, float16 or bfloat16, or a tensor of any type that values can be read from.
        importance: [n], the relative cost of an error in each column; some types need it.
        threads: 0 means one per core.  The result does not depend on it.

    Raises:
        ShapeError: Rows are not whole blocks, or values are not finite or overflow the type.
        UnsupportedError: Arrays cannot have this type.
    """
    return native.quantize(_array(values, "quantize"), _type(dtype), importance, threads=threads)


def dequantize(storage: Tensor | npt.ArrayLike, dtype: DType | str | None = None, **options: Any) -> Any:
    """Return the float32 values of a tensor, or of an array of bytes with storage of type ``dtype``.

    ``threads`` 0 means one per core.  Raises ShapeError for bytes that are not whole rows.
    """
    given = _array(storage, "dequantize")
    if dtype is None:
        if not isinstance(given, Tensor):
            raise RequestError("[dequantize] an array of bytes needs its type: dequantize(array, 'q8_0')")
        return native.dequantize(given, **options)
    if isinstance(given, Tensor):
        raise RequestError("[dequantize] a tensor has a type of its own: leave dtype out")
    return native.dequantize(given, _type(dtype), **options)


def _array(values: Any, call: str) -> Any:
    """Return values that the native functions take.  Lists become float32 arrays; RequestError for a path or None."""
    if isinstance(values, str | os.PathLike):
        raise RequestError(
            f"[{call}] {os.fspath(values)!r:.80} is a path, not an array: to quantize a model, use quire quantize IN "
            "OUT TYPE or LLM(model, quantize=TYPE)"
        )
    if values is None:
        raise RequestError(f"[{call}] values is None: give an array or a quire.Tensor")
    if isinstance(values, Tensor) or hasattr(values, "dtype"):
        return values
    import numpy as np

    try:
        return np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise RequestError(f"[{call}] {values!r:.80} is not an array of numbers") from None


def _type(dtype: Any) -> DType:
    if isinstance(dtype, str):
        mix = _MIX.fullmatch(dtype)
        try:
            return DType(dtype)
        except Exception:
            if mix is None:
                raise
            raise RequestError(
                f"[quantize] {dtype} is a mix of types for a whole model, not the type of an array: give "
                f"{mix[1].lower()!r} here; for a model: quire quantize IN OUT {dtype}, LLM(model, quantize={dtype!r})"
            ) from None
    if not isinstance(dtype, DType):
        raise RequestError(f"[quantize] dtype is {dtype!r:.40}: give a name such as 'q8_0', or a quire.DType")
    return dtype
