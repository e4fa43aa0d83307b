"""HTTP/1 for this server: uvicorn's protocol with limits on unauthenticated input and clean connection ends."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ..failures import ApiError, Dialect, error_body
from . import sse
from .connections import Connections
from .old_http import UntilClose
from .paced_protocol import PacedProtocol
from .request_state import request_state_of

if TYPE_CHECKING:
    from asyncio import Transport

    from starlette.types import Scope

    from ..settings import Settings

__all__ = ["MAX_HEAD_BYTES", "MAX_HEAD_LINES", "protocol_of"]

MAX_HEAD_BYTES = 64 << 10
MAX_HEAD_LINES = 100
# Bytes that all connections together may hold unread.
_MOST_UNREAD = 64 << 20
# After a drain, idle connections stay open this long, because a request may be on its way.
_LINGER_S = 0.3
_READ_S = 1.0  # time for a client that is still sending to read its error
_HEAD_TOO_LARGE = ApiError(
    431, "headers_too_large",
    f"the request head is too large: the limits are {MAX_HEAD_BYTES} bytes and {MAX_HEAD_LINES} headers",
)  # fmt: skip
_MALFORMED = ApiError(400, "malformed_request", "the request is not valid HTTP/1.1 (RFC 9112)")


class _HeadTooLarge(Exception):
    """Raised in a callback of the parser."""


class _Protocol(PacedProtocol):
    """The protocol, to which ``protocol_of`` adds the settings."""

    _headers_timer: asyncio.TimerHandle | None = None
    _n_head_bytes = 0  # bytes of request line, headers and trailers reported by the parser
    _n_lines = 0
    _n_untold = 0  # bytes given to the parser since its last callback; it buffers incomplete lines
    _told = False
    _in_head = True
    _stopping = False
    _n_dropped = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._refused:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_headers()
        super().connection_lost(exc)

    # Limits on received data

    def _feed(self, piece: memoryview) -> None:
        self._told = False
        super()._feed(piece)
        self._n_untold = 0 if self._told else self._n_untold + len(piece)
        if self.parser is not None and self.parser.should_upgrade():  # the rest would be another protocol
            self._refused = True
        if self._n_head_bytes + self._n_untold > MAX_HEAD_BYTES and not self._refused:
            self._refuse(_HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._n_head_bytes = self._n_lines = 0
        self._told = self._in_head = True
        self._await_headers()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        self._n_lines += 1
        if self._n_lines > MAX_HEAD_LINES:
            raise _HeadTooLarge
        if self._in_head:  # trailers are ignored
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._told = True
        if self._n_body_left is not None:
            self._n_body_left -= len(body)
        if self.cycle.response_complete:
            self._n_dropped += len(body)
            if self._n_dropped > self.settings.max_body_bytes:  # the client had time to read the answer
                self.close_gently()
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._told, self._in_head = True, False
        self._have_headers()
        self._n_body_left = _body_length(self.headers)
        self._n_dropped = 0
        super().on_headers_complete()
        request_state_of(cast("Scope", self.scope)).abort = self.transport.abort
        self.cycle.transport = _Ending(self)  # type: ignore[assignment]
        if self._stopping or self.parser.should_upgrade():
            self.cycle.keep_alive = False
        if self.scope["http_version"] == "1.0":
            self.cycle.send = UntilClose(self.cycle).send  # type: ignore[method-assign]

    def on_message_complete(self) -> None:
        self._told = True
        self._n_body_left = 0
        super().on_message_complete()

    def _count(self, n_bytes: int) -> None:
        self._told = True
        self._n_head_bytes += n_bytes
        if self._n_head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLarge

    def _await_headers(self) -> None:
        if self._headers_timer is None:
            self._headers_timer = self.loop.call_later(self.settings.header_timeout_s, self.transport.abort)

    def _have_headers(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    # Errors of the parser

    def send_400_response(self, msg: str) -> None:
        """Reject input that the parser, or one of its callbacks, does not accept."""
        error = sys.exc_info()[1]
        too_large = isinstance(error and error.__context__, _HeadTooLarge)
        self._refuse(_HEAD_TOO_LARGE if too_large else _MALFORMED)

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error and close.  If an answer is already being sent, it becomes the last one."""
        self._refused = True
        self._backlog.clear()
        self._have_headers()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and (not cycle.more_body or cycle.response_started):
            # The fault is in data after a complete request, or the answer to this request has begun.
            cycle.keep_alive = False
            self.pipeline.clear()
            self.flow.pause_reading()
            if cycle.more_body:
                self.transport.abort()
            return
        body = sse.encode(error_body(error, Dialect.OPENAI))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        lines = [name + b": " + value + b"\r\n" for name, value in (*headers, (b"connection", b"close"))]
        status = STATUS_LINE[error.status]
        self.transport.write(b"".join([status, *lines, b"\r\n", body]))
        self.close_gently()

    # Closing

    def close_gently(self) -> None:
        """Close, but give a client that is still sending time to read the answer: closing at once would reset it."""
        if self.cycle is not None and not self.cycle.more_body and not self._refused and not self._backlog:
            self.transport.close()
            return
        self._refused = True
        self._backlog.clear()
        if not self.transport.is_closing():
            self.transport.write_eof()
            self.flow.read()  # read and discard
            self.loop.call_later(_READ_S, self.transport.close)

    def shutdown(self) -> None:
        """Close once nothing is in flight.  A request that is already on its way still gets a proper rejection."""
        self._stopping = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(_LINGER_S, self._end_if_idle)
        else:
            self.cycle.keep_alive = False

    def _end_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class _Ending:
    """The transport that a cycle sees; its ``close`` is ``close_gently``."""

    def __init__(self, protocol: _Protocol) -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.close_gently


def protocol_of(settings: Settings) -> type[HttpToolsProtocol]:
    """Return the protocol class with a server's settings and a table of its connections."""
    table = Connections(settings.max_connections, settings.max_connections_per_address, _MOST_UNREAD)
    return type("Protocol", (_Protocol,), {"settings": settings, "table": table})


def _body_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    """Return the body length in the form of ``Backlog.take``.  The parser has validated the headers."""
    length = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            length = int(value)
    return length
