"""Changes of tensors between checkpoint and file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..reading.fields import Fields

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[np.float32]"
# Takes a tensor and the configuration; the result's shape depends on the tensor's shape only, not on its values.
Change: TypeAlias = "Callable[[Array, Fields], Array]"


def interleaved(*n_heads: str) -> Change:
    """Reorder the rows of each head from halves to pairs: 0, n/2, 1, n/2 + 1, ...

    ``n_heads`` are fields with the number of heads; the first one that is present is used.
    """

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        n_head = config.integer(next((name for name in n_heads if config.has(name)), n_heads[0]))
        split = x.reshape(n_head, 2, x.shape[0] // n_head // 2, *x.shape[1:])
        return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(x.shape)

    return change


def adding(number: float) -> Change:
    """Add a constant that checkpoints omit, such as the 1 of Gemma's norms."""

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        shifted: Array = x + np.float32(number)
        return shifted

    return change


def transposed(x: Array, config: Fields) -> Array:
    """Transpose matrices of GPT-2's Conv1D, which stores ``[in, out]``; biases are unchanged."""
    return x.T.copy() if x.ndim == 2 else x


def squeezed(x: Array, config: Fields) -> Array:
    """Remove dimensions of 1, such as the middle one of depthwise convolutions."""
    return x.squeeze()


@dataclass(frozen=True)
class OnlyWith:
    """A change of tensors that a model has only if a field says so; otherwise they are dropped, as in transformers."""

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
    """Drop tensors (or only biases, with ``biases``) unless the field ``name`` is true.

    The field counts as read even if the checkpoint has no such tensors.  ``change`` is applied to tensors that stay.
    """
    return OnlyWith(name, default, biases, change)


def rows(begin: Callable[[Fields], int], end: Callable[[Fields], int]) -> Change:
    """Take rows ``[begin, end)`` of a fused tensor; both are functions of the configuration."""

    def change(x: Array, config: Fields) -> Array:
        return x[begin(config) : end(config)]

    return change


def by_expert(n_expert: Callable[[Fields], int], *, transposes: bool = False) -> Change:
    """Split the stacked matrices of all experts; ``transposes``: transpose each."""

    def change(x: Array, config: Fields) -> Array:
        n = n_expert(config)
        apart: Array = x.reshape(n, x.shape[0] // n, *x.shape[1:])
        return apart.swapaxes(1, 2).copy() if transposes else apart

    return change


def half(which: int) -> Change:
    """Take the first (0) or second (1) of two stacked matrices, such as gate and up of all experts."""

    def change(x: Array, config: Fields) -> Array:
        n = x.shape[-2] // 2
        part: Array = x[..., which * n : (which + 1) * n, :].copy()
        return part

    return change
