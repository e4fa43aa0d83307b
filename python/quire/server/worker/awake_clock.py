"""Time in which this process was awake: what others are judged by."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["AwakeClock"]


class AwakeClock:
    """Seconds that only grow, and by ``most_s`` at most between two calls of ``tick``.

    Who is silent is judged by this clock.  While an event loop is held, or the whole process, nothing that comes is
    read, and everybody seems silent; that time does not count.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s = most_s
        self._clock = clock
        self._ticked_s = clock()
        self._awake_s = 0.0

    def now(self) -> float:
        """The time."""
        return self._awake_s + min(self._clock() - self._ticked_s, self._most_s)

    def tick(self) -> None:
        """This process is awake."""
        self._awake_s, self._ticked_s = self.now(), self._clock()
