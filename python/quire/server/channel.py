"""Frames on a socket between two processes: four bytes of length, then MessagePack of a list of messages."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..errors import InternalError
from .protocol import FromEngine, ToEngine

if TYPE_CHECKING:
    from asyncio import Transport

__all__ = ["ListenerSide", "WorkerSide", "frame"]

_HEAD = 4
# The worker's frames gather so long at least, and are so far apart: less than anybody sees.
_TOGETHER_S, _APART_S = 0.0003, 0.012
MAX_FRAME_BYTES = 1 << 30
_encoder = msgspec.msgpack.Encoder()


def frame(messages: Sequence[ToEngine] | Sequence[FromEngine]) -> bytes:
    """The bytes of some messages."""
    body = _encoder.encode(messages)
    return len(body).to_bytes(_HEAD, "big") + body


def _length(head: bytes | bytearray | memoryview) -> int:
    length = int.from_bytes(head, "big")
    if length > MAX_FRAME_BYTES:
        raise InternalError(f"[channel] a frame must have at most {MAX_FRAME_BYTES} bytes but has {length}")
    return length


class WorkerSide:
    """The worker's end: one thread reads, one writes what any thread puts in."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(list[ToEngine])
        self._outbox: queue.SimpleQueue[Sequence[FromEngine] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="quire-channel", daemon=True)
        self._writer.start()

    def send(self, messages: Sequence[FromEngine]) -> None:
        """Have messages sent, in order.  Returns at once."""
        self._outbox.put(messages)

    def finish(self) -> None:
        """Wait until all that was put in is sent."""
        self._outbox.put(None)
        self._writer.join(5.0)

    def messages(self) -> Iterator[ToEngine]:
        """What comes, until the other end is closed."""
        with self._connection.makefile("rb") as file:
            while len(head := file.read(_HEAD)) == _HEAD:
                length = _length(head)
                body = file.read(length)
                if len(body) < length:
                    return
                yield from self._decoder.decode(body)

    def _write(self) -> None:
        sent_s = 0.0
        ended = False
        while not ended:
            taken = [self._outbox.get()]
            # What many requests have to say after one step goes out together; and a model that is quicker than people
            # read does not wake the listener, and the clients, for every token.
            time.sleep(max(_TOGETHER_S, sent_s + _APART_S - time.monotonic()))
            while not self._outbox.empty():
                taken.append(self._outbox.get())
            ended = None in taken
            messages = [message for group in taken if group is not None for message in group]
            try:
                if messages:
                    self._connection.sendall(frame(messages))
            except OSError:  # the listener is gone, and the reading thread ends the process
                return
            sent_s = time.monotonic()


class ListenerSide(asyncio.Protocol):
    """The listener's end, on the event loop."""

    def __init__(self, received: Callable[[list[FromEngine]], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._decoder = msgspec.msgpack.Decoder(list[FromEngine])
        self._buffer = bytearray()
        self._transport: Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def send(self, messages: Sequence[ToEngine]) -> None:
        """Send messages; nothing happens where the other end is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(messages))

    def close(self) -> None:
        """Close this end."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        messages: list[FromEngine] = []
        while len(buffer) - at >= _HEAD:
            with memoryview(buffer) as view:
                end = at + _HEAD + _length(view[at : at + _HEAD])
                if end > len(buffer):
                    break
                messages += self._decoder.decode(view[at + _HEAD : end])
            at = end
        if at:
            del buffer[:at]
        if messages:
            self._received(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()
