"""The listener's end of the channel to a worker, on its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from .frames import HEAD, body_length, frame
from .protocol import FromEngine, ToEngine

if TYPE_CHECKING:
    from asyncio import Transport

__all__ = ["ListenerSide"]


class ListenerSide(asyncio.Protocol):
    """Decodes messages and passes them on; reports when the other end closes."""

    def __init__(self, received: Callable[[list[FromEngine]], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._decoder = msgspec.msgpack.Decoder(list[FromEngine])
        self._buffer = bytearray()
        self._transport: Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def send(self, messages: Sequence[ToEngine]) -> None:
        """Send messages; does nothing if the other end is closed."""
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
        while len(buffer) - at >= HEAD:
            with memoryview(buffer) as view:
                end = at + HEAD + body_length(view[at : at + HEAD])
                if end > len(buffer):
                    break
                messages += self._decoder.decode(view[at + HEAD : end])
            at = end
        if at:
            del buffer[:at]
        if messages:
            self._received(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()
