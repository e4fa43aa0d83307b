"""Encode server-sent events and lines of JSON."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["DONE", "PING", "encode", "event", "line", "named_event", "raw"]

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """Encode a value as JSON."""
    return _encoder.encode(value)


def raw(value: Any) -> msgspec.Raw:
    """Encode a value as JSON that other JSON includes as is, so that large lists can be encoded piece by piece."""
    return msgspec.Raw(_encoder.encode(value))


def event(value: Any) -> bytes:
    """Encode a server-sent event."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """Encode a server-sent event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + _encoder.encode(value) + b"\n\n"


def line(value: Any) -> bytes:
    """Encode a line of a stream of JSON objects."""
    return _encoder.encode(value) + b"\n"
