"""Ask other servers of the same model for blocks of a prompt, before they are computed.

A peer is trusted to have computed what it sends: records are checked for damage and for the model alone.  Whatever goes
wrong is a miss, and takes a limited time.
"""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from ..fair_pool import FairPool
from .peer_addresses import Addresses

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from ...engine.engine import EngineRequest
    from ...engine.prefix_blocks import PrefixBlocks

__all__ = ["Peers", "await_written"]

_PATH = "/v1/cache/blocks"
_THREADS = 4
_MOST_WAITING = 16  # requests; others are computed
_LEAST_TOKENS = 64
_MOST_ENTRIES = 1 << 14  # as many as a peer accepts (routes/cache_blocks.py)
_CONNECT_S, _ASK_S, _READ_S = 1.0, 1.0, 5.0
_WRITTEN_S = 2.0
_BETWEEN_LOOKS_S = 0.02  # while a peer writes blocks that it has just computed
_REST_S = 10.0  # for a peer that failed
_HEADER_BYTES, _SIZE_AT = 128, 24  # native/kv/tier_record.h
_MOST_LIST_BYTES, _MOST_SAID_BYTES = 4 << 20, 4096
_NEWEST_WEIGHT = 0.2
_TRIED_AGAIN_AFTER = 32  # refusals: the network may be faster now
_log = logging.getLogger("quire.server")


class _Held(msgspec.Struct):
    held: list[str]


class Peers:
    """The peers of a model.  Thread-safe.

    Attributes:
        n_tokens: Prompt tokens that were read from peers.
        n_failures: Times a peer failed.
    """

    def __init__(self, urls: Sequence[str], key: str, blocks: PrefixBlocks) -> None:
        self._urls, self._key, self._blocks = urls, key, blocks
        self._pool = FairPool(_THREADS, "quire-peers")
        self._addresses = Addresses()
        self._lock = threading.Lock()
        self._n_waiting = self._n_refused = 0
        self.n_tokens = self.n_failures = 0
        self._tokens_per_s = 0.0  # 0: not known yet
        self._failed_s: dict[str, float] = {}

    def before(
        self, request: EngineRequest, key: str, failing: AbstractContextManager[None], go_on: Callable[[], None]
    ) -> None:
        """Fetch what peers have of a request's prompt, then call ``go_on`` inside ``failing``, on another thread."""
        with self._lock:
            is_full = self._n_waiting >= _MOST_WAITING
            self._n_waiting += not is_full

        def job() -> None:
            with failing:
                try:
                    self.fetch(request)
                finally:
                    with self._lock:
                        self._n_waiting -= 1
                go_on()

        if is_full:
            with failing:
                go_on()
        else:
            self._pool.submit(key, 0, job)

    def fetch(self, request: EngineRequest) -> int:
        """Return how many tokens of a prompt arrived from a peer."""
        n_missing, names = self._blocks.find_missing(request)
        if n_missing < _LEAST_TOKENS or not self._is_faster():
            return 0
        names = names[:_MOST_ENTRIES]
        best: tuple[int, list[str], str] = (0, [], "")
        for url in self._ready():
            with self._failing(url):
                held = self._held_now(url, names)
                n, needed = self._blocks.find_missing(request, held) if held else (0, [])
                best = max(best, (n, needed, url))
            if best[0] == n_missing:
                break
        n, needed, url = best
        if n < _LEAST_TOKENS:
            return 0
        start_s = time.monotonic()
        with self._failing(url):
            if self._read(url, needed) == len(needed):
                self._learn(n, time.monotonic() - start_s)
                return n
        return 0

    def close(self) -> None:
        """Wait for requests that are being fetched."""
        self._pool.close()

    def _ready(self) -> list[str]:
        now_s = time.monotonic()
        with self._lock:
            return [url for url in self._urls if now_s - self._failed_s.get(url, -_REST_S) >= _REST_S]

    def _is_faster(self) -> bool:
        """Return False where computing takes less time than reading did, but for a try now and then."""
        computed = self._blocks.compute_tokens_per_s()
        with self._lock:
            if self._tokens_per_s == 0 or computed == 0 or self._tokens_per_s > computed:
                return True
            self._n_refused += 1
            return self._n_refused % _TRIED_AGAIN_AFTER == 0

    def _learn(self, n_tokens: int, seconds: float) -> None:
        tokens_per_s = n_tokens / max(1e-6, seconds)
        with self._lock:
            self.n_tokens += n_tokens
            old = self._tokens_per_s or tokens_per_s
            self._tokens_per_s = old + _NEWEST_WEIGHT * (tokens_per_s - old)

    @contextmanager
    def _failing(self, url: str) -> Iterator[None]:
        """Let a peer rest that fails inside."""
        try:
            yield
        except Exception as error:  # whatever it is, the prompt can be computed
            _log.warning("[cache-peers] %s: %.200s", url, error)
            with self._lock:
                self._failed_s[url] = time.monotonic()
                self.n_failures += 1

    def _held_now(self, url: str, names: Sequence[str]) -> list[str]:
        """Return what a peer has, once it is not writing more of it."""
        end_s = time.monotonic() + _ASK_S
        held = self._held(url, names)
        while 0 < len(held) < len(names) and time.monotonic() < end_s:
            time.sleep(_BETWEEN_LOOKS_S)
            before, held = held, self._held(url, names)
            if len(held) == len(before):
                break
        return held

    def _held(self, url: str, names: Sequence[str]) -> list[str]:
        with self._asked(url, names, _ASK_S, held_only=True) as answer:
            return msgspec.json.decode(answer.read(_MOST_LIST_BYTES), type=_Held).held

    def _read(self, url: str, names: Sequence[str]) -> int:
        """Read records until all are there, or time is up; return their number."""
        n, deadline_s = 0, time.monotonic() + _READ_S
        with self._asked(url, names, _READ_S, held_only=False) as answer:
            while n < len(names) and len(header := answer.read(_HEADER_BYTES)) == _HEADER_BYTES:
                self._blocks.check_header(header)
                (size,) = struct.unpack_from("<Q", header, _SIZE_AT)
                record = header + answer.read(size)
                while not self._blocks.keep_record(record):  # until the disk has written others
                    if time.monotonic() > deadline_s:
                        return n
                    time.sleep(0.005)
                n += 1
        return n

    @contextmanager
    def _asked(self, url: str, names: Sequence[str], limit_s: float, **more: Any) -> Iterator[HTTPResponse]:
        # Loads TLS, which few servers need.
        from http.client import HTTPConnection
        from ssl import SSLSocket, create_default_context

        parts = urlsplit(url)
        assert parts.hostname is not None
        is_tls = parts.scheme == "https"
        sock = self._addresses.connect(parts.hostname, parts.port or (443 if is_tls else 80), _CONNECT_S)
        if is_tls:
            context = create_default_context()
            sock = context.wrap_socket(sock, server_hostname=parts.hostname, do_handshake_on_connect=False)
        connection = HTTPConnection(parts.hostname, parts.port)  # for the Host header
        connection.sock = sock
        # Whatever the peer does, the connection ends after a while.
        late = threading.Event()
        watch = threading.Timer(limit_s, _end, [sock, late])
        watch.daemon = True
        watch.start()
        try:
            sock.settimeout(limit_s)
            if isinstance(sock, SSLSocket):
                sock.do_handshake()
            body = json.dumps({"identity": self._blocks.cache_identity(), "entries": names, **more})
            headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
            connection.request("POST", _PATH, body, headers)
            with connection.getresponse() as answer:  # a connection does not close answers over HTTP 1.0
                if answer.status != 200:
                    raise ValueError(f"status {answer.status}{_said(answer)}")
                yield answer
                if late.is_set():  # which reads as the answer's end
                    raise TimeoutError(f"no answer in {limit_s:g} seconds")
        finally:
            watch.cancel()
            connection.close()


def await_written(blocks: PrefixBlocks) -> bool:
    """Wait until the blocks that were computed so far are on disk, for a limited time."""
    end_s = time.monotonic() + _WRITTEN_S
    n_quiet = 0
    while time.monotonic() < end_s and n_quiet < 2:  # twice: the last step's blocks are queued after its answer
        n_quiet = 0 if blocks.n_unwritten_bytes() else n_quiet + 1
        time.sleep(0.005)
    return n_quiet == 2


def _said(answer: HTTPResponse) -> str:
    """Return why a peer refuses, as text to append."""
    try:
        return ": " + str(json.loads(answer.read(_MOST_SAID_BYTES))["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _end(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
