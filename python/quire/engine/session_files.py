"""Write and read the files of sessions."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LoadError
from ..files.histories import MOST_BYTES, decode, encode
from ..files.whole_file import WholeFile

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

__all__ = ["load", "save", "vocabulary_digest"]


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
