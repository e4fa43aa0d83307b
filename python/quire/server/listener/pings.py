"""Keep-alive pings on silent streams, because clients and proxies give up on idle connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Pings"]

# Send the first ping early in a long prefill: some clients time out after a few seconds.
_FIRST_S = 1.0


class Pings:
    """Sends a ping whenever a stream is silent: first after a second at most, then after ``interval_s`` each time.

    A timer checks the time of the last piece, so sending pieces costs nothing extra.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]], ping: bytes, interval_s: float) -> None:
        self._send, self._ping, self._interval_s = send, ping, interval_s
        self._loop = asyncio.get_running_loop()
        self._after_s = min(_FIRST_S, interval_s)
        self._last_s = self._loop.time()
        self._busy = False
        self._sending: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(self._after_s, self._look)

    def carrying(self) -> None:
        """Record that a piece is being sent, perhaps the last one, which no ping may follow."""
        self._busy = True

    def carried(self) -> None:
        """Record that the stream has carried something."""
        self._busy = False
        self._last_s = self._loop.time()

    async def finish(self) -> None:
        """Stop, and wait for a ping that is being sent: nothing may follow the end of a stream."""
        self._busy = True
        self._timer.cancel()
        if self._sending is not None:
            await self._sending

    def cancel(self) -> None:
        """Stop, and cancel a ping that is being sent."""
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def _look(self) -> None:
        due_s = self._last_s + self._after_s
        if self._loop.time() < due_s:
            self._timer = self._loop.call_at(due_s, self._look)
        else:
            self._sending = self._loop.create_task(self._send_one())

    async def _send_one(self) -> None:
        # The stream may have ended, or begun a piece, between the timer and this task.
        if not self._busy and self._loop.time() >= self._last_s + self._after_s:
            await self._send(self._ping)
            self._last_s = self._loop.time()
            self._after_s = self._interval_s
        self._timer = self._loop.call_later(self._after_s, self._look)
