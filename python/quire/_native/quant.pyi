"""Quantization, on the CPU and without the GIL."""

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
    """``values`` [..., n] as ``dtype``: f32, f16, bf16, or a quantized type that files have.

    - ``values``: an array of float32, float16 or bfloat16, or a tensor of any type that values can be read from.
    - ``importance`` [n]: what an error in each column costs, relative to the others (an importance matrix); the types
      for which ``needs_importance`` holds cannot do without.
    - ``threads``: 0 is one per core.  The result is the same whatever their number.

    Raises ShapeError for rows that are not whole blocks, for values that are not finite or that overflow the type, and
    for importance of another length, negative or not finite; UnsupportedError for other types.
    """

@overload
def dequantize(tensor: Tensor, *, threads: int = 0) -> npt.NDArray[np.float32]: ...
@overload
def dequantize(storage: npt.NDArray[Any], dtype: DType | str, *, threads: int = 0) -> npt.NDArray[np.float32]:
    """The values [..., n] of a tensor, or of storage as :meth:`Tensor.from_numpy` takes it.

    Raises ShapeError for storage that does not fit its type, UnsupportedError for types without values (integers).
    """

def can_quantize(dtype: DType | str) -> bool:
    """Whether ``quantize`` takes the type."""

def needs_importance(dtype: DType | str) -> bool:
    """Whether ``quantize`` to the type must be given importance."""
