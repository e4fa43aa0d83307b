"""Replies of routes: a complete answer, or a stream of pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from ..failures import ApiError, Dialect, error_body
from . import sse

__all__ = ["Events", "Reply", "event_stream", "refusal"]


@dataclass(frozen=True)
class Reply:
    """A complete answer."""

    content: bytes
    status: int = 200
    media_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Reply:
        """Return an answer in JSON."""
        return cls(sse.encode(value), status)


@dataclass(frozen=True)
class Events:
    """An answer in pieces.

    ``failed`` makes the last piece if the answer breaks off.  ``ping`` is a piece without content for silent streams;
    None if the format has none.
    """

    pieces: AsyncIterator[bytes]
    failed: Callable[[ApiError], bytes]
    media_type: bytes = b"text/event-stream"
    ping: bytes | None = None


def event_stream(pieces: AsyncIterator[bytes], dialect: Dialect) -> Events:
    """Return a stream of server-sent events; an error is sent as an unnamed event."""
    return Events(pieces, lambda error: sse.event(error_body(error, dialect)), ping=sse.PING)


def refusal(error: ApiError, dialect: Dialect) -> Reply:
    """Return the reply for an error."""
    return Reply(sse.encode(error_body(error, dialect)), error.status, headers=tuple(error.headers()))
