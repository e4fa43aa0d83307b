"""Keep a checkpoint's quantized matrices exactly, in a GGUF type that can represent them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..formats import StoredCheckpoint, StoredMatrix, by_slabs
from ..mapping import Change, Fields, Target

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Rows = npt.NDArray[np.intp]

__all__ = ["Packed", "Packer"]

# Matrices that layers read with Weights.linear, whose products can be multiplied by a factor.
_SCALABLE = re.compile(r"blk\.\d+\.(attn_(q|k|v|qkv|output)|ffn_(gate|up|down)(_shexp)?)\.weight")


@dataclass(frozen=True)
class Packed:
    """A tensor that keeps the codes of its sources.  ``rows`` selects and orders the rows of each; None keeps all."""

    dtype: str
    matrices: tuple[StoredMatrix, ...]
    rows: Rows | None

    @property
    def factor(self) -> float:
        """The factor that products with this tensor are multiplied by."""
        return self.matrices[0].factor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each source's part."""
        shape = self.matrices[0].shape
        return shape if self.rows is None else (len(self.rows), shape[-1])

    def data(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the tensor's bytes as stored in a file, one part at a time."""
        for matrix in self.matrices:
            if self.rows is None:
                yield from by_slabs(matrix, partial(matrix.packed, self.dtype))
            else:
                yield matrix.packed(self.dtype, 0, matrix.n_rows)[self.rows]


class Packer:
    """Decides which tensors keep their quantized form."""

    def __init__(self, checkpoint: StoredCheckpoint, config: Fields) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._orders: dict[tuple[Change, tuple[int, ...]], Rows | None] = {}

    def packed(self, target: Target) -> Packed | None:
        """Return the target in packed form.

        None if no GGUF type represents all of its matrices exactly, or if conversion changes their values.
        """
        matrices = [self._checkpoint.matrices.get(source) for source in target.sources]
        found = [matrix for matrix in matrices if matrix is not None]
        if not found or len(found) != len(matrices) or target.keep_f32:
            return None
        rows = None
        if target.change is not None:
            if len({matrix.shape for matrix in found}) != 1 or len(found[0].shape) != 2:
                return None
            rows = self._order(target.change, found[0].shape)
            if rows is None:
                return None
        factors = {matrix.factor for matrix in found}
        if len(factors) != 1 or (factors != {1.0} and not _SCALABLE.fullmatch(target.name)):
            return None
        types = _common([matrix.exact_types() for matrix in found])
        return Packed(types[0], tuple(found), rows) if types else None

    def _order(self, change: Change, shape: tuple[int, ...]) -> Rows | None:
        """Return the rows that a change selects, in order; None if it does more than select and order rows.

        The change is tried on matrices of row numbers and of column numbers.
        """
        key = (change, shape)
        if key not in self._orders:
            self._orders[key] = _order(change, shape, self._config)
        return self._orders[key]


def _order(change: Change, shape: tuple[int, ...], config: Fields) -> Rows | None:
    import numpy as np

    n_rows, n_columns = shape
    if max(shape) >= 1 << 24:  # float32 cannot represent larger row numbers
        return None
    row, column = np.arange(n_rows, dtype=np.float32), np.arange(n_columns, dtype=np.float32)
    try:
        rows = change(np.ascontiguousarray(np.broadcast_to(row[:, None], shape)), config)
        columns = change(np.ascontiguousarray(np.broadcast_to(column, shape)), config)
    except ValueError:
        return None
    if rows.ndim != 2 or rows.shape[1] != n_columns or not (columns == column).all() or (rows != rows[:, :1]).any():
        return None
    order = rows[:, 0].astype(np.intp)
    return order if (order == rows[:, 0]).all() and order.min() >= 0 and order.max() < n_rows else None


def _common(types: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the types that all of ``types`` contain, in the order of the first."""
    return [one for one in types[0] if all(one in others for others in types)]
