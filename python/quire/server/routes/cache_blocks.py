"""Let peers read blocks of the cache's folder: quire serve --cache-peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ..body_types import Body
from ..failures import ApiError
from ..listener.replies import Events, Reply
from ..listener.request_context import RequestContext

__all__ = ["BlocksBody", "send_blocks"]

_MOST_READERS = 8
_PIECE_BYTES = 1 << 20
Entry = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}-(state|[0-9]{1,3})$")]


class BlocksBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Entries of a model's cache.

    ``identity``: the model and all else that its numbers depend on.  ``entries``: names of blocks, with their groups.
    ``held_only``: tell which ones are there, instead of sending them.
    """

    identity: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
    entries: Annotated[list[Entry], Meta(max_length=1 << 14)]
    held_only: bool = False


class _Readers:
    """Counts the streams that are open."""

    n = 0


async def send_blocks(context: RequestContext[BlocksBody]) -> Reply | Events:
    """Return ``{"held": [...]}``, or the records one after the other; entries that are not there are left out."""
    settings, body = context.service.settings, context.body
    if settings.cache_disk is None:
        raise ApiError(403, "not_allowed", "the server has no --cache-disk")
    folder = Path(settings.cache_disk).expanduser() / body.identity
    names = list(dict.fromkeys(body.entries))
    paths = [folder / name[:2] / f"{name}.kv" for name in names]
    if body.held_only:
        return Reply.json({"held": await asyncio.to_thread(_held, names, paths)})
    if _Readers.n >= _MOST_READERS:
        raise ApiError(503, "overloaded", "too many peers are reading", retry_after_s=1)
    return Events(_records(paths), lambda error: b"", media_type=b"application/octet-stream")


def _held(names: Sequence[str], paths: Sequence[Path]) -> list[str]:
    return [name for name, path in zip(names, paths, strict=True) if path.is_file()]


async def _records(paths: Sequence[Path]) -> AsyncIterator[bytes]:
    _Readers.n += 1
    try:
        rest = list(reversed(paths))
        while rest:
            yield await asyncio.to_thread(_piece, rest)
    finally:
        _Readers.n -= 1


def _piece(rest: list[Path]) -> bytes:
    """Take some of the files, and return their contents."""
    piece = bytearray()
    while rest and len(piece) < _PIECE_BYTES:
        try:
            piece += rest.pop().read_bytes()
        except OSError:  # evicted meanwhile
            continue
    return bytes(piece)
