"""Token counts and speed of an answer, for display."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Clock", "Stats"]

LEAST_S = 0.01


@dataclass(frozen=True)
class Stats:
    """Figures of an answer: its tokens, and the seconds to the first piece.

    After the first piece came ``n_later`` tokens, the last of them ``later_s`` seconds later.  If ``later_s`` is below
    ``LEAST_S``, the pieces had been buffered and tell nothing about speed.
    """

    n_tokens: int
    first_s: float
    n_later: int
    later_s: float

    def __str__(self) -> str:
        has_speed = self.n_later > 0 and self.later_s >= LEAST_S
        speed = f", {self.n_later / self.later_s:.1f} tokens/s" if has_speed else ""
        return f"{self.n_tokens} tokens, the first after {self.first_s:.2f} s{speed}"


class Clock:
    """Measures when the pieces of an answer arrive."""

    def __init__(self) -> None:
        self._begun_s = self._first_s = self._last_s = time.monotonic()
        self._counts: list[int] = []

    def tick(self, n_tokens: int) -> None:
        """Record a piece."""
        self._last_s = time.monotonic()
        if not self._counts:
            self._first_s = self._last_s
        self._counts.append(n_tokens)

    def stats(self) -> Stats:
        """Return the figures so far."""
        later = sum(self._counts[1:])
        return Stats(sum(self._counts), self._first_s - self._begun_s, later, self._last_s - self._first_s)
