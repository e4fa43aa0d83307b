"""What is done to a tensor on its way into the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..reading.fields import Fields

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[np.float32]"
# A tensor and the configuration; the shape of the result must not depend on values.
Change: TypeAlias = "Callable[[Array, Fields], Array]"


def interleaved(*n_heads: str) -> Change:
    """Rows of each head from halves to pairs: 0, n/2, 1, n/2 + 1, ...

    ``n_heads`` names the field with the number of heads; where it is absent, the next one counts.
    """

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        n_head = config.integer(next((name for name in n_heads if config.has(name)), n_heads[0]))
        split = x.reshape(n_head, 2, x.shape[0] // n_head // 2, *x.shape[1:])
        return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(x.shape)

    return change


def adding(number: float) -> Change:
    """A constant that checkpoints leave out, such as the 1 of Gemma's norms."""

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        shifted: Array = x + np.float32(number)
        return shifted

    return change


def transposed(x: Array, config: Fields) -> Array:
    """Of GPT-2's Conv1D, which stores ``[in, out]``; biases stay."""
    return x.T.copy() if x.ndim == 2 else x


def squeezed(x: Array, config: Fields) -> Array:
    """Without the dimensions of 1, such as the middle one of depthwise convolutions."""
    return x.squeeze()


@dataclass(frozen=True)
class OnlyWith:
    """A change of tensors that a model has only where a field says so; others leave them out, as transformers does."""

    name: str
    default: bool
    biases: bool
    change: Change | None = None

    def __call__(self, x: Array, config: Fields) -> Array:
        return self.change(x, config) if self.change else x

    def denies(self, tensor: str, config: Fields) -> bool:
        """Return whether the configuration says that the model has no such tensor."""
        is_there = config.flag(self.name, self.default) if not config.is_null(self.name) else False
        return not is_there and (not self.biases or tensor.endswith(".bias"))


def only_with(name: str, *, default: bool, biases: bool = False, change: Change | None = None) -> OnlyWith:
    """Tensors that count only where a field is true, all of them or the ``biases`` alone.

    The field counts as read whether or not the checkpoint has such tensors.  ``change``: what is done to them.
    """
    return OnlyWith(name, default, biases, change)


def rows(begin: Callable[[Fields], int], end: Callable[[Fields], int]) -> Change:
    """A part of a fused tensor: its rows ``[begin, end)``, each a function of the configuration."""

    def change(x: Array, config: Fields) -> Array:
        return x[begin(config) : end(config)]

    return change


def by_expert(n_expert: Callable[[Fields], int], *, transposes: bool = False) -> Change:
    """Matrices of all experts, one below the other, apart; ``transposes``: each is turned."""

    def change(x: Array, config: Fields) -> Array:
        n = n_expert(config)
        apart: Array = x.reshape(n, x.shape[0] // n, *x.shape[1:])
        return apart.swapaxes(1, 2).copy() if transposes else apart

    return change


def half(which: int) -> Change:
    """The first or the second (0, 1) of two matrices, one below the other, such as gate and up of all experts."""

    def change(x: Array, config: Fields) -> Array:
        n = x.shape[-2] // 2
        part: Array = x[..., which * n : (which + 1) * n, :].copy()
        return part

    return change
