"""A clock that stops while this process is stalled; used for worker timeouts."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["AwakeClock"]


class AwakeClock:
    """Monotonic seconds that advance by at most ``most_s`` between two calls of ``tick``.

    While the event loop or the whole process is stalled, nothing that arrives is read and every worker seems silent.
    That time does not count towards their timeouts.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s = most_s
        self._clock = clock
        self._ticked_s = clock()
        self._awake_s = 0.0

    def now(self) -> float:
        """Return the time."""
        return self._awake_s + min(self._clock() - self._ticked_s, self._most_s)

    def tick(self) -> None:
        """Record that this process is running."""
        self._awake_s, self._ticked_s = self.now(), self._clock()
