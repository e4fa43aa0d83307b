"""Low-rank products, changed in the way that conversion changes the matrix they are added to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedError
from ..mapping import Array, Change, Fields

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Order = npt.NDArray[np.intp]

__all__ = ["Effect", "Product", "effect_of"]

_SLAB_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Product:
    """``left [rows, rank] @ right [rank, columns]``."""

    left: Array
    right: Array

    @property
    def rank(self) -> int:
        return int(self.left.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], self.right.shape[1]

    def turned(self) -> Product:
        return Product(self.right.T, self.left.T)

    def times(self, factor: float) -> Product:
        import numpy as np

        with np.errstate(over="ignore"):
            return Product(self.left * np.float32(factor), self.right)


@dataclass(frozen=True, eq=False)
class Effect:
    """The effect of a change on matrices ``W`` of one shape.

    The result is ``W[rows][:, columns]``, transposed if ``turns``, with each row then multiplied by its factor.
    """

    rows: Order
    columns: Order
    turns: bool
    factors: Array

    def of(self, product: Product) -> Product:
        """Apply the change to a product."""
        chosen = Product(product.left[self.rows], product.right[:, self.columns])
        chosen = chosen.turned() if self.turns else chosen
        return Product(chosen.left * self.factors[:, None], chosen.right)

    def lengths(self, lengths: Array, n_columns: int) -> Array:
        """Return the lengths of the result's rows, given those of the rows of ``W``, or of its columns if it turns.

        UnsupportedError if the result has not all numbers of a row.
        """
        import numpy as np

        rows, columns = (self.columns, self.rows) if self.turns else (self.rows, self.columns)
        if len(columns) != n_columns:
            raise UnsupportedError(
                "[adapter] unsupported DoRA for a matrix of which conversion keeps some columns only"
            )
        return np.asarray(lengths[rows] * np.abs(self.factors), np.float32)

    def equals(self, other: Effect) -> bool:
        import numpy as np

        pairs = ((self.rows, other.rows), (self.columns, other.columns), (self.factors, other.factors))
        return self.turns == other.turns and all(np.array_equal(mine, theirs) for mine, theirs in pairs)


def effect_of(change: Change, shape: tuple[int, int], config: Fields) -> Effect | None:
    """Return the effect of a change on matrices of a shape; None if an ``Effect`` cannot express it.

    The change is tried on a matrix of ones, on matrices of row and column numbers, and on random numbers.
    """
    import numpy as np

    def tried(matrix: npt.NDArray[np.floating[Any]]) -> Array:
        return np.array(change(np.ascontiguousarray(matrix, np.float32), config), np.float32)

    n_rows, n_columns = shape
    try:
        ones = tried(np.broadcast_to(np.float32(1), shape))
        if ones.ndim != 2 or not ones.size or (ones != ones[:, :1]).any():
            return None
        factors = ones[:, 0].copy()
        if not np.isfinite(factors).all() or (factors == 0).any():
            return None
        by_row = tried(np.broadcast_to(np.arange(1, n_rows + 1, dtype=np.float32)[:, None], shape))
        np.rint(by_row / factors[:, None], out=by_row)
        turns = bool((by_row != by_row[:, :1]).any())
        rows = (by_row[0] if turns else by_row[:, 0]).astype(np.intp) - 1
        by_column = tried(np.broadcast_to(np.arange(1, n_columns + 1, dtype=np.float32), shape))
        columns = np.rint((by_column / factors[:, None])[:, 0] if turns else by_column[0] / factors[0])
        columns = columns.astype(np.intp) - 1
        numbers = np.random.default_rng(0).random(shape, np.float32)
        expected = tried(numbers)
    except ValueError:
        return None
    for order, n in ((rows, n_rows), (columns, n_columns)):
        if not len(order) or order.min() < 0 or order.max() >= n:
            return None
    effect = Effect(rows, columns, turns, factors)
    return effect if _does(effect, numbers, expected) else None


def _does(effect: Effect, numbers: Array, expected: Array) -> bool:
    """Return whether applying the effect to ``numbers`` gives ``expected``."""
    import numpy as np

    rows, columns = (effect.columns, effect.rows) if effect.turns else (effect.rows, effect.columns)
    if expected.shape != (len(rows), len(columns)):
        return False
    numbers = numbers.T if effect.turns else numbers
    for begin in range(0, len(rows), _SLAB_ROWS):
        part = slice(begin, begin + _SLAB_ROWS)
        factors = effect.factors[part, None]
        found = numbers[np.ix_(rows[part], columns)] * factors
        if not (np.abs(found - expected[part]) <= 1e-6 * np.abs(factors)).all():
            return False
    return True
