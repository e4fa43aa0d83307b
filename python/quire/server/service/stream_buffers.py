"""Streams that outlive their connection: a client that comes back soon reads its answer from the start."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from ..failures import ApiError

if TYPE_CHECKING:
    from .caller import Caller

__all__ = ["StreamBuffer", "StreamBuffers"]

_ID = re.compile(rb"[A-Za-z0-9_-]{16,64}")
_ABANDONED_S, _CHECK_S = 60.0, 2.0
_MOST_BYTES, _MOST_STREAMS = 32 << 20, 256


class StreamBuffer:
    """The pieces of one answer, as its first client was sent them.  It begins with that client as a reader."""

    def __init__(self, owner: StreamBuffers) -> None:
        self._owner = owner
        self._pieces: list[bytes] = []
        self._grown = asyncio.Event()
        self._job: asyncio.Future[None] | None = None
        self._n_readers = 1
        self._left_s = 0.0
        self.n_bytes = 0
        self.lost = False  # it grew too large to be kept

    def add(self, piece: bytes) -> None:
        """Keep a piece, unless all streams together have too many bytes; then this one is no longer kept."""
        if self.lost:
            return
        if self._owner.n_bytes + len(piece) > _MOST_BYTES:
            self.lost = True
            self._owner.n_bytes -= self.n_bytes
            self._pieces, self.n_bytes = [], 0
        else:
            self._pieces.append(piece)
            self.n_bytes += len(piece)
            self._owner.n_bytes += len(piece)
        self._grown.set()

    def follow(self, job: asyncio.Future[None]) -> None:
        """Name the job that writes the answer."""
        self._job = job
        job.add_done_callback(lambda _: self._ended())

    async def outlive(self, job: asyncio.Future[None]) -> None:
        """After the client has gone, wait for the end of the job, or until nobody has come back for a minute."""
        self._leave()
        while not job.done() and not self.lost and not self.abandoned:
            await asyncio.wait({job}, timeout=_CHECK_S)

    @property
    def done(self) -> bool:
        """True if nothing will be added."""
        return self._job is not None and self._job.done()

    @property
    def abandoned(self) -> bool:
        """True if nobody has read it for a minute."""
        return self._n_readers == 0 and self._owner.clock() - self._left_s >= _ABANDONED_S

    async def read(self) -> AsyncIterator[bytes]:
        """Yield all pieces from the first one, and those to come.  ApiError if the answer failed or is not kept."""
        self._n_readers += 1
        try:
            at = 0
            while True:
                if self.lost:
                    raise ApiError(410, "stream_not_kept", "the stream is too long to be read again")
                if at < len(self._pieces):
                    pieces, at = self._pieces[at:], len(self._pieces)
                    yield b"".join(pieces)
                elif self.done:
                    break
                else:
                    self._grown.clear()
                    await self._grown.wait()
            assert self._job is not None
            if self._job.cancelled():
                raise ApiError(410, "stream_cancelled", "the answer was cancelled")
            if isinstance(error := self._job.exception(), ApiError):
                raise error
        finally:
            self._leave()

    def cancel(self) -> None:
        """End the answer."""
        if self._job is not None:
            self._job.cancel()

    def _leave(self) -> None:
        self._n_readers -= 1
        self._left_s = self._owner.clock()

    def _ended(self) -> None:
        self._left_s = self._owner.clock()
        self._grown.set()


class StreamBuffers:
    """The buffers of all streams that clients gave an id, by caller.  ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.n_bytes = 0
        self._buffers: dict[tuple[str, str], StreamBuffer] = {}

    def open(self, caller: Caller, id_: bytes | None) -> StreamBuffer | None:
        """Create the buffer of a new stream; None without an id, or if there are too many.

        ApiError 400 for an invalid id, 409 for one that is in use.
        """
        if id_ is None:
            return None
        if not _ID.fullmatch(id_):
            raise ApiError(
                400, "invalid_stream_id", f"invalid stream id {id_!r:.80}: expected 16 to 64 letters and digits"
            )
        self._forget()
        key = caller.name, id_.decode()
        if key in self._buffers:
            raise ApiError(409, "stream_exists", f"there is a stream with the id {key[1]} already")
        if len(self._buffers) >= _MOST_STREAMS:
            return None
        found = self._buffers[key] = StreamBuffer(self)
        return found

    def get(self, caller: Caller, id_: str) -> StreamBuffer:
        """Return a stream of this caller.  ApiError 404 if there is none, or it has been forgotten."""
        self._forget()
        found = self._buffers.get((caller.name, id_))
        if found is None:
            raise ApiError(404, "stream_not_found", f"no stream {id_!r:.80}", "id")
        return found

    def _forget(self) -> None:
        gone = [key for key, buffer in self._buffers.items() if buffer.done and buffer.abandoned]
        for key in gone:
            self.n_bytes -= self._buffers.pop(key).n_bytes
