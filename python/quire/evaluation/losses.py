"""Sums over tokens: how unlikely a model found them."""

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
    """Log-softmax of rows ``[n, n_vocab]``, by sums in double precision."""
    import numpy as np

    highest = logits.max(axis=1, keepdims=True)
    shifted = logits - highest
    log_sums = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True))
    result: Floats = (shifted - log_sums).astype(np.float32)
    return result


def token_losses(logits: Floats, ids: list[int]) -> Doubles:
    """Negative log-probabilities ``[n]`` of ``ids``, each by its row of ``logits [n, n_vocab]``."""
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
        """More tokens."""
        self.total += float(losses.sum())
        self.squares += float((losses * losses).sum())
        self.n += len(losses)

    @property
    def mean(self) -> float:
        """Nats a token."""
        return self.total / max(1, self.n)

    @property
    def perplexity(self) -> float:
        """``exp`` of the mean."""
        return math.exp(self.mean)

    @property
    def error(self) -> float:
        """Standard error of the perplexity."""
        if self.n < 2:
            return 0.0
        variance = max(0.0, self.squares / self.n - self.mean**2)
        return self.perplexity * math.sqrt(variance / (self.n - 1))
