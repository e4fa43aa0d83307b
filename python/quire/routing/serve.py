"""Listen for a front."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import uvicorn

from ..errors import RequestError
from ..system import EVENT_LOOP, allow_open_files
from .front import Front

__all__ = ["serve"]

_MOST_FILES = 8192


async def serve(
    urls: Sequence[str], host: str, port: int, hosts: Sequence[str] | None, say: Callable[[str], None]
) -> None:
    """Pass requests on until SIGTERM or SIGINT; ``say`` receives the line with the address.

    Raises:
        RequestError: The address cannot be listened on.
    """
    allow_open_files(_MOST_FILES)
    front = Front(urls, hosts=hosts)
    config = uvicorn.Config(
        front, host=host, port=port, loop=EVENT_LOOP, lifespan="off", ws="none", log_config=None, access_log=False,
        server_header=False, date_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=30,
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
