"""The replicas behind a front: which ones are ready, and whose requests are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import httpx

from .prefix_index import Replica

__all__ = ["HttpReplica", "Lost", "unless_lost", "watch"]

EVERY_S = 1.0
_TIMEOUT_S = 3.0
_MOST_FAILURES = 3
_log = logging.getLogger("quire.route")
T = TypeVar("T")


class Lost(Exception):
    """A replica failed.

    ``has_begun``: part of its answer was passed on; ``was_sent``: it may have acted on the request.
    """

    def __init__(self, has_begun: bool = False, was_sent: bool = True) -> None:
        super().__init__()
        self.has_begun, self.was_sent = has_begun, was_sent


@dataclass(eq=False)
class HttpReplica(Replica):
    """A replica at a URL.  ``lost`` is set when it does not answer any more, and replaced when it does again."""

    lost: asyncio.Event = field(default_factory=asyncio.Event)
    n_failures: int = 0

    def fail(self) -> None:
        """Note that a connection failed: no new requests until it is seen to be ready."""
        self.is_ready = False

    def seen(self, is_ready: bool) -> None:
        """Note an answer about its health."""
        if self.lost.is_set():
            self.lost = asyncio.Event()
            self.epoch += 1  # it has started again
        if is_ready and not self.is_ready:
            _log.info("[route] %s is ready", self.url)
        self.is_ready, self.n_failures = is_ready, 0

    def unseen(self) -> None:
        """Note that it did not answer."""
        self.n_failures += 1
        self.is_ready = False
        if self.n_failures == _MOST_FAILURES:
            _log.warning("[route] %s does not answer", self.url)
            self.lost.set()


async def unless_lost(lost: asyncio.Event, work: Awaitable[T], limit_s: float | None = None) -> T:
    """Return a result, or raise Lost if the replica is lost before; asyncio.TimeoutError after ``limit_s``."""
    task, ending = asyncio.ensure_future(work), asyncio.ensure_future(lost.wait())
    try:
        done, _ = await asyncio.wait({task, ending}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise asyncio.TimeoutError
        if not task.done():
            raise Lost
        return task.result()
    finally:
        ending.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def watch(replicas: Sequence[HttpReplica], client: httpx.AsyncClient) -> None:
    """Ask the replicas for their health until cancelled."""
    while True:
        looks = (asyncio.wait_for(_look(replica, client), 2 * _TIMEOUT_S) for replica in replicas)
        await asyncio.gather(*looks, return_exceptions=True)
        await asyncio.sleep(EVERY_S)


async def _look(replica: HttpReplica, client: httpx.AsyncClient) -> None:
    try:
        async with client.stream("GET", f"{replica.url}/health", timeout=_TIMEOUT_S) as answer:
            status = answer.status_code  # the body does not matter
    except httpx.TimeoutException:
        replica.unseen()
    except httpx.TransportError:  # nobody listens: no need to wait for more failures
        replica.n_failures = max(replica.n_failures, _MOST_FAILURES - 1)
        replica.unseen()
    else:
        replica.seen(status == 200)
