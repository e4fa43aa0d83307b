"""Requests as a front reads them: within limits, before it is known who answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .prefixes import prefix_hashes

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["Bodies", "error_body", "hashes_of", "is_repeatable", "model_of", "refuse", "reply", "until_gone"]

MOST_BODY_BYTES = 64 << 20
MOST_HELD_BYTES = 1 << 30  # bodies of all requests
_HEAVY_BYTES = 256 << 10  # larger bodies are decoded on a thread
_BODY_S = 60.0  # for more of a request's body
# POST routes that only compute.  Others may have acted before the replica was lost, and are not sent again.
_REPEATABLE = frozenset(
    ("completions", "completion", "messages", "embeddings", "embedding", "rerank", "reranking", "score", "infill",
     "tokenize", "detokenize", "apply-template", "count_tokens", "generate", "chat", "embed", "classify", "pooling",
     "transcriptions", "input_tokens")
)  # fmt: skip


class Bodies:
    """Reads the bodies of requests, and limits how much they hold together."""

    def __init__(self) -> None:
        self._n_held = 0

    @contextlib.asynccontextmanager
    async def read(self, receive: Receive, send: Send) -> AsyncIterator[bytes | None]:
        """Read a body; None if it was refused, or if the client left before its end."""
        body = bytearray()
        try:
            yield bytes(body) if await self._read(body, receive, send) else None
        finally:
            self._n_held -= len(body)

    async def _read(self, body: bytearray, receive: Receive, send: Send) -> bool:
        """Read into ``body``; return False if it is refused, or if the client left before its end."""
        while True:
            try:
                message = await asyncio.wait_for(receive(), _BODY_S)
            except asyncio.TimeoutError:
                await refuse(send, 408, "body_timeout", f"no more of the body arrived in {_BODY_S:g} seconds")
                return False
            if message["type"] == "http.disconnect":
                return False
            piece = message.get("body", b"")
            body += piece
            self._n_held += len(piece)
            if len(body) > MOST_BODY_BYTES:
                await refuse(send, 413, "body_too_large", f"the request has more than {MOST_BODY_BYTES} bytes")
                return False
            if self._n_held > MOST_HELD_BYTES:
                await refuse(send, 503, "overloaded", "too many bytes of requests are in progress", retry_after_s=1)
                return False
            if not message.get("more_body"):
                return True


async def hashes_of(scope: Scope, headers: Mapping[bytes, bytes], body: bytes) -> list[int]:
    """Return the prefix hashes of a request."""
    if scope["method"] != "POST" or not body:
        return []
    key = (headers.get(b"authorization") or headers.get(b"x-api-key") or b"").decode("latin-1")
    return await asyncio.to_thread(_parsed, body, key) if len(body) > _HEAVY_BYTES else _parsed(body, key)


def _parsed(body: bytes, key: str) -> list[int]:
    try:
        given: Any = json.loads(body)
    except (ValueError, RecursionError):
        return []  # the replica says what is wrong with it
    return prefix_hashes(given, key) if isinstance(given, dict) else []


def model_of(body: bytes) -> str:
    """Return the model or adapter that a request names; empty if it names none."""
    try:
        given: Any = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return ""
    model = given.get("model") if isinstance(given, dict) else None
    return model[:256] if isinstance(model, str) else ""


def is_repeatable(scope: Scope) -> bool:
    """Return whether a request only computes, so that another replica may be asked for the same."""
    return scope["method"] in ("GET", "HEAD", "OPTIONS") or (
        scope["method"] == "POST" and scope["path"].rstrip("/").rpartition("/")[2] in _REPEATABLE
    )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Await ``work``; cancel it if the client leaves before its end, which cancels the request at the replica."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def refuse(send: Send, status: int, code: str, message: str, retry_after_s: int | None = None) -> None:
    """Answer with an error in OpenAI's form."""
    more = [] if retry_after_s is None else [(b"retry-after", str(retry_after_s).encode())]
    await reply(send, status, b"application/json", error_body(code, message), more)


def error_body(code: str, message: str) -> bytes:
    """Return an error in OpenAI's form."""
    return json.dumps({"error": {"message": message, "type": "server_error", "code": code}}).encode()


async def reply(
    send: Send, status: int, media_type: bytes, body: bytes, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Answer with a whole body."""
    headers = [(b"content-type", media_type), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
