"""An HTTP server that passes requests on to replicas, and tries another one if a replica fails before it answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING

import httpx

from ..server.failures import says_shutting_down
from ..server.origins import host_of
from .policy import Policy
from .prefill import LEAST_BLOCKS, Prefill
from .replicas import HttpReplica, Lost, unless_lost, watch
from .requests import Bodies, error_body, hashes_of, is_repeatable, refuse, reply, until_gone

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["Front"]

_CONNECT_S = 3.0
_WAIT_S = 10.0  # for a replica that is ready
_MOST_SENT = 2  # replicas that a request is sent to: one that crashes servers shall not crash all
_MOST_SHORT_BYTES = 4096  # read of an answer to see if the replica is stopping
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# RFC 9110, 7.6.1: these concern one connection; length and host are set anew.
_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"host", b"content-length", b"expect")
)  # fmt: skip
_FRONT = b"x-quire-front"  # those that a request has passed
_log = logging.getLogger("quire.route")


class _Unread:
    """Blocks of a prompt that a replica has to compute, until it has done so."""

    def __init__(self, replica: HttpReplica, n: int) -> None:
        self._replica, self.n = replica, n
        replica.n_unread += n

    def end(self) -> None:
        self._replica.n_unread -= self.n
        self.n = 0


class Front:
    """The ASGI application.

    ``hosts``: allowed names in the Host header; None: any.  ``prefill``: URLs of servers that only read prompts.
    """

    def __init__(
        self,
        urls: Sequence[str],
        policy: Policy | None = None,
        hosts: Sequence[str] | None = _LOOPBACK,
        prefill: Sequence[str] = (),
    ) -> None:
        self.prefill = Prefill(prefill)
        self.replicas = [HttpReplica(url.rstrip("/"), is_ready=False) for url in urls]
        self._policy = policy or Policy()
        self._hosts = hosts
        self._id = secrets.token_hex(8).encode()
        self.counts: Counter[str] = Counter()
        self._bodies = Bodies()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        self._client = httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False, follow_redirects=False)
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to watch the replicas."""
        self._watching = asyncio.create_task(watch([*self.replicas, *self.prefill.replicas], self._client))

    async def stop(self) -> None:
        """Stop watching, and close the connections."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            await refuse(send, 400, "malformed_request", "the request has several Host headers")
        elif self._hosts is not None and host_of(host) not in self._hosts:
            # A page whose name resolves to this address sends that name.
            await refuse(send, 403, "host_not_allowed", "the Host header does not name this machine (see --allow-host)")
        elif (_FRONT, self._id) in scope["headers"]:
            await refuse(send, 508, "loop", "the request came back: --to or --prefill names this server's own address")
        elif scope["path"] == "/metrics":
            await reply(send, 200, b"text/plain; version=0.0.4", self._metrics().encode())
        else:
            await self._pass_on(scope, headers, receive, send)

    async def _pass_on(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        async with self._bodies.read(receive, send) as body:
            if body is not None:
                await self._try(scope, headers, body, receive, send)

    async def _try(self, scope: Scope, headers: dict[bytes, bytes], body: bytes, receive: Receive, send: Send) -> None:
        hashes = await hashes_of(scope, headers, body)
        tried: set[HttpReplica] = set()
        n_tries = n_sent = 0
        while n_tries < len(self.replicas) + 2:
            replica, n_known = await self._ready(hashes, tried)
            if replica is None:
                break
            try:
                request = _request(self._client, replica, scope, body, self._id)
            except (httpx.InvalidURL, ValueError):
                await refuse(send, 400, "malformed_request", "the request's target is not a path")
                return
            try:
                await self._answer((replica, n_known), hashes, request, receive, send)
            except httpx.LocalProtocolError as error:  # not the replica's fault
                await refuse(send, 400, "malformed_request", f"the request cannot be passed on: {error}")
                return
            except Lost as error:
                tried.add(replica)
                replica.fail()
                if error.has_begun:
                    self.counts["broken"] += 1
                    return
                n_tries += 1
                n_sent += error.was_sent
                if error.was_sent and (n_sent >= _MOST_SENT or not is_repeatable(scope)):
                    self.counts["broken"] += 1
                    text = "the server was lost and may have acted on the request: it was not sent to another one"
                    await refuse(send, 502, "replica_lost", text)
                    return
                self.counts["retried"] += 1
                continue
            return
        self.counts["refused"] += 1
        await refuse(send, 503, "no_replica", "no server is ready to answer", retry_after_s=5)

    async def _ready(self, hashes: Sequence[int], tried: set[HttpReplica]) -> tuple[HttpReplica | None, int]:
        """Choose a replica that was not tried, and return how many blocks it was sent.

        Wait for one if none is ready, as when the only one starts again.
        """
        end_s = asyncio.get_running_loop().time() + _WAIT_S
        while True:
            found, n_known = self._policy.choose_with_known(self.replicas, hashes, tried)
            if found is None and len(tried) == len(self.replicas):
                found, n_known = self._policy.choose_with_known(self.replicas, hashes)
            if found is not None or asyncio.get_running_loop().time() > end_s:
                return found, n_known  # type: ignore[return-value]
            await asyncio.sleep(0.1)

    async def _answer(
        self,
        chosen: tuple[HttpReplica, int],
        hashes: Sequence[int],
        request: httpx.Request,
        receive: Receive,
        send: Send,
    ) -> None:
        replica, matched = chosen
        self.counts["blocks"] += len(hashes)
        self.counts["matched"] += matched
        self.counts["requests"] += 1
        self._policy.index.add(replica, hashes)
        replica.n_active += 1
        unread = _Unread(replica, len(hashes) - matched)
        try:
            await until_gone(self._relay(replica, request, send, unread, hashes), receive)
        finally:
            replica.n_active -= 1
            unread.end()

    async def _relay(
        self, replica: HttpReplica, request: httpx.Request, send: Send, unread: _Unread, hashes: Sequence[int]
    ) -> None:
        if self.prefill.replicas and unread.n >= LEAST_BLOCKS:
            self.counts["prefilled"] += await self.prefill.read(self._client, request, hashes)
        lost = replica.lost
        try:
            response = await unless_lost(lost, self._client.send(request, stream=True))
        except httpx.LocalProtocolError:
            raise
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise Lost(was_sent=False) from None
        except (httpx.TransportError, Lost):
            raise Lost from None
        async with contextlib.aclosing(response):
            pieces = _pieces(response, lost)
            first = await _stopping(pieces) if response.status_code == 503 else b""
            headers = _kept([(name.lower(), value) for name, value in response.headers.raw])
            length = response.headers.get("content-length", "")
            has_length = length.isdecimal() and response.status_code not in (204, 304)
            if has_length:  # httpx has checked it; clients of HTTP/1.0 need it
                headers.append((b"content-length", length.encode()))
            headers.append((b"x-quire-replica", replica.url.encode()))
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            try:
                if first:
                    await send({"type": "http.response.body", "body": first, "more_body": True})
                begun = False
                async for piece in pieces:
                    if begun:  # a stream's first event comes before its first token
                        unread.end()
                    begun = True
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except (httpx.TransportError, Lost):
                _log.warning("[route] %s was lost in the middle of an answer", replica.url)
                if not has_length and b"text/event-stream" in dict(headers).get(b"content-type", b""):
                    event = b"data: " + error_body("replica_lost", "the server that answered was lost") + b"\n\n"
                    await send({"type": "http.response.body", "body": event})
                # Otherwise the connection is closed without an end, which every client takes for an error.
                raise Lost(has_begun=True) from None
            await send({"type": "http.response.body", "body": b""})

    def _metrics(self) -> str:
        lines = [f"quire_route_{name}_total {n}" for name, n in sorted(self.counts.items())]
        for replica in self.replicas:
            lines.append(f'quire_route_ready{{replica="{replica.url}"}} {int(replica.is_ready)}')
            lines.append(f'quire_route_active{{replica="{replica.url}"}} {replica.n_active}')
        return "\n".join(lines) + "\n"


def _request(client: httpx.AsyncClient, replica: HttpReplica, scope: Scope, body: bytes, front: bytes) -> httpx.Request:
    headers = dict(scope["headers"])
    path = scope.get("raw_path") or scope["path"].encode()
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    host = headers.get(b"host", b"")
    # The page is of the front's own origin, which the replica does not know.
    own = headers.get(b"origin", b"").partition(b"://")[2] == host
    kept = [(name, value) for name, value in _kept(scope["headers"]) if not (own and name == b"origin")]
    kept.append((_FRONT, front))
    content = body if body or scope["method"] == "POST" else None
    if not path.startswith(b"/") or not {b".", b".."}.isdisjoint(path.partition(b"?")[0].split(b"/")):
        raise ValueError(path)  # httpx would resolve dots, and replicas see another path than the front
    url = httpx.URL(replica.url).copy_with(raw_path=path.partition(b"?")[0] + query)
    # Not client.build_request, which would add headers of its own, such as accept-encoding.
    extensions = {"timeout": client.timeout.as_dict()}
    return httpx.Request(scope["method"], url, headers=kept, content=content, extensions=extensions)


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that are passed on: not those of one connection, nor those that ``connection`` names."""
    found = list(headers)
    named = {part.strip().lower() for name, value in found if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in found if name not in _HOP and name not in named]


async def _pieces(response: httpx.Response, lost: asyncio.Event) -> AsyncIterator[bytes]:
    pieces = response.aiter_raw()
    while (piece := await unless_lost(lost, anext(pieces, None))) is not None:
        yield piece


async def _stopping(pieces: AsyncIterator[bytes]) -> bytes:
    """Return the beginning of a refusal.  Lost if the replica is stopping, so that another one should be asked."""
    first = b""
    try:
        while len(first) < _MOST_SHORT_BYTES and (piece := await anext(pieces, None)) is not None:
            first += piece
    except httpx.TransportError:
        raise Lost from None
    if says_shutting_down(first):
        raise Lost(was_sent=False)
    return first
