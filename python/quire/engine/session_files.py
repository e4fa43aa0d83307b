"""Write and read the files of sessions."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._native.engine import prefix_note
from ..errors import CapacityError, LoadError, RequestError, UnsupportedError
from ..files.histories import HEAD, MOST_BYTES, decode, encode
from ..files.whole_file import WholeFile, check_replaceable

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer
    from .engine import Engine

__all__ = ["load", "save", "vocabulary_digest"]

_EMPTY: dict[str, Any] = {
    "kind": "", "model": "", "vocabulary": "", "token_ids": [], "messages": [], "tools": None, "computed_ids": [],
    "adapter": None,
}  # fmt: skip


def save(engine: Engine, history: dict[str, Any], path: str | os.PathLike[str], salt: bytes) -> int:
    """Write a history to a file, with what the cache has of it, and return the file's size.

    CapacityError if the disk is full.
    """
    note, ids, adapter = encode(history), history["computed_ids"], history["adapter"]
    try:
        check_replaceable(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    if ids:
        # Without blocks in the cache, or if they are evicted meanwhile, the history alone is enough.
        with suppress(CapacityError, RequestError, UnsupportedError, LoadError):
            engine.export_prefix(ids, os.fspath(path), salt, note, adapter)
            return Path(path).stat().st_size
    try:
        with WholeFile(path, "session", len(note)) as file:
            file.write(note)
    except OSError as error:
        raise _unwritable(path, error) from None
    return len(note)


def _unwritable(path: str | os.PathLike[str], error: OSError) -> LoadError:
    return LoadError(f"[session] cannot write {os.fspath(path)!r:.200}: {error.strerror}")


def load(engine: Engine, path: str | os.PathLike[str], tokenizer: Tokenizer, salt: bytes) -> dict[str, Any]:
    """Return the history in a file, and load what the file has of the cache.  RequestError for unknown adapters.

    Blocks of another model, or under another salt, are left out.  LoadError if the file is damaged, or its tokens are
    of another vocabulary.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            has_blocks = file.read(len(HEAD)) != HEAD
            data = b"" if has_blocks else HEAD + file.read(MOST_BYTES + 1)
    except OSError as error:
        raise LoadError(f"[session] cannot read {name}: {error.strerror}") from None
    except ValueError:
        raise LoadError(f"[session] cannot read {name!r:.200}: the path has a NUL character") from None
    if len(data) > MOST_BYTES:
        raise LoadError(f"[session] {name} has more than {MOST_BYTES} bytes")
    history = {**_EMPTY, **decode(prefix_note(name) if has_blocks else data, name)}
    if history["kind"] == "slot":
        raise LoadError(f"[session] {name} is a slot of a server: expected a session")
    if history["token_ids"] and history["vocabulary"] != vocabulary_digest(tokenizer):
        raise LoadError(f"[session] {name} has tokens of {history['model']!r:.80}, whose vocabulary is another one")
    if has_blocks:
        with suppress(LoadError, UnsupportedError):  # another model's: computed again
            engine.import_prefix(history["computed_ids"], name, salt, history["adapter"])
    return history


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """Return a digest of the texts of all tokens."""
    digest = hashlib.blake2b(digest_size=16)
    for shown in tokenizer.all_token_bytes():
        digest.update(len(shown).to_bytes(4, "little") + shown)
    return digest.hexdigest()
