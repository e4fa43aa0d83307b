"""What a route gives back: an answer as a whole, or in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from ..failures import ApiError, Dialect, error_body
from . import sse

__all__ = ["Events", "Reply", "refusal"]


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
    """An answer in pieces.  ``failed`` is the last piece where the answer breaks off."""

    pieces: AsyncIterator[bytes]
    failed: Callable[[ApiError], bytes]
    media_type: bytes = b"text/event-stream"


def refusal(error: ApiError, dialect: Dialect) -> Reply:
    """The reply that an error is."""
    return Reply(sse.encode(error_body(error, dialect)), error.status, headers=tuple(error.headers()))
