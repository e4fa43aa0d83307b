"""Quantized matrices that are copied into files without requantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import LoadError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BLOCK = 32  # numbers that share an exponent


@dataclass(frozen=True)
class MXFP4:
    """4-bit numbers, 32 with one exponent (OCP 2023): blocks ``[..., rows, n, 16]``, exponents ``[..., rows, n]``.

    In checkpoints the two numbers of a byte are neighbours; in files they are 16 apart, and the exponent comes first.
    Every ``step``-th row is taken, beginning with row ``begin``.
    """

    begin: int = 0
    step: int = 1
    dtype: str = "mxfp4"

    def shape(self, name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the matrix's shape; raise LoadError if blocks and exponents do not fit each other."""
        blocks, exponents = shapes
        if len(blocks) < 3 or blocks[-1] != BLOCK // 2 or blocks[:-1] != exponents:
            found = f"{list(blocks)} and {list(exponents)}"
            raise LoadError(f"[convert] blocks and scales of '{name}' do not fit: {found}, {BLOCK} numbers a block")
        rows = len(range(self.begin, blocks[-3], self.step))
        return (*blocks[:-3], rows, blocks[-2] * BLOCK)

    def packed(self, blocks: npt.NDArray[np.uint8], exponents: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the bytes of the file's rows."""
        import numpy as np

        blocks, exponents = blocks[..., self.begin :: self.step, :, :], exponents[..., self.begin :: self.step, :]
        out = np.empty((*exponents.shape, 1 + BLOCK // 2), np.uint8)
        out[..., 0] = exponents
        low, high = blocks[..., : BLOCK // 4], blocks[..., BLOCK // 4 :]  # numbers 0 to 15 and 16 to 31
        out[..., 1::2] = (low & 15) | (high & 15) << 4
        out[..., 2::2] = low >> 4 | (high >> 4) << 4
        return out.reshape(*exponents.shape[:-1], -1)
