"""Quantization on the CPU, without the GIL."""

from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .core import DType, Tensor

@overload
def quantize(
    values: Tensor, dtype: DType | str, importance: npt.NDArray[np.float32] | None = None, *, threads: int = 0
) -> Tensor: ...
@overload
def quantize(
    values: npt.NDArray[Any], dtype: DType | str, importance: npt.NDArray[np.float32] | None = None, *, threads: int = 0
) -> Tensor:
    """Quantize ``values`` [..., n] to ``dtype``: f32, f16, bf16, or a quantized type of files.

    Args:
        values: An array of float32, float16 or bfloat16, or a tensor of any type that has values.
        dtype: The new type.
        importance: [n], the relative cost of an error in each column (an importance matrix); required by the types for
            which ``needs_importance`` returns True.
        threads: 0 means one per core.  The result does not depend on it.

    Raises:
        ShapeError: Rows are not whole blocks, values are not finite or overflow the type, or importance has another
            length, is negative or is not finite.
        UnsupportedError: The type is unsupported.
    """

@overload
def dequantize(tensor: Tensor, *, threads: int = 0) -> npt.NDArray[np.float32]: ...
@overload
def dequantize(storage: npt.NDArray[Any], dtype: DType | str, *, threads: int = 0) -> npt.NDArray[np.float32]:
    """Return the values [..., n] of a tensor, or of storage in the form for :meth:`Tensor.from_numpy`.

    Raises:
        ShapeError: The storage does not fit its type.
        UnsupportedError: The type is an integer type.
    """

def can_quantize(dtype: DType | str) -> bool:
    """Return True if ``quantize`` supports the type."""

def needs_importance(dtype: DType | str) -> bool:
    """Return True if ``quantize`` needs importance for the type."""
