"""The process that listens: sockets, signals, slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import RequestError
from .app import build_app

if TYPE_CHECKING:
    from asyncio import Transport
    from types import FrameType

    from .service import Service
    from .settings import Settings

__all__ = ["serve"]

_BACKLOG = 1024


def serve(service: Service, say: Callable[[str], None]) -> None:
    """Listen and answer until SIGTERM or SIGINT, then let answers end for a while.  ``say`` is told the address.

    RequestError where the address cannot be had.
    """
    settings = service.settings
    listening = _listening_socket(settings)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        build_app(service),
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        http=_protocol(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
        backlog=_BACKLOG,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server = _Server(config, service, lambda: say(f"serving {service.model} on http://{shown}:{port}"))
    with contextlib.closing(listening), contextlib.suppress(asyncio.CancelledError):
        server.run([listening])


def _listening_socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What a client does not acknowledge for so long is a connection that is gone; accepted sockets inherit it.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.send_timeout_s * 1000))
    try:
        made.bind((settings.host, settings.port))
    except OSError as error:
        made.close()
        text = f"[serve] {settings.host}:{settings.port} must be free to listen on but {error.strerror or error}"
        raise RequestError(text) from None
    return made


def _protocol(settings: Settings) -> type[HttpToolsProtocol]:
    """HTTP with a limit on how long a request's line and headers may take, and how many connections there may be."""

    class Protocol(HttpToolsProtocol):
        _headers_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > settings.max_connections:
                transport.abort()
                return
            self._await_headers()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._await_headers()

        def on_headers_complete(self) -> None:
            self._have_headers()
            super().on_headers_complete()
            self.scope["quire.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

        def connection_lost(self, exc: Exception | None) -> None:
            self._have_headers()
            super().connection_lost(exc)

        def _await_headers(self) -> None:
            if self._headers_timer is None:
                self._headers_timer = self.loop.call_later(settings.header_timeout_s, self.transport.abort)

        def _have_headers(self) -> None:
            if self._headers_timer is not None:
                self._headers_timer.cancel()
                self._headers_timer = None

    return Protocol


class _Server(uvicorn.Server):
    """Opens the models, says when it is ready; the first signal drains, the second ends."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[object] | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the models, then listen.  QuireError where a model cannot be opened."""
        self._loop = asyncio.get_running_loop()
        self._starting = asyncio.current_task()
        try:
            await self._service.start()
        except BaseException:
            await self._service.stop()
            raise
        await super().startup(sockets)
        # What is there now stays; collections need not look at it again.
        gc.collect()
        gc.freeze()
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections and the models."""
        await super().shutdown(sockets)
        await self._service.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signals: the first begins to drain, another one does not wait any longer."""
        if self._loop is None:
            raise KeyboardInterrupt
        if not self.started:
            assert self._starting is not None
            self._starting.cancel()
        elif self._draining is None:
            self._draining = self._loop.create_task(self._drain())
        else:
            self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        """No new requests; those under way may end in time, the rest are told that they do not."""
        service = self._service
        service.draining = True
        end_s = asyncio.get_running_loop().time() + service.settings.drain_s
        while any(engine.n_active for engine in service.engines().values()):
            if asyncio.get_running_loop().time() >= end_s:
                break
            await asyncio.sleep(0.05)
        await service.stop()
        self.should_exit = True
