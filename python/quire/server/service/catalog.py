"""Which models there are: looked up on a thread, and no more often than needed."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from ...errors import QuireError

__all__ = ["Catalog"]

# An unknown name is not looked up again within this time if nothing seems to have changed.
_FRESH_S = 1.0
# A change this soon before a look may be followed by another with the same modification time.
_GRAIN_NS = 20_000_000
# The largest share of time spent on looks, as they hold the GIL that the event loop needs.
_MOST_BUSY = 0.25


class Catalog:
    """The available models by name, with the sizes of their files in bytes.

    ``known`` holds the result of the last look.  A look that fails leaves it unchanged and reports on standard error.
    """

    def __init__(
        self,
        look: Callable[[], dict[str, int]],
        changed_ns: Callable[[], int | None] = lambda: None,
        *,
        fixed: bool = False,
    ) -> None:
        """Look for the first time.

        Args:
            look: Finds the models; called on a thread later on.
            changed_ns: When the place was changed last, cheap to tell; None where that is not known.
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
        """Look again, and return what there is.

        Calls that come together share a look that begins after all of them.
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
                sys.stderr.write(f"quire: the list of models stays as it was: {error}\n")
        finally:
            self._running = None
            self._seen_s = time.monotonic()
            self._seen_ns = changed_ns if is_settled else None
            self._rested_s = self._seen_s + (self._seen_s - started_s) * (1 / _MOST_BUSY - 1)
