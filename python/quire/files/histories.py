"""The format of saved sessions: JSON after a line with the version and a checksum."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..errors import LoadError, RequestError

__all__ = ["HEAD", "MOST_BYTES", "decode", "encode"]

MOST_BYTES = 256 << 20
HEAD = b"quire-session 1 "
_KINDS: dict[str, Any] = {
    "kind": str, "model": str, "vocabulary": str, "text": str, "n_vocab": int, "messages": list, "token_ids": list,
    "computed_ids": list, "tools": list | None, "options": dict, "adapter": list | None,
}  # fmt: skip


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
    try:
        history = json.loads(body)
    except (ValueError, RecursionError):
        history = None
    if not _is_history(history):
        raise LoadError(f"[session] {name} is damaged: it has no history")
    found: dict[str, Any] = history
    return found


def _is_history(value: object) -> bool:
    """Return whether a value has the fields of a history, as far as it has them, with their types."""
    if not isinstance(value, dict) or any(
        name in value and not isinstance(value[name], kind) for name, kind in _KINDS.items()
    ):
        return False
    messages = [*value.get("messages", ()), *(value.get("tools") or ())]
    ids = [*value.get("token_ids", ()), *value.get("computed_ids", ())]
    adapters = value.get("adapter") or ()
    if not all(isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in adapters):
        return False
    return all(isinstance(each, dict) for each in messages) and all(type(each) is int for each in ids)
