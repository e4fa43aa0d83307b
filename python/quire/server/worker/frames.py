"""Frames on a socket between two processes: four bytes of length, then MessagePack of a list of messages."""

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
    """The bytes of some messages."""
    body = _encoder.encode(messages)
    return len(body).to_bytes(HEAD, "big") + body


def body_length(head: bytes | bytearray | memoryview) -> int:
    """Bytes that follow a head.  InternalError where no frame is so long."""
    length = int.from_bytes(head, "big")
    if length > MAX_FRAME_BYTES:
        raise InternalError(f"[channel] a frame must have at most {MAX_FRAME_BYTES} bytes but has {length}")
    return length
