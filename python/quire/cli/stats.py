"""Tokens and speed of an answer, as it is shown to people."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Clock", "Stats"]

LEAST_S = 0.01


@dataclass(frozen=True)
class Stats:
    """Figures of an answer: tokens, and seconds to its first piece.  After that came ``n_later`` of the tokens, the
    last of them ``later_s`` seconds later.

    Pieces that come at once were waiting: in a shorter time than ``LEAST_S`` nothing was computed that tells a speed.
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
    """Takes the time of the pieces of an answer."""

    def __init__(self) -> None:
        self._begun_s = self._first_s = self._last_s = time.monotonic()
        self._counts: list[int] = []

    def tick(self, n_tokens: int) -> None:
        """A piece came."""
        self._last_s = time.monotonic()
        if not self._counts:
            self._first_s = self._last_s
        self._counts.append(n_tokens)

    def stats(self) -> Stats:
        """The figures so far."""
        later = sum(self._counts[1:])
        return Stats(sum(self._counts), self._first_s - self._begun_s, later, self._last_s - self._first_s)
