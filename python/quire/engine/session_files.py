"""Files of sessions: a line of JSON with the history, after a line with the format and a checksum."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LoadError, RequestError
from ..files.whole_file import WholeFile

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

__all__ = ["MOST_BYTES", "decode", "encode", "load", "save", "vocabulary_digest"]

MOST_BYTES = 256 << 20
_HEAD = b"quire-session 1 "


def encode(history: dict[str, Any]) -> bytes:
    """Return the bytes of a file with a history.  RequestError if it has something that JSON has no form for."""
    try:
        body = json.dumps(history, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise RequestError(f"[session] the history cannot be saved: {error} (give images as data URLs)") from None
    return _HEAD + hashlib.blake2b(body, digest_size=32).hexdigest().encode() + b"\n" + body


def decode(data: bytes, name: str) -> dict[str, Any]:
    """Return the history in a file's bytes.  LoadError if they are not what ``encode`` wrote."""
    head, newline, body = data.partition(b"\n")
    if not head.startswith(_HEAD) or not newline:
        raise LoadError(f"[session] {name} is not a saved session of this version")
    if head[len(_HEAD) :] != hashlib.blake2b(body, digest_size=32).hexdigest().encode():
        raise LoadError(f"[session] {name} is damaged: its checksum is wrong")
    history: dict[str, Any] = json.loads(body)
    return history


def save(history: dict[str, Any], path: str | os.PathLike[str]) -> int:
    """Write a session's history to a file and return its size.  CapacityError if the disk is full."""
    data = encode(history)
    try:
        with WholeFile(path, "session", len(data)) as file:
            file.write(data)
    except OSError as error:
        raise LoadError(f"[session] cannot write {os.fspath(path)}: {error.strerror}") from None
    return len(data)


def load(path: str | os.PathLike[str], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the history in a file.  LoadError if it is damaged, or its tokens are of another vocabulary."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise LoadError(f"[session] cannot read {os.fspath(path)}: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise LoadError(f"[session] {os.fspath(path)} has more than {MOST_BYTES} bytes")
    history = decode(data, os.fspath(path))
    if history["token_ids"] and history["vocabulary"] != vocabulary_digest(tokenizer):
        raise LoadError(
            f"[session] {os.fspath(path)} has tokens of {history['model']!r:.80}, whose vocabulary is another one"
        )
    return history


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """Return a digest of the texts of all tokens."""
    digest = hashlib.blake2b(digest_size=16)
    for shown in tokenizer.all_token_bytes():
        digest.update(len(shown).to_bytes(4, "little") + shown)
    return digest.hexdigest()
