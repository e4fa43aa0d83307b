"""The listening process: sockets, signals, slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import uvicorn

from ..errors import RequestError
from ..system import EVENT_LOOP, allow_open_files
from .app import build_app
from .listener.http_protocol import protocol_of

if TYPE_CHECKING:
    from types import FrameType

    from .service.service import Service
    from .settings import Settings

__all__ = ["serve"]

_BACKLOG = 1024
_NOT_SENT_BYTES = 64 << 10
_OTHER_FILES = 512  # files besides connections: pages, workers, downloads


def serve(service: Service, say: Callable[[str], None]) -> None:
    """Listen and answer until SIGTERM or SIGINT, then drain.  ``say`` receives the line with the address.

    RequestError if the server cannot listen on the address.
    """
    settings = service.settings
    allow_open_files(settings.max_connections + _OTHER_FILES)
    listening = _listening_socket(settings)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        build_app(service),
        loop=EVENT_LOOP,
        http=protocol_of(settings),
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
    server = _Server(config, service, lambda: say(f"serving {service.model or 'models'} on http://{shown}:{port}"))
    with contextlib.closing(listening), contextlib.suppress(asyncio.CancelledError):
        server.run([listening])


def _listening_socket(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Data that a client does not read waits in this process, where it is counted, not in megabytes of system buffers.
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOT_SENT_BYTES)
    # A client that acknowledges nothing for this long is gone.  Accepted sockets inherit the option.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.send_timeout_s * 1000))
    try:
        made.bind((settings.host, settings.port))
    except OSError as error:
        made.close()
        text = f"[serve] cannot listen on {settings.host}:{settings.port}: {error.strerror or error} (try --port)"
        raise RequestError(text) from None
    return made


class _Server(uvicorn.Server):
    """Loads the models and reports when it is ready.  The first signal starts to drain, the second exits."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[object] | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load the models, then listen.  QuireError if a model cannot be loaded."""
        self._loop = asyncio.get_running_loop()
        self._starting = asyncio.current_task()
        try:
            await self._service.start()
        except BaseException:
            await self._service.stop()
            raise
        await super().startup(sockets)
        # Exclude everything loaded so far from garbage collection: it stays for the life of the process.
        gc.collect()
        gc.freeze()
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections and the models."""
        await self._take_what_waits(sockets or [])
        await super().shutdown(sockets)
        await self._service.stop()

    async def _take_what_waits(self, sockets: list[socket.socket]) -> None:
        """Stop listening, but accept connections that the kernel has already established: closing would reset them."""
        loop = asyncio.get_running_loop()
        taken: list[socket.socket] = []
        kept = [each.dup() for each in sockets]
        for server in self.servers:
            server.close()
        for each in kept:
            with each, contextlib.suppress(BlockingIOError):
                each.setblocking(False)
                while True:
                    taken.append(each.accept()[0])
        for connection in taken:
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._new_protocol, connection)

    def _new_protocol(self) -> asyncio.Protocol:
        kind = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Also handle SIGHUP, unless it is ignored, as under nohup."""
        hang_up = getattr(signal, "SIGHUP", None)
        if hang_up is None or signal.getsignal(hang_up) is not signal.SIG_DFL:
            with super().capture_signals():
                yield
            return
        with super().capture_signals():
            signal.signal(hang_up, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(hang_up, signal.SIG_DFL)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: the first one starts to drain, another one exits at once."""
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
        """Reject new requests and wait for the current ones; those that are late receive an error."""
        service = self._service
        service.draining = True
        end_s = asyncio.get_running_loop().time() + service.settings.drain_s
        while any(engine.n_active for engine in service.engines().values()):
            if asyncio.get_running_loop().time() >= end_s:
                break
            await asyncio.sleep(0.05)
        await service.stop()
        self.should_exit = True
