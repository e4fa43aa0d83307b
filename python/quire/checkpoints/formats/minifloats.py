"""Matrices of 8-bit and 4-bit floats with a scale per block: FP8, NVFP4, MXFP4."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

from ...errors import LoadError
from ..mapping.packed import MXFP4
from .matrix import StoredMatrix
from .numbers import check_shape, float4_values, float8_values, floats, powers, rounded, stored

if TYPE_CHECKING:
    from ...files.safetensors import SafetensorsFolder
    from .matrix import Bytes, Floats

FLOAT8 = ("F8_E4M3", "F8_E5M2")


class Float8Matrix(StoredMatrix):
    """8-bit floats, multiplied by the scale of their block of rows and columns.

    ``scale`` is one number, or ``[..., rows / block, columns / block]`` with blocks of ``block`` rows and columns, of
    which the last may be smaller.  With dtype ``f16`` or ``bf16``, the scale is rounded before the multiplication, as
    libraries that compute in these types do.
    """

    def __init__(
        self, tensors: SafetensorsFolder, name: str, scale: str, block: tuple[int, int] | None, dtype: str = "f32"
    ) -> None:
        shape = tensors.shape(name)
        stored(tensors, name, *FLOAT8)
        if len(shape) < 2:
            raise LoadError(f"[convert] tensor '{name}' has shape {list(shape)}: expected a matrix")
        super().__init__(name, shape, dtype)
        self._tensors, self._scale_name = tensors, scale
        if block is None:
            # One number, or one per matrix if there are several.
            check_shape(tensors, scale, (), (1,), (1, 1), *[(*shape[:-2], *(1,) * n) for n in (1, 2) if len(shape) > 2])
            block = (shape[-2], shape[-1])
        else:
            grid = (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))
            per_row = [(*shape[:-2], shape[-2])] if grid[-2:] == (shape[-2], 1) else []
            check_shape(tensors, scale, grid, *per_row)
        self._block = block

    @cached_property
    def _values_of(self) -> Floats:
        return float8_values(4 if self._tensors.dtype(self.name) == "F8_E4M3" else 5)

    def values(self, begin: int, end: int) -> Floats:
        import numpy as np

        raw = self._tensors.array(self.name).reshape(self.n_rows, self.n_columns)[begin:end]
        n_rows, (block_rows, block_columns) = self.shape[-2], self._block
        grid_rows, grid_columns = -(-n_rows // block_rows), -(-self.n_columns // block_columns)
        scales = floats_or_powers(self._tensors, self._scale_name)
        scales = np.broadcast_to(scales.reshape(-1, grid_rows if scales.size > 1 else 1, grid_columns),
                                 (math.prod(self.shape[:-2]), grid_rows, grid_columns))  # fmt: skip
        row = np.arange(begin, end)
        of_rows = rounded(scales[row // n_rows, row % n_rows // block_rows], self.dtype)
        of_columns = np.repeat(of_rows, block_columns, axis=1)[:, : self.n_columns]
        values: Floats = self._values_of[raw] * of_columns
        return rounded(values, self.dtype)


def floats_or_powers(tensors: SafetensorsFolder, name: str) -> Floats:
    """Return scales.  Bytes are exponents."""
    if tensors.dtype(name) == "U8":
        return powers(tensors.bytes_of(name))
    return floats(tensors, name)


class Float4Matrix(StoredMatrix):
    """4-bit floats, two neighbours per byte, the first in the low bits."""

    group: int

    def __init__(self, tensors: SafetensorsFolder, name: str, packed: str, scale: str) -> None:
        shape = stored(tensors, packed, "U8", "I8", n_dims=2).shape
        super().__init__(name, (shape[0], shape[1] * 2), "bf16")
        self._tensors, self._packed, self._scale = tensors, packed, scale
        if self.n_columns % self.group:
            raise LoadError(
                f"[convert] the {self.n_columns} columns of '{name}' do not divide into groups of {self.group}"
            )
        check_shape(tensors, scale, (shape[0], self.n_columns // self.group))

    def _bytes(self, begin: int, end: int) -> Bytes:
        return self._tensors.array(self._packed)[begin:end].view("u1")

    @abstractmethod
    def _scales(self, begin: int, end: int) -> Floats:
        """Return the scales of groups, ``[end - begin, groups]``."""

    def values(self, begin: int, end: int) -> Floats:
        import numpy as np

        pairs = self._bytes(begin, end)
        codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(end - begin, -1, self.group)
        values: Floats = float4_values()[codes] * self._scales(begin, end)[..., None]
        return rounded(values.reshape(end - begin, -1), self.dtype)


class NVFP4Matrix(Float4Matrix):
    """Groups of 16 columns with an E4M3 scale each.  All scales are divided by one number.

    GGUF's NVFP4 has no such number.  Instead, products are multiplied by ``factor``, its float32 reciprocal.
    """

    group = 16

    def __init__(self, tensors: SafetensorsFolder, name: str, packed: str, scale: str, divisor: str) -> None:
        super().__init__(tensors, name, packed, scale)
        stored(tensors, scale, "F8_E4M3")
        check_shape(tensors, divisor, (), (1,))
        self._divisor = float(floats(tensors, divisor).reshape(-1)[0])
        if not 2.0**-126 <= self._divisor < math.inf:
            raise LoadError(f"[convert] tensor '{divisor}' is {self._divisor}: expected a positive normal number")

    @property
    def factor(self) -> float:  # type: ignore[override]
        import numpy as np

        return float(np.float32(1) / np.float32(self._divisor))

    def _scales(self, begin: int, end: int) -> Floats:
        import numpy as np

        scales: Floats = floats(self._tensors, self._scale)[begin:end] / np.float32(self._divisor)
        return scales

    @cached_property
    def _has_scales_of_files(self) -> bool:
        """True if GGUF can represent all scales: none is negative or NaN."""
        scales = self._tensors.array(self._scale)
        return bool((scales < 127).all())

    def exact_types(self) -> tuple[str, ...]:
        return ("nvfp4",) if self.n_columns % 64 == 0 and self._has_scales_of_files else ()

    def packed(self, dtype: str, begin: int, end: int) -> Bytes:
        import numpy as np

        # In GGUF, numbers i and i + 8 of each 16 share a byte, and 4 scales precede 64 numbers.
        pairs = self._bytes(begin, end).reshape(end - begin, -1, 4, 8)
        low, high = pairs[..., :4], pairs[..., 4:]
        codes = np.empty_like(pairs)
        codes[..., 0::2] = (low & 15) | (high & 15) << 4
        codes[..., 1::2] = low >> 4 | (high >> 4) << 4
        scales = self._tensors.array(self._scale)[begin:end].reshape(end - begin, -1, 4)
        blocks = np.concatenate([scales, codes.reshape(*codes.shape[:2], 32)], axis=-1)
        return blocks.reshape(end - begin, -1)


class MXFP4Matrix(Float4Matrix):
    """Groups of 32 columns with an exponent each."""

    group = 32

    def __init__(self, tensors: SafetensorsFolder, name: str, packed: str, scale: str) -> None:
        super().__init__(tensors, name, packed, scale)
        stored(tensors, scale, "U8", "F8_E8M0")

    def _exponents(self, begin: int, end: int) -> Bytes:
        return self._tensors.array(self._scale)[begin:end].view("u1")

    def _scales(self, begin: int, end: int) -> Floats:
        return powers(self._exponents(begin, end))

    def exact_types(self) -> tuple[str, ...]:
        # 2^-127 is not a normal float32, and 255 stands for NaN.
        exponents = self._exponents(0, self.n_rows)
        return ("mxfp4",) if bool(((exponents > 1) & (exponents < 255)).all()) else ()

    def packed(self, dtype: str, begin: int, end: int) -> Bytes:
        exponents = self._exponents(begin, end)
        return MXFP4().packed(self._bytes(begin, end).reshape(*exponents.shape, 16), exponents)
