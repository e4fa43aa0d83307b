"""What a route gives back: an answer as a whole, or in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from ..failures import ApiError, Dialect, error_body
from . import sse

__all__ = ["Events", "Reply", "event_stream", "refusal"]


@dataclass(frozen=True)
class Reply:
    """An answer as a whole."""

    content: bytes
    status: int = 200
    media_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Reply:
        """An answer in JSON."""
        return cls(sse.encode(value), status)


@dataclass(frozen=True)
class Events:
    """An answer in pieces.  ``failed`` is the last piece where the answer breaks off; ``ping`` says nothing, where no
    other piece comes for a while (None: the format has no such piece)."""

    pieces: AsyncIterator[bytes]
    failed: Callable[[ApiError], bytes]
    media_type: bytes = b"text/event-stream"
    ping: bytes | None = None


def event_stream(pieces: AsyncIterator[bytes], dialect: Dialect) -> Events:
    """Server-sent events, of which a failure is one without a name."""
    return Events(pieces, lambda error: sse.event(error_body(error, dialect)), ping=sse.PING)


def refusal(error: ApiError, dialect: Dialect) -> Reply:
    """The reply that an error is."""
    return Reply(sse.encode(error_body(error, dialect)), error.status, headers=tuple(error.headers()))
