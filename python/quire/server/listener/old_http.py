"""Replies to HTTP/1.0 clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["UntilClose"]


class UntilClose:
    """Sends replies without chunked encoding: one of unknown length ends when the connection closes."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._plain = False

    async def send(self, message: Any) -> None:
        """Send an ASGI message."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            self._plain = b"content-length" not in names and cycle.scope["method"] != "HEAD"
        if not self._plain:
            await self._send(message)
            return
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start":
            cycle.response_started = True
            lines = [name + b": " + value + b"\r\n" for name, value in message["headers"]]
            cycle.transport.write(b"".join([STATUS_LINE[message["status"]], *lines, b"connection: close\r\n\r\n"]))
            return
        cycle.transport.write(message.get("body", b""))
        if not message.get("more_body", False):
            cycle.response_complete = True
            cycle.message_event.set()
            cycle.transport.close()
            cycle.on_response()
