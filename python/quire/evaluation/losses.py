"""Losses of a model over tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Doubles = npt.NDArray[np.float64]

__all__ = ["Losses", "log_probs", "token_losses"]


def log_probs(logits: Floats) -> Floats:
    """Return the log-softmax of rows ``[n, n_vocab]``, with sums in double precision."""
    import numpy as np

    highest = logits.max(axis=1, keepdims=True)
    shifted = logits - highest
    log_sums = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True))
    result: Floats = (shifted - log_sums).astype(np.float32)
    return result


def token_losses(logits: Floats, ids: list[int]) -> Doubles:
    """Return the negative log-probabilities ``[n]`` of ``ids`` from the rows of ``logits [n, n_vocab]``."""
    import numpy as np

    highest = logits.max(axis=1)
    log_sums = np.log(np.exp(logits - highest[:, None]).sum(axis=1, dtype=np.float64))
    own = logits[np.arange(len(ids)), ids].astype(np.float64)
    result: Doubles = log_sums + highest - own
    return result


@dataclass
class Losses:
    """Sums of negative log-probabilities, and of their squares."""

    total: float = 0.0
    squares: float = 0.0
    n: int = 0

    def add(self, losses: Doubles) -> None:
        """Add the losses of tokens."""
        self.total += float(losses.sum())
        self.squares += float((losses * losses).sum())
        self.n += len(losses)

    @property
    def mean(self) -> float:
        """The mean loss, in nats per token."""
        return self.total / max(1, self.n)

    @property
    def perplexity(self) -> float:
        """The perplexity, ``exp`` of the mean."""
        return math.exp(self.mean)

    @property
    def error(self) -> float:
        """The standard error of the perplexity."""
        if self.n < 2:
            return 0.0
        variance = max(0.0, self.squares / self.n - self.mean**2)
        return self.perplexity * math.sqrt(variance / (self.n - 1))
