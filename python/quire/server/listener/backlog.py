"""Bytes received on a connection but not yet given to the parser."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from uvicorn.protocols.http.flow_control import FlowControl

if TYPE_CHECKING:
    from asyncio import Transport

__all__ = ["Backlog", "Flow"]

# Bytes given to the parser at a time.  It buffers at most this much of a request head beyond the limit.
_PIECE = 16 << 10
# Smaller for chunked bodies: more requests may follow the last chunk, and the parser starts all those in a piece.
_CHUNKED_PIECE = 4 << 10
_HEAD_END = b"\r\n\r\n"


class Backlog:
    """Divides received bytes into pieces that end where a request may end."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0

    def __len__(self) -> int:
        return len(self._data) - self._at

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self._data = self._data[self._at :] + data if len(self) else data
        self._at = 0

    def clear(self) -> None:
        """Drop all bytes."""
        self._data, self._at = b"", 0

    def take(self, n_body_left: int | None) -> memoryview:
        """Take the next piece.

        Args:
                n_body_left: Bytes until the end of the body; 0 outside of one; None for a chunked body of unknown
                    length.
        """
        if n_body_left is None:
            n = _CHUNKED_PIECE
        elif n_body_left:
            n = min(n_body_left, _PIECE)
        else:
            end = self._data.find(_HEAD_END, self._at, self._at + _PIECE)
            n = _PIECE if end < 0 else end + len(_HEAD_END) - self._at
        n = min(n, len(self))
        piece = memoryview(self._data)[self._at : self._at + n]
        self._at += n
        if self._at == len(self._data):
            self.clear()
        return piece


class Flow(FlowControl):
    """Flow control that asks the protocol before reading from the connection again."""

    def __init__(self, transport: Transport, wanted: Callable[[], None]) -> None:
        super().__init__(transport)
        self._wanted = wanted

    def resume_reading(self) -> None:
        """Tell the protocol that more bytes are wanted."""
        self._wanted()

    def read(self) -> None:
        """Read from the socket again."""
        super().resume_reading()
