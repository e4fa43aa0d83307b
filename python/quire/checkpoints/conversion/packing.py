"""Matrices that a checkpoint stores in few bits: which types of files hold them, and their rows in those."""

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

# Matrices whose products can be multiplied by a number of their own: those that layers take with Weights.linear.
_SCALABLE = re.compile(r"blk\.\d+\.(attn_(q|k|v|qkv|output)|ffn_(gate|up|down)(_shexp)?)\.weight")


@dataclass(frozen=True)
class Packed:
    """A tensor whose sources go into the file as they are: ``rows`` of each, all in order where None."""

    dtype: str
    matrices: tuple[StoredMatrix, ...]
    rows: Rows | None

    @property
    def factor(self) -> float:
        """What products with it are multiplied by."""
        return self.matrices[0].factor

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what each source gives."""
        shape = self.matrices[0].shape
        return shape if self.rows is None else (len(self.rows), shape[-1])

    def data(self) -> Iterator[npt.NDArray[np.uint8]]:
        """The tensor as files hold it, a part at a time."""
        for matrix in self.matrices:
            if self.rows is None:
                yield from by_slabs(matrix, partial(matrix.packed, self.dtype))
            else:
                yield matrix.packed(self.dtype, 0, matrix.n_rows)[self.rows]


class Packer:
    """Finds out what of a checkpoint is packed."""

    def __init__(self, checkpoint: StoredCheckpoint, config: Fields) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._orders: dict[tuple[Change, tuple[int, ...]], Rows | None] = {}

    def packed(self, target: Target) -> Packed | None:
        """None where no type of files holds all of the target's matrices, or where their numbers are changed."""
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
        """Which rows a change makes of a matrix; None for one that does more than to choose and order rows.

        It is tried on numbers of rows and on numbers of columns.
        """
        key = (change, shape)
        if key not in self._orders:
            self._orders[key] = _order(change, shape, self._config)
        return self._orders[key]


def _order(change: Change, shape: tuple[int, ...], config: Fields) -> Rows | None:
    import numpy as np

    n_rows, n_columns = shape
    if max(shape) >= 1 << 24:  # beyond, numbers of rows are no float32
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
    """Those that are in all, in the order of the first."""
    return [one for one in types[0] if all(one in others for others in types)]
