"""Matrices of integer codes with a scale, and optionally a zero point, for each group of columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...errors import LoadError
from .matrix import StoredMatrix
from .numbers import rounded

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .matrix import Bytes, Floats

    Codes = npt.NDArray[np.int16]
    Index = npt.NDArray[np.intp]

BLOCK = 32  # columns that share a scale in GGUF
# GGUF types without zero points, with their smallest and largest code.
SYMMETRIC = {"q4_0": (-8, 7), "q5_0": (-16, 15), "q8_0": (-128, 127)}


class CodedMatrix(StoredMatrix):
    """``(code - zero) * scale``, rounded to ``dtype``.

    For rows ``[begin, end)``, ``codes`` returns ``[rows, columns]`` within ``bounds``, the smallest and the largest
    code; ``scales`` and ``zeros`` return ``[rows, groups]``.  ``groups`` returns the group of each column; without it,
    groups are consecutive columns of equal number.

    Differences of codes and zero points are small integers, so that a matrix with zero points usually fits a GGUF type
    without them: 4-bit codes with zero points have differences from -15 to 15, which Q5_0 represents.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        n_groups: int,
        bounds: tuple[int, int],
        codes: Callable[[int, int], Codes],
        scales: Callable[[int, int], Floats],
        zeros: Callable[[int, int], Codes] | None = None,
        groups: Callable[[], Index] | None = None,
    ) -> None:
        super().__init__(name, shape, dtype)
        self._n_groups = n_groups
        self._bounds = bounds
        self._codes = codes
        self._scales = scales
        self._zeros = zeros
        self._groups = groups
        if groups is None and (n_groups < 1 or self.n_columns % n_groups):
            raise LoadError(
                f"[convert] the {self.n_columns} columns of '{name}' do not divide into {n_groups} equal groups"
            )

    def _of_columns(self, per_group: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Expand ``[rows, groups]`` to ``[rows, columns]``."""
        import numpy as np

        if self._groups is not None:
            return per_group[:, self._groups()]
        return np.repeat(per_group, self.n_columns // self._n_groups, axis=1)

    def _differences(self, begin: int, end: int) -> Codes:
        import numpy as np

        codes = self._codes(begin, end).astype(np.int16)
        if self._zeros is not None:
            codes = codes - self._of_columns(self._zeros(begin, end)).astype(np.int16)
        return codes

    def values(self, begin: int, end: int) -> Floats:
        import numpy as np

        scales = self._of_columns(self._scales(begin, end))
        values: Floats = self._differences(begin, end).astype(np.float32) * scales
        return rounded(values, self.dtype)

    @cached_property
    def _block_groups(self) -> Index | None:
        """The group of each block of 32 columns; None if a block has columns of several groups."""
        import numpy as np

        if self.n_columns % BLOCK:
            return None
        n_blocks = self.n_columns // BLOCK
        if self._groups is not None:
            by_block = self._groups().reshape(n_blocks, BLOCK)
            return by_block[:, 0].copy() if (by_block == by_block[:, :1]).all() else None
        group = self.n_columns // self._n_groups
        return np.arange(n_blocks) * BLOCK // group if group % BLOCK == 0 else None

    def exact_types(self) -> tuple[str, ...]:
        return self._exact_types

    @cached_property
    def _exact_types(self) -> tuple[str, ...]:
        import numpy as np

        if self._block_groups is None:
            return ()
        scales = self._scales(0, self.n_rows)
        if not _fits_f16(scales):
            return ()
        low, high = self._bounds
        zeros = self._zeros(0, self.n_rows) if self._zeros is not None else None
        least, most = (int(zeros.min()), int(zeros.max())) if zeros is not None else (0, 0)
        types = [dtype for dtype, (least_code, most_code) in SYMMETRIC.items()
                 if least_code <= low - most and high - least <= most_code]  # fmt: skip
        if "q4_0" not in types and zeros is not None and (low, high) == (0, 15):
            minima: Floats = -zeros.astype(np.float32) * scales
            if _fits_f16(minima):
                types.insert(0, "q4_1")
        return tuple(types)

    def packed(self, dtype: str, begin: int, end: int) -> Bytes:
        import numpy as np

        assert self._block_groups is not None
        blocks = (end - begin, self.n_columns // BLOCK, BLOCK)
        scales = self._scales(begin, end)[:, self._block_groups]
        parts = [scales.astype("<f2")[..., None].view(np.uint8)]
        codes = self._codes(begin, end).reshape(blocks)
        if self._zeros is not None:
            zeros = self._zeros(begin, end)[:, self._block_groups]
            if dtype == "q4_1":
                minima = -zeros.astype(np.float32) * scales
                parts.append(minima.astype("<f2")[..., None].view(np.uint8))
            else:
                codes = codes - zeros[..., None]
        if dtype == "q8_0":
            parts.append(codes.astype(np.int8).view(np.uint8))
        else:
            unsigned: Bytes = (codes + {"q4_0": 8, "q4_1": 0, "q5_0": 16}[dtype]).astype(np.uint8)
            if dtype == "q5_0":
                parts.append(np.packbits(unsigned >> 4, axis=-1, bitorder="little"))
            half = BLOCK // 2
            low, high = unsigned[..., :half] & 15, unsigned[..., half:] & 15
            parts.append(low | high << np.uint8(4))
        return np.concatenate(parts, axis=-1).reshape(end - begin, -1)


def _fits_f16(x: Floats) -> bool:
    """Return whether F16 represents every number exactly."""
    import numpy as np

    with np.errstate(over="ignore"):
        return bool(np.isfinite(x).all() and (x.astype(np.float16).astype(np.float32) == x).all())
