"""Requests that the server sends to itself, without a connection: lines of batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..service.batch_runner import Answer
from .request_state import set_request_state

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

    from ..service.caller import Caller

__all__ = ["InternalRequests"]


class InternalRequests:
    """Calls the application as its server would, for a caller whose key was checked before."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, path: str, body: bytes, caller: Caller, in_batch: bool) -> Answer:
        """Answer ``POST path`` with a JSON body.  Runs after all requests of clients."""
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        scope: Scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "2", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        }  # fmt: skip
        set_request_state(scope, caller, in_batch=in_batch)
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            if messages:
                return messages.pop()
            return await asyncio.Future()  # connected until the answer is there

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        start = next((message for message in sent if message["type"] == "http.response.start"), None)
        if start is None:  # the application ends without an answer only if it is cancelled
            raise asyncio.CancelledError
        content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
        return Answer(start["status"], content, dict(start["headers"]))
