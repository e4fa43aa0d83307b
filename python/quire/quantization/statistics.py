"""Statistics of importance matrices: the size of each tensor's inputs, and their distribution over the columns."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .importance import Importance, Sums

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["LayerStatistics", "TensorStatistics", "layer_statistics", "tensor_statistics"]

_INACTIVE = 1e-5


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of the mean squares of a tensor's columns, over all its matrices that have rows.

    Attributes:
        active: The fraction above 1e-5.
        entropy: Entropy, in bits, of the squares as a distribution over columns.
        deviating: The fraction more than a standard deviation above the mean.
        similarity: Cosine between the sums and those of the same tensor in the previous layer; None if there is none.
    """

    name: str
    total: float
    least: float
    most: float
    mean: float
    deviation: float
    active: float
    n_columns: int
    entropy: float
    deviating: float
    similarity: float | None

    @property
    def layer(self) -> int | None:
        """The layer of the tensor, None for one outside the layers."""
        found = re.match(r"blk\.(\d+)\.", self.name)
        return int(found[1]) if found else None

    @property
    def relative_entropy(self) -> float:
        """The entropy relative to its maximum; 1 if all columns are equal."""
        return self.entropy / math.log2(self.n_columns) if self.n_columns > 1 else 0.0


@dataclass(frozen=True)
class LayerStatistics:
    """Means over a layer's tensors, weighted by their columns."""

    layer: int
    total: float
    deviating: float
    similarity: float


def tensor_statistics(importance: Importance) -> list[TensorStatistics]:
    """Return the statistics of every tensor with rows, by the name after the layer, largest first."""
    found = [_of(importance, name, sums) for name, sums in importance.sums.items() if (sums.counts > 0).any()]
    return sorted(found, key=lambda one: (re.sub(r"^blk\.\d+\.", "", one.name), -one.total))


def _of(importance: Importance, name: str, sums: Sums) -> TensorStatistics:
    import numpy as np

    means = sums.mean()[sums.counts > 0].astype(np.float64).reshape(-1)
    total = float(means.sum())
    parts = means[means > 0] / total if total > 0 else means[:0]
    deviation = float(means.std())
    return TensorStatistics(
        name=name,
        total=total,
        least=float(means.min()),
        most=float(means.max()),
        mean=float(means.mean()),
        deviation=deviation,
        active=float((means > _INACTIVE).mean()),
        n_columns=means.size,
        entropy=float(-(parts * np.log2(parts)).sum()),
        deviating=float((means > means.mean() + deviation).mean()) if deviation > 0 else 0.0,
        similarity=_similarity(importance, name, sums.squares),
    )


def _similarity(importance: Importance, name: str, squares: npt.NDArray[np.float32]) -> float | None:
    import numpy as np

    found = re.match(r"blk\.(\d+)(\..*)", name)
    before = importance.sums.get(f"blk.{int(found[1]) - 1}{found[2]}") if found else None
    if before is None or before.squares.size != squares.size:
        return None
    one, other = squares.reshape(-1).astype(np.float64), before.squares.reshape(-1).astype(np.float64)
    lengths = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / lengths if lengths > 0 else None


def layer_statistics(tensors: Sequence[TensorStatistics]) -> list[LayerStatistics]:
    """Return the statistics of every layer, in order."""
    layers: dict[int, list[TensorStatistics]] = defaultdict(list)
    for tensor in tensors:
        if tensor.layer is not None:
            layers[tensor.layer].append(tensor)
    made = []
    for layer, its in sorted(layers.items()):
        n = sum(tensor.n_columns for tensor in its)
        made.append(
            LayerStatistics(
                layer,
                sum(tensor.total * tensor.n_columns for tensor in its) / n,
                sum(tensor.deviating * tensor.n_columns for tensor in its) / n,
                sum((tensor.similarity or 0.0) * tensor.n_columns for tensor in its) / n,
            )
        )
    return made
