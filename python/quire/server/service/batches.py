"""Batches that the server works on in the background, one after the other."""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from ...errors import RequestError
from ..failures import ApiError, shutting_down
from .batch_lines import BatchLine, read_lines
from .batch_runner import Post, answer_lines
from .batch_store import OPEN, BatchStore, BatchWish, StoredBatch
from .caller import Caller

__all__ = ["Batches"]

MOST_LINES = 50_000
MOST_WAITING = 64  # batches of one caller
_DISK_RETRY_S = 5.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_log = logging.getLogger("quire.server")
P = ParamSpec("P")
T = TypeVar("T")


class Batches:
    """The store of a folder, and the task that answers its batches.

    The store is used on a thread of its own, so that the disk delays no other request.
    """

    def __init__(self, folder: Path, post: Post, n_at_once: Callable[[], int]) -> None:
        self._folder, self._post, self._n_at_once = folder, post, n_at_once
        self._thread = ThreadPoolExecutor(1, "quire-batches")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._running: tuple[str, asyncio.Task[None]] | None = None

    async def start(self) -> None:
        """Open the store, and go on with the batches that did not finish."""
        loop = asyncio.get_running_loop()
        self.store = await loop.run_in_executor(self._thread, BatchStore, self._folder)
        self._wake.set()
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop working; the next start goes on.  May be called again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.get_running_loop().run_in_executor(self._thread, self.store.close)
        self._thread.shutdown()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the store.  ApiError 503 if the server is stopping."""
        if self._task is None:
            raise shutting_down()
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(*args, **kwargs))

    async def add(self, caller: Caller, wish: BatchWish) -> StoredBatch:
        """Accept a batch.  ApiError 400 for an invalid file, 404 for an unknown one, 429 for too many batches."""

        def added() -> StoredBatch:
            store = self.store
            if sum(batch.status in OPEN for batch in store.batches(caller)) >= MOST_WAITING:
                raise ApiError(429, "too_many_batches", f"{MOST_WAITING} batches wait already", retry_after_s=60)
            try:
                n_lines = len(self._lines(caller, wish.input, wish.path))
            except RequestError as error:
                raise ApiError(400, "invalid_batch", str(error).partition("] ")[2], "input_file_id") from None
            if not 0 < n_lines <= MOST_LINES:
                text = f"the file has {n_lines} requests: expected 1 to {MOST_LINES}"
                raise ApiError(400, "invalid_batch", text, "input_file_id")
            return store.add_batch(caller, wish, n_lines)

        batch = await self.call(added)
        self._wake.set()
        return batch

    async def cancel(self, caller: Caller, id_: str) -> StoredBatch:
        """Cancel a batch; what is answered stays.  ApiError 404 or, if it has ended, 409."""
        batch = await self.call(self.store.cancel, caller, id_)
        if self._running is not None and self._running[0] == id_:
            self._running[1].cancel()
        self._wake.set()
        return batch

    def _lines(self, caller: Caller, input_id: str, path: str) -> list[BatchLine]:
        with self.store.path(caller, input_id).open("rb") as file:
            return list(read_lines(file, path))

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._work_once()
            except (OSError, sqlite3.Error) as error:  # the disk is full, for example
                _log.error("[batch] cannot write to %s: %s", self._folder, error)
                await asyncio.sleep(_DISK_RETRY_S)
                continue
            await self._wake.wait()

    async def _work_once(self) -> None:
        for batch in await self.call(self.store.unfinished):
            if batch.status == "cancelling":
                await self.call(self.store.finish, batch, "cancelled")
                continue
            task = asyncio.create_task(self._answer(batch))
            self._running = batch.id, task
            try:
                await asyncio.wait({task})
            finally:
                self._running = None
                task.cancel()
            if not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, sqlite3.Error) or (isinstance(error, OSError) and error.errno in _FULL):
                    raise error  # it goes on when there is room again
                _log.error("[batch] %s failed: %s: %s", batch.id, type(error).__name__, error)
                await self.call(self.store.finish, batch, "failed")
            self._wake.set()  # look again: it was cancelled, or another one was added

    async def _answer(self, batch: StoredBatch) -> None:
        """Answer the requests of a batch that have no answer."""
        lines = await self.call(self._lines, batch.caller, batch.input, batch.path)
        done = await self.call(self.store.answered, batch)
        left = [line for line in lines if line.custom_id not in done]
        n_answered = 0
        async for line, status, answer in answer_lines(left, self._post, batch.caller, self._n_at_once()):
            await self.call(self.store.add_answer, batch, line.custom_id, status, answer)
            n_answered += 1
        if n_answered == len(left):  # otherwise the server is stopping
            await self.call(self.store.finish, batch, "completed")
        else:
            await asyncio.Future()  # until it stops
