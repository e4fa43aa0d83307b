"""Checks that every request passes before its route: host, origin, key, request id; and the access log."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import re
import sys
import time
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from ...errors import QuireError
from ..failures import ApiError, of_quire, shutting_down
from ..origins import Origins, host_of, preflight_headers
from ..service.caller import Caller, caller_name
from ..settings import is_loopback
from .replies import Reply, refusal
from .request_state import RequestState, request_state_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ..service.service import Service
    from ..service.traces import Traces

__all__ = ["PEERS_PATH", "AccessMiddleware"]

OPEN_PATHS = frozenset({"/health"})
PEERS_PATH = "/v1/cache/blocks"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
# Headers that may occur only once: of two, this server would use the last and a proxy perhaps the first.
_ONCE = (b"host", b"authorization", b"x-api-key", b"content-length", b"content-type", b"origin")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger("quire.server")


class AccessMiddleware:
    """The outermost ASGI application: checks requests, turns exceptions into error replies, and logs."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        settings = service.settings
        self._app = app
        self._service = service
        self._peer_key = settings.cache_peer_key
        self._keys = [hashlib.sha256(key.encode()).digest() for key in settings.api_keys]
        names = (*_LOOPBACK_NAMES, settings.host, *settings.allowed_hosts)
        self._hosts = {name.lower() for name in names} if is_loopback(settings.host) else None
        self._origins = Origins(settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.monotonic()
        headers = dict(scope["headers"])
        state = request_state_of(scope)
        state.request_id = _request_id(headers)
        state.headers.append((b"x-request-id", state.request_id.encode()))
        scope["app"] = self._app  # without an app in the scope, the router would answer 404 and 405 itself
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                state.status = message["status"]
            await send(message)

        try:
            _check_head(scope, headers)
            await self._admit(scope, state, headers, receive, sending)
        except (ApiError, QuireError) as error:
            failure = error if isinstance(error, ApiError) else of_quire(error)
            await self._refuse(failure, state, sending, begun)
        except HTTPException as error:  # from the router, for a method that the route lacks
            text = f"method {scope['method']!r:.40} is not allowed for this route"
            allowed = (error.headers or {}).get("Allow")
            failure = ApiError(error.status_code, "method_not_allowed", text, allow=allowed)
            await self._refuse(failure, state, sending, begun)
        except asyncio.CancelledError:
            state.status = 499
        except Exception as error:
            _log.exception("[server] unexpected error while answering a request: %s", type(error).__name__)
            text = "internal server error (see the server's log)"
            await self._refuse(ApiError(500, "internal_error", text), state, sending, begun)
        finally:
            self._note(scope, state, time.monotonic() - started_s)

    async def _admit(
        self, scope: Scope, state: RequestState, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        if not state.is_background and await self._is_answered(scope, state, headers, send):
            return
        if self._service.draining and scope["method"] == "POST":
            raise shutting_down()
        await self._app(scope, receive, send)

    async def _is_answered(self, scope: Scope, state: RequestState, headers: dict[bytes, bytes], send: Send) -> bool:
        """Check where a request comes from and who sends it; return True if it was a browser's question about that."""
        self._check_host(headers)
        if (origin := headers.get(b"origin")) is not None:
            self._check_origin(origin, headers.get(b"host", b""), scope["method"], state)
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                wanted = headers.get(b"access-control-request-headers", b"")
                is_private = headers.get(b"access-control-request-private-network") == b"true"
                state.headers += preflight_headers(wanted, private_network=is_private)
                await _send_reply(Reply(b"", 204), state, send)
                return True
        state.caller = self._caller(scope["path"], headers, state)
        return False

    async def _refuse(self, error: ApiError, state: RequestState, send: Send, begun: bool) -> None:
        self._service.metrics.error(error.code)
        state.code = error.code
        if not begun:
            await _send_reply(refusal(error, state.dialect), state, send)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Protect against DNS rebinding: a page whose name resolves to this address sends that name as Host."""
        given = headers.get(b"host", b"").decode("latin-1")
        name = host_of(given)
        if self._hosts is None:
            if name is None and given:
                raise ApiError(400, "malformed_request", f"the Host header {given!r:.80} has no valid name")
        elif name not in self._hosts:
            raise ApiError(
                403,
                "host_not_allowed",
                "the Host header does not name this machine (allow more names with --allow-host)",
            )

    def _check_origin(self, origin: bytes, host: bytes, method: str, state: RequestState) -> None:
        """Let pages of allowed origins read answers.  Browsers hide the answers from all other pages."""
        text = origin.decode("latin-1")
        if self._origins.allow(text):
            state.headers += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"x-request-id, x-quire-ignored, retry-after"),
                (b"vary", b"origin"),
            ]
        elif text.partition("://")[2].encode("latin-1") != host and method != "GET":
            raise ApiError(
                403, "origin_not_allowed", "this Origin may not call the server (allow it with --cors-origin)"
            )

    def _check_peer(self, headers: dict[bytes, bytes]) -> Caller:
        """Accept the peers' key alone: callers' keys give no access to other callers' blocks."""
        if self._peer_key is None:
            raise ApiError(
                401, "invalid_api_key", "no peer may read blocks: start the server with --cache-peer-key-file"
            )
        if not hmac.compare_digest(_given_key(headers) or b"", self._peer_key.encode()):
            raise ApiError(401, "invalid_api_key", "missing or invalid key of a peer")
        return Caller("peer")

    def _caller(self, path: str, headers: dict[bytes, bytes], state: RequestState) -> Caller:
        if path == PEERS_PATH:
            return self._check_peer(headers)
        if not self._keys:
            return Caller()
        given = _given_key(headers)
        if given is not None:
            digest = hashlib.sha256(given).digest()
            # Compare with every key, so that the time does not tell which one matches.
            fits = [hmac.compare_digest(digest, known) for known in self._keys]
            if any(fits):
                return Caller(caller_name(digest), digest)
        if path in OPEN_PATHS:
            return Caller()
        if path == "/":  # makes browsers ask for it: any user name, the key as password
            state.headers.append((b"www-authenticate", b'Basic realm="quire"'))
        raise ApiError(401, "invalid_api_key", "missing or invalid API key")

    def _note(self, scope: Scope, state: RequestState, elapsed_s: float) -> None:
        self._service.metrics.request(state.status)
        if self._service.traces is not None:
            _trace(self._service.traces, scope, state, elapsed_s)
        if not self._service.settings.access_log:
            return
        client = scope.get("client")
        entry = {
            "time": round(time.time(), 3),
            "request": state.request_id,
            "client": client[0] if client else None,
            "caller": None if state.caller is None else state.caller.name,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": state.status,
            "seconds": round(elapsed_s, 4),
        }
        if state.code is not None:
            entry["code"] = state.code
        entry.update(state.usage)
        # Escape everything beyond ASCII, so that no input from a client can start a new line.
        sys.stderr.write(json.dumps(entry, ensure_ascii=True).replace("\x7f", "\\u007f") + "\n")


def _trace(traces: Traces, scope: Scope, state: RequestState, elapsed_s: float) -> None:
    """Record the request as a trace span."""
    method, usage = scope["method"], state.usage
    values = {
        "http.request.method": method,
        "http.route": state.route,
        "url.path": scope["path"][:200],
        "http.response.status_code": state.status,
        "error.type": state.code,
        "quire.request_id": state.request_id,
        "gen_ai.provider.name": None if state.model is None else "quire",
        "gen_ai.request.model": state.model,
        "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": usage.get("generated_tokens"),
        "gen_ai.server.time_to_first_token": usage.get("first_token_seconds"),
    }
    attributes = {name: value for name, value in values.items() if value is not None}
    end_ns = time.time_ns()
    name = method if state.route is None else f"{method} {state.route}"
    traces.add(name, scope["headers"], attributes, end_ns - int(elapsed_s * 1e9), end_ns)


def _check_head(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Raise ApiError 400 for a request head that a proxy might interpret differently."""
    names = [name for name, _ in scope["headers"]]
    for name in _ONCE:
        if names.count(name) > 1:
            raise ApiError(400, "malformed_request", f"duplicate header {name.decode()}")
    version = scope["http_version"]
    if version == "1.1" and b"host" not in headers:
        raise ApiError(400, "malformed_request", "missing Host header")
    if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
        coding = headers[b"transfer-encoding"].decode("latin-1")
        raise ApiError(501, "unsupported_transfer_coding", f"unsupported transfer coding {coding!r:.80}: send chunked")
    if version == "1.0" and b"transfer-encoding" in headers:
        raise ApiError(400, "malformed_request", "Transfer-Encoding is not allowed in HTTP/1.0")


async def _send_reply(reply: Reply, state: RequestState, send: Send) -> None:
    length = str(len(reply.content)).encode()
    own = [(b"content-type", reply.media_type), (b"content-length", length)]
    headers = [*own, *state.headers, *reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.content})


def _request_id(headers: dict[bytes, bytes]) -> str:
    """Return the client's request id if it is valid, else a new one.  It only goes into logs and headers."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{os.urandom(12).hex()}"


def _given_key(headers: dict[bytes, bytes]) -> bytes | None:
    """Return the API key of a request from one of the headers that clients use."""
    if (key := headers.get(b"x-api-key")) is not None:
        return key
    kind, _, value = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() == b"bearer":
        return value
    if kind.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return None
    return None
