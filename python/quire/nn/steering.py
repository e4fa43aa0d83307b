"""Control vectors in a forward pass: directions that are added to hidden states after layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .._native.graph import Weight

__all__ = ["Steering"]


@dataclass(frozen=True)
class Steering:
    """The directions of all control vectors of a model.

    Attributes:
        n: Numbers that a step brings for each token: the scale of each vector, zeros behind them.
        layers: For layers that are steered, ``[dim, n]``: a column for each vector.
    """

    n: int
    layers: Mapping[int, Weight]
