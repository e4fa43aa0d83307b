"""Server-sent events and lines of JSON."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["DONE", "PING", "encode", "event", "line", "named_event", "raw"]

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """JSON."""
    return _encoder.encode(value)


def raw(value: Any) -> msgspec.Raw:
    """JSON to be put into other JSON as it is.  What is large in the end is encoded bit by bit as it comes."""
    return msgspec.Raw(_encoder.encode(value))


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + _encoder.encode(value) + b"\n\n"


def line(value: Any) -> bytes:
    """A line of a stream of JSON objects."""
    return _encoder.encode(value) + b"\n"
