"""Connect to peers within a time limit, the lookup of their names included."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

__all__ = ["Addresses"]


class _Lookup(threading.Thread):
    """A lookup of a name, which nothing can interrupt."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(name="quire-peer-lookup", daemon=True)
        self._place = host, port
        self.found: list[tuple[int, Any]] = []  # family, address
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            lines = socket.getaddrinfo(*self._place, type=socket.SOCK_STREAM)
            self.found = [(family, address) for family, _, _, _, address in lines]
        except (OSError, UnicodeError) as error:
            self.error = error


class Addresses:
    """Looks up names, each by one thread at a time.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], _Lookup] = {}

    def connect(self, host: str, port: int, limit_s: float) -> socket.socket:
        """Return a connection.  OSError, or UnicodeError for an odd name, if there is none within ``limit_s``."""
        end_s = time.monotonic() + limit_s
        error: OSError = OSError(f"no address of {host}")
        for family, address in self._look_up(host, port, limit_s):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(max(0.001, end_s - time.monotonic()))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as failed:
                sock.close()
                error = failed
            else:
                return sock
        raise error

    def _look_up(self, host: str, port: int, limit_s: float) -> list[tuple[int, Any]]:
        with self._lock:
            lookup = self._open.get((host, port))
            if lookup is None:
                lookup = self._open[host, port] = _Lookup(host, port)
                lookup.start()
        lookup.join(limit_s)
        if lookup.is_alive():
            raise TimeoutError(f"the address of {host} was not found in {limit_s:g} seconds")
        with self._lock:
            if self._open.get((host, port)) is lookup:
                del self._open[host, port]
        if lookup.error is not None:
            raise lookup.error
        return lookup.found
