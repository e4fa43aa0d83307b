"""Frames on a socket between two processes: four bytes of length, then a MessagePack list of messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...errors import InternalError
from .protocol import FromEngine, ToEngine

__all__ = ["HEAD", "body_length", "frame"]

HEAD = 4
MAX_FRAME_BYTES = 1 << 30
_encoder = msgspec.msgpack.Encoder()


def frame(messages: Sequence[ToEngine] | Sequence[FromEngine]) -> bytes:
    """Encode messages as a frame."""
    body = _encoder.encode(messages)
    return len(body).to_bytes(HEAD, "big") + body


def body_length(head: bytes | bytearray | memoryview) -> int:
    """Return the number of bytes after a head.  InternalError if it exceeds the limit for frames."""
    length = int.from_bytes(head, "big")
    if length > MAX_FRAME_BYTES:
        raise InternalError(f"[channel] frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return length
