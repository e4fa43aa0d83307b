"""One request to a route: what it gets, what it gives back, and how both go over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from ..errors import QuireError
from . import sse
from .apart import made_apart
from .bodies import Received, TimedBody, content_length, decode_object, nothing_received, read_body, to_wire
from .failures import ApiError, Dialect, error_body, of_quire
from .protocol import Ask, Embed
from .time_limits import TimeLimits

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from .admission import Ticket
    from .engine_client import EngineClient, Stream
    from .protocol import Work
    from .service import Service

__all__ = ["Caller", "Endpoint", "Events", "Handler", "Reply", "RequestContext", "Route"]

T = TypeVar("T")
T2 = TypeVar("T2")
P = ParamSpec("P")


@dataclass(frozen=True)
class Caller:
    """Who asks: ``name`` in logs and fair shares, ``salt`` of the cached blocks that it shares with itself only."""

    name: str = ""
    salt: bytes = b""


@dataclass
class RequestContext(Generic[T]):
    """A request to a route, its body decoded."""

    service: Service
    body: T
    scope: Scope
    caller: Caller
    request_id: str
    closing: AsyncExitStack
    received: Received = field(default_factory=nothing_received)
    arrived_s: float = field(default_factory=time.monotonic)
    ignored: list[str] = field(default_factory=list)
    answering: str | None = None  # the model that was opened for this request

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.scope["path_params"][name])

    def engine(self, model: str | None) -> EngineClient:
        """The engine that answers this request, or (where none was opened for it) that of a model; ApiError 404 for one
        that there is not."""
        return self.service.engine(self.answering if self.answering is not None else model)

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.answering or self.service.model

    def submit(self, engine: EngineClient, work: Work) -> Stream:
        """Hand in work that ends, at the latest, with this request."""
        hints = msgspec.structs.replace(work.hints, key=self.caller.name, n_bytes=self.received.n_bytes)
        stream = engine.submit(msgspec.structs.replace(work, hints=hints))
        self.closing.callback(stream.close)
        stream.n_ctx = engine.info.n_ctx
        body = self.body if isinstance(self.body, TimedBody) else None
        stream.limits = TimeLimits.of(self.service.settings, body, self.arrived_s)
        if isinstance(work, Ask | Embed):  # an answer as a whole
            stream.limits = stream.limits.without_first_token()
        return stream

    async def prepared(self, make: Callable[P, T2], *args: P.args, **kwargs: P.kwargs) -> T2:
        """What a function makes of the body: on the event loop, or apart from it where the body is large."""
        if not self.received.heavy:
            return make(*args, **kwargs)
        return await self.apart(make, *args, **kwargs)

    async def apart(self, make: Callable[P, T2], *args: P.args, **kwargs: P.kwargs) -> T2:
        """What a function makes, for which the event loop does not wait.  No call into C within it may take long."""
        job = partial(make, *args, **kwargs)
        return await made_apart(self.service.threads, self.caller.name, self.received.n_bytes, job)

    async def ask(self, engine: EngineClient, work: Work) -> Any:
        """The answer to a question."""
        return await self.submit(engine, work).answer()


@dataclass(frozen=True)
class Reply:
    """An answer as a whole."""

    content: bytes
    status: int = 200
    media_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Reply:
        """An answer in JSON."""
        return cls(sse.encode(value), status)


@dataclass(frozen=True)
class Events:
    """An answer in pieces.  ``failed`` is the last piece where the answer breaks off."""

    pieces: AsyncIterator[bytes]
    failed: Callable[[ApiError], bytes]
    media_type: bytes = b"text/event-stream"


Handler = Callable[[RequestContext[Any]], Awaitable[Reply | Events]]


@dataclass(frozen=True)
class Route:
    """A row of the table of routes.

    ``body``: the wire type of the body, where there is one.  ``opens``: its model is opened before the handler runs.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[Any] | None = None
    dialect: Dialect = Dialect.OPENAI
    opens: bool = True


class Endpoint:
    """A route as an ASGI application: body in, reply out; what the client abandons is cancelled."""

    def __init__(self, route: Route, service: Service) -> None:
        self._route = route
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["quire.dialect"] = self._route.dialect
        if self._route.body is None:
            await self._run(scope, nothing_received(), _Sender(scope, send, self._service))
            return
        ticket = self._service.enter(
            scope["quire.caller"], content_length(scope, self._service.settings.max_body_bytes)
        )
        try:
            await self._admitted(scope, receive, send, ticket)
        finally:
            ticket.close()

    async def _admitted(self, scope: Scope, receive: Receive, send: Send, ticket: Ticket) -> None:
        scope["quire.ticket"] = ticket
        received = await read_body(scope, receive, self._service.settings, ticket)
        sender = _Sender(scope, send, self._service)
        job = asyncio.ensure_future(self._run(scope, received, sender))
        gone = asyncio.ensure_future(_disconnected(receive))
        sender.job = job
        try:
            await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not job.done():
                job.cancel()
                self._service.metrics.cancelled.inc()
        with suppress(asyncio.CancelledError):
            await job
        if job.cancelled():
            scope["quire.status"] = 499
            abort = scope.get("quire.abort")
            if abort is not None:
                abort()

    async def _run(self, scope: Scope, received: Received, sender: _Sender) -> None:
        async with AsyncExitStack() as closing:
            try:
                reply = await self._reply(scope, received, closing)
            except QuireError as error:
                raise of_quire(error) from error
            headers: list[tuple[bytes, bytes]] = scope["quire.headers"]
            if isinstance(reply, Reply):
                await sender.whole(reply, headers)
            else:
                await sender.stream(reply, headers)

    async def _reply(self, scope: Scope, received: Received, closing: AsyncExitStack) -> Reply | Events:
        route, service = self._route, self._service
        caller, request_id = scope["quire.caller"], scope["quire.request_id"]
        context: RequestContext[Any] = RequestContext(service, None, scope, caller, request_id, closing, received)
        if route.body is not None:
            given = await context.prepared(decode_object, received.take(), service.settings.max_depth)
            context.body, context.ignored = await context.prepared(to_wire, given, route.body, service.settings.lenient)
            del given
        body, ignored = context.body, context.ignored
        if ignored:
            names = ",".join(ignored[:256]).encode("ascii", "replace")[:1024]
            scope["quire.headers"].append((b"x-quire-ignored", names))
        if body is not None and route.opens:
            # It stays open until the request ends, whatever else is asked for meanwhile.
            model = body.model.removesuffix(":latest") if body.model and route.dialect is Dialect.OLLAMA else body.model
            context.answering = service.name_of(model)
            await closing.enter_async_context(service.pinned(context.answering))
        return await route.handler(context)


class _Sender:
    """Writes a reply; gives up on a client that does not read."""

    def __init__(self, scope: Scope, send: Send, service: Service) -> None:
        self._scope = scope
        self._send = send
        self._service = service
        self._timeout_s = service.settings.send_timeout_s
        self._n_sends = 0
        self._sending = False
        self.job: asyncio.Future[None] | None = None

    async def whole(self, reply: Reply, headers: list[tuple[bytes, bytes]]) -> None:
        length = str(len(reply.content)).encode()
        await self._start(
            reply.status, [(b"content-type", reply.media_type), (b"content-length", length), *headers, *reply.headers]
        )
        await self._send({"type": "http.response.body", "body": reply.content})

    async def stream(self, events: Events, headers: list[tuple[bytes, bytes]]) -> None:
        own = [(b"content-type", events.media_type), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        await self._start(200, [*own, *headers])
        watch = asyncio.get_running_loop().call_later(self._timeout_s, self._check, -1)
        self._watch = watch
        try:
            async for piece in events.pieces:
                await self._piece(piece)
        except (ApiError, QuireError) as error:
            failure = error if isinstance(error, ApiError) else of_quire(error)
            self._scope["quire.code"] = failure.code
            self._service.metrics.error(failure.code)
            await self._piece(events.failed(failure))
        finally:
            self._watch.cancel()
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._scope["quire.status"] = status
        message: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await self._send(message)

    async def _piece(self, piece: bytes) -> None:
        self._sending = True
        self._n_sends += 1
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._sending = False

    def _check(self, n_sends: int) -> None:
        """Whether the same piece is still being sent as when this was called last."""
        if self._sending and self._n_sends == n_sends and self.job is not None:
            self._service.metrics.error("slow_reader")
            self.job.cancel()
            return
        self._watch = asyncio.get_running_loop().call_later(self._timeout_s, self._check, self._n_sends)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def refusal(error: ApiError, dialect: Dialect) -> Reply:
    """The reply that an error is."""
    return Reply(sse.encode(error_body(error, dialect)), error.status, headers=tuple(error.headers()))
