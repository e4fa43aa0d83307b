"""A short delay of the first request, so that simultaneous requests share a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .protocol import Work

__all__ = ["BatchDelay"]


class BatchDelay:
    """Holds requests until a batch of them is full, or until the first has waited ``wait_s`` seconds."""

    def __init__(self, wait_s: float, send: Callable[[list[Work]], None]) -> None:
        self._wait_s = wait_s
        self._send = send
        self._held: list[Work] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(self, work: Work, most: int) -> None:
        """Hold a request; release all of them once there are ``most``."""
        self._held.append(work)
        if len(self._held) >= most:
            self._release()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._release)

    def remove(self, id_: int) -> bool:
        """Remove a held request; False if it is not held."""
        before = len(self._held)
        self._held = [work for work in self._held if work.id != id_]
        return len(self._held) < before

    def clear(self) -> None:
        """Remove all held requests."""
        self._held = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self) -> None:
        held = self._held
        self.clear()
        if held:
            self._send(held)
