"""The difference between the predictions of two models, with the statistics of llama-perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .losses import log_probs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Doubles = npt.NDArray[np.float64]

__all__ = ["Divergence", "Estimate", "divergence_over", "divergences"]

_PERCENTILES = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
# Smaller log-probabilities of the base model are ignored.
_LEAST_LOG_PROB = -16.0


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Doubles) -> Estimate:
        """Return the mean and its standard error for independent values."""
        n = len(values)
        return cls(float(values.mean()), float(values.std() / math.sqrt(n - 1)) if n > 10 else 0.0)


def divergences(base: Floats, other: Floats) -> Doubles:
    """Return the Kullback-Leibler divergence ``[n]`` of ``other`` from ``base``, log-probabilities ``[n, n_vocab]``."""
    import numpy as np

    kept = base > _LEAST_LOG_PROB
    terms = np.where(kept, np.exp(base) * (base - other), np.float32(0))
    result: Doubles = terms.sum(axis=1, dtype=np.float64)
    return result


@dataclass
class Divergence:
    """Statistics of two models over consecutive tokens, from the probabilities of the actual and of all tokens."""

    _base: list[Doubles] = field(default_factory=list)
    _other: list[Doubles] = field(default_factory=list)
    _divergences: list[Doubles] = field(default_factory=list)
    _agrees: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    def add(self, base: Floats, other: Floats, ids: list[int]) -> None:
        """Add tokens ``ids [n]`` with the log-probabilities ``[n, n_vocab]`` of the base model and of the other."""
        import numpy as np

        at = np.arange(len(ids)), ids
        self._base.append(base[at].astype(np.float64))
        self._other.append(other[at].astype(np.float64))
        self._divergences.append(divergences(base, other))
        self._agrees.append(base.argmax(axis=1) == other.argmax(axis=1))

    def mean(self) -> Estimate:
        """The mean divergence, in nats per token."""
        import numpy as np

        return Estimate.of(np.concatenate(self._divergences))

    def same_top(self) -> Estimate:
        """The fraction of tokens for which both models have the same most likely token."""
        import numpy as np

        return Estimate.of(np.concatenate(self._agrees).astype(np.float64))

    def perplexities(self) -> tuple[Estimate, Estimate]:
        """The perplexities of the base model and of the other."""
        import numpy as np

        means = (Estimate.of(-np.concatenate(own)) for own in (self._base, self._other))
        base, other = (Estimate(math.exp(one.value), math.exp(one.value) * one.error) for one in means)
        return base, other

    def statistics(self) -> dict[str, object]:
        """Return all statistics as JSON values.  Differences of probabilities are the other's minus the base's."""
        import numpy as np

        base, other = np.concatenate(self._base), np.concatenate(self._other)
        found = np.concatenate(self._divergences)
        moved = np.exp(other) - np.exp(base)
        ratio = base - other  # difference of losses: the logarithm of the ratio of perplexities
        squares = Estimate.of(moved**2)
        rms = math.sqrt(squares.value)
        own, its = self.perplexities()
        correlated = base.std() > 0 and other.std() > 0
        return {
            "n_tokens": len(found),
            "perplexity": vars(its),
            "base_perplexity": vars(own),
            "log_perplexity_ratio": vars(Estimate.of(ratio)),
            "correlation": float(np.corrcoef(base, other)[0, 1]) if correlated else 1.0,
            "kl_divergence": {**vars(Estimate.of(found)), **_spread(found)},
            "probability_difference": {**vars(Estimate.of(moved)), **_spread(moved)},
            "probability_difference_rms": {"value": rms, "error": squares.error / (2 * rms) if rms > 0 else 0.0},
            "same_top": vars(self.same_top()),
        }


def _spread(values: Doubles) -> dict[str, float]:
    import numpy as np

    found = np.percentile(values, _PERCENTILES)
    by_percent = {f"p{percent:g}": float(value) for percent, value in zip(_PERCENTILES, found, strict=True)}
    return {"least": float(values.min()), **by_percent, "most": float(values.max())}


def divergence_over(
    base: Iterable[Floats], rows: list[list[int]], logits: Iterable[Floats],
    on_chunk: Callable[[int, Divergence], None] | None = None,
) -> Divergence:  # fmt: skip
    """Compare the base model's log-probabilities with another model's logits over the second half of each chunk."""
    made = Divergence()
    for i, (row, own, its) in enumerate(zip(rows, base, logits, strict=True)):
        made.add(own, log_probs(its[:-1]), row[len(row) // 2 + 1 :])
        if on_chunk is not None:
            on_chunk(i + 1, made)
    return made
