"""The format of saved sessions: JSON after a line with the version and a checksum."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..errors import LoadError, RequestError

__all__ = ["HEAD", "MOST_BYTES", "decode", "encode"]

MOST_BYTES = 256 << 20
HEAD = b"quire-session 1 "


def encode(history: dict[str, Any]) -> bytes:
    """Return the bytes of a file with a history.  RequestError if it has something that JSON has no form for."""
    try:
        body = json.dumps(history, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise RequestError(f"[session] the history cannot be saved: {error} (give images as data URLs)") from None
    return HEAD + hashlib.blake2b(body, digest_size=32).hexdigest().encode() + b"\n" + body


def decode(data: bytes, name: str) -> dict[str, Any]:
    """Return the history in a file's bytes.  LoadError if they are not what ``encode`` wrote."""
    head, newline, body = data.partition(b"\n")
    if not head.startswith(HEAD) or not newline:
        raise LoadError(f"[session] {name} is not a saved session of this version")
    if head[len(HEAD) :] != hashlib.blake2b(body, digest_size=32).hexdigest().encode():
        raise LoadError(f"[session] {name} is damaged: its checksum is wrong")
    history: dict[str, Any] = json.loads(body)
    return history
