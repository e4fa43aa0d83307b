"""A connection that is parsed one request at a time and read no faster than its answers are."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...system import peer_has_ended, peer_is_gone
from ..failures import ApiError
from .backlog import Backlog, Flow
from .connections import Connections

if TYPE_CHECKING:
    from asyncio import Transport

    from ..settings import Settings

__all__ = ["PacedProtocol"]

# Bytes to parse of one connection before the others get a turn.
_TURN = 64 << 10
_LOOK_S = 0.1
_LOOK_HELD_S = 1.0
_LOOKS_PER_PROBE = 3
_OVERLOADED = ApiError(503, "overloaded", "too many bytes are waiting to be read", retry_after_s=1)


class PacedProtocol(HttpToolsProtocol, ABC):
    """uvicorn's protocol, made to parse one request at a time.

    uvicorn parses everything that arrives and keeps reading after each answer.  Here, bytes after a complete request
    stay unparsed until it is answered, and at most one read's worth of them is taken from the socket.
    """

    settings: Settings
    table: Connections
    flow: Flow
    _refused = False  # ignore everything that arrives from now on
    _ended = False  # the client has stopped sending
    _n_body_left: int | None = 0  # see ``Backlog.take``
    _scheduled = False
    _n_looks = 0
    _busy = False
    _looking: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self._want)
        self._backlog = Backlog()
        if not self.table.enter(self, self.client[0] if self.client else None):
            self._refused = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.leave(self)
        self._refused = True
        self._backlog.clear()
        for timer in (self._looking, self._send_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data up to the end of one request; the rest waits until that request is answered."""
        if self._refused or self.transport.is_closing():
            return
        self._backlog.add(data)
        if self._scheduled:
            self.flow.pause_reading()
        else:
            self._go_on()

    def _want(self) -> None:
        """Continue soon: a request was answered, or more of a body is needed."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._go_on)

    @property
    def _held(self) -> bool:
        """Return whether parsing is paused: a complete request is in flight, or the client does not read its reply."""
        cycle = self.cycle
        if self.pipeline or self.flow.write_paused:
            return True
        if cycle is None or cycle.response_complete:
            return False
        return not cycle.more_body or len(cycle.body) > HIGH_WATER_LIMIT

    def _go_on(self) -> None:
        self._scheduled = False
        n_left = _TURN
        while self._backlog and n_left > 0 and not (self._refused or self.transport.is_closing() or self._held):
            piece = self._backlog.take(self._n_body_left)
            n_left -= len(piece)
            self._feed(piece)
        if self._refused or self.transport.is_closing():
            self._backlog.clear()
            self.table.hold(self, 0)
            return
        cycle = self.cycle
        under_way = cycle is not None and not cycle.response_complete
        if self._backlog:
            self.flow.pause_reading()
            if not self._held:
                self._want()
            elif under_way and self._looking is None:
                self._looking = self.loop.call_later(_LOOK_HELD_S, self._look)
        elif not self.pipeline and not (under_way and len(cycle.body) > HIGH_WATER_LIMIT):
            self.flow.read()
        busy = under_way or len(self._backlog) > 0
        if busy != self._busy:
            self._busy = busy
            self.table.mark(self, idle=not busy)
        self.table.hold(self, len(self._backlog) + (len(cycle.body) if under_way else 0))

    def _feed(self, piece: memoryview) -> None:
        """Give a piece to the parser."""
        super().data_received(piece)  # type: ignore[arg-type]

    @abstractmethod
    def _refuse(self, error: ApiError) -> None:
        """Answer with an error and ignore all later input."""

    # Used by the table of connections

    def drop_idle(self) -> bool:
        """Close at once, unless a request or its answer is in flight."""
        if self._busy or self.transport.get_write_buffer_size():
            return False
        self.transport.abort()
        return True

    def drop_holder(self) -> None:
        """Reject what was received beyond the in-flight request."""
        if not self._refused and not self.transport.is_closing():
            self._refuse(_OVERLOADED)

    # Clients that stop sending

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep answering a client that has only stopped sending.

        A client that has disconnected looks the same until something is sent to it.  So it is sent 100 Continue, which
        HTTP/1.1 clients must ignore (RFC 9110, 15.2) and a closed connection rejects.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self._refused:
            return False
        cycle.keep_alive = False
        self._ended = True
        self._probe()
        self._look()
        return True

    def _probe(self) -> None:
        if not self.cycle.response_complete and not self.cycle.response_started and self.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _look(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection is not None and peer_is_gone(connection):
            self.transport.abort()
            return
        if self._backlog and not self._ended:
            # While reading is paused, the end of the client's data goes unnoticed.  With full system buffers it does
            # not even arrive.
            self._n_looks += 1
            self._ended = connection is not None and peer_has_ended(connection)
            if self._ended or self._n_looks % _LOOKS_PER_PROBE == 0:
                self._probe()
        if self._backlog or self._ended:
            self._looking = self.loop.call_later(_LOOK_S if self._ended else _LOOK_HELD_S, self._look)

    # Clients that do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        self._want()

    def _watch_reader(self, n_unsent: int) -> None:
        """Disconnect the client if it reads nothing for the length of the send timeout."""
        self._send_timer = self.loop.call_later(self.settings.send_timeout_s, self._check_reader, n_unsent)

    def _check_reader(self, n_unsent: int) -> None:
        n_now = self.transport.get_write_buffer_size()
        if n_now >= n_unsent:
            self.transport.abort()
        else:
            self._watch_reader(n_now)
