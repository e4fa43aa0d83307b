"""Listen for a front."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import RequestError
from ..system import EVENT_LOOP, allow_open_files
from .front import Front

__all__ = ["Protocol", "serve"]

_MOST_FILES = 8192
_MOST_HEAD_BYTES = 64 << 10
_HEAD_S = 60.0  # for a request's head


async def serve(
    urls: Sequence[str],
    host: str,
    port: int,
    hosts: Sequence[str] | None,
    *,
    say: Callable[[str], None],
    prefill: Sequence[str] = (),
) -> None:
    """Pass requests on until SIGTERM or SIGINT; ``say`` receives the line with the address.

    Raises:
        RequestError: The address cannot be listened on.
    """
    allow_open_files(_MOST_FILES)
    front = Front(urls, hosts=hosts, prefill=prefill)
    config = uvicorn.Config(
        front, host=host, port=port, loop=EVENT_LOOP, lifespan="off", ws="none", log_config=None, access_log=False,
        http=Protocol, server_header=False, date_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=30,
    )  # fmt: skip
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server = _Server(config, say, len(urls))
    await front.start()
    try:
        await server.serve()
    except SystemExit:  # uvicorn's way to say so
        raise RequestError(f"[route] cannot listen on {host}:{port} (try --port)") from None
    finally:
        await front.stop()


class Protocol(HttpToolsProtocol):
    """Closes connections whose request heads are too large or too slow."""

    _n_bytes = 0  # since the last complete head
    _is_in_head = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._n_bytes += len(data)
        super().data_received(data)
        # A head that arrives together with its body was read to its end above.
        if self._is_in_head and self._n_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"the request head has more than {_MOST_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._wait()

    def on_headers_complete(self) -> None:
        self._is_in_head, self._n_bytes = False, 0
        self._stop_waiting()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(_HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, say: Callable[[str], None], n_replicas: int) -> None:
        super().__init__(config)
        self._say, self._n = say, n_replicas

    async def startup(self, sockets: object = None) -> None:
        """Listen."""
        await super().startup()
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self._say(f"routing to {self._n} servers on http://{shown}:{port}")
