"""The list of available models, refreshed on a thread and no more often than necessary."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from ...errors import QuireError

__all__ = ["Catalog"]

# An unknown name does not cause another scan within this time if nothing seems to have changed.
_FRESH_S = 1.0
# A change this soon before a scan may be followed by another with the same modification time.
_GRAIN_NS = 20_000_000
# The largest share of time to spend on scans, because they hold the GIL that the event loop needs.
_MOST_BUSY = 0.25


class Catalog:
    """The available models by name, with the sizes of their files in bytes.

    ``known`` is the result of the last scan.  A scan that fails leaves it unchanged and reports to standard error.
    """

    def __init__(
        self,
        look: Callable[[], dict[str, int]],
        changed_ns: Callable[[], int | None] = lambda: None,
        *,
        fixed: bool = False,
    ) -> None:
        """Scan for the first time.

        Args:
                look: Finds the models; later called on a thread.
                changed_ns: Cheaply returns when the place was last changed, None if unknown.
                fixed: The models never change.
        """
        self._look, self._changed_ns, self._fixed = look, changed_ns, fixed
        self._running: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._seen_ns: int | None = None
        self._seen_s = self._rested_s = 0.0
        self._complaint = ""
        self.known = look()

    async def renew(self, *, force: bool = False) -> dict[str, int]:
        """Scan again and return the models.

        Concurrent calls share one scan, which starts after all of them.
        """
        if self._fixed or (not force and self._is_fresh()):
            return self.known
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(self._take_turn(self._running, force))
        await asyncio.shield(self._waiting)
        return self.known

    def _is_fresh(self) -> bool:
        if self._seen_ns is None or time.monotonic() - self._seen_s > _FRESH_S:
            return False
        return self._changed_ns() == self._seen_ns

    async def _take_turn(self, before: asyncio.Task[None] | None, force: bool) -> None:
        if before is not None:
            await asyncio.wait({before})
        if not force:
            await asyncio.sleep(max(0.0, self._rested_s - time.monotonic()))
        self._running, self._waiting = self._waiting, None
        started_s, changed_ns = time.monotonic(), self._changed_ns()
        is_settled = changed_ns is not None and time.time_ns() - changed_ns > _GRAIN_NS
        try:
            self.known = await asyncio.to_thread(self._look)
            self._complaint = ""
        except (QuireError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                sys.stderr.write(f"quire: cannot refresh the list of models: {error}\n")
        finally:
            self._running = None
            self._seen_s = time.monotonic()
            self._seen_ns = changed_ns if is_settled else None
            self._rested_s = self._seen_s + (self._seen_s - started_s) * (1 / _MOST_BUSY - 1)
