"""Run a route's handler for an HTTP request and write its reply."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import QuireError
from ..body_types import TimedBody
from ..failures import ApiError, Dialect, of_quire
from ..worker.protocol import Ask
from .bodies import Received, content_length, decode_object, header, nothing_received, read_body, to_wire
from .forms import MAX_FORM_BYTES, form_tokens, read_form
from .pings import Pings
from .replies import Events, Reply
from .request_context import RequestContext, Route
from .request_state import request_state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Message, Receive, Scope, Send

    from ..service.admission import Ticket
    from ..service.service import Service
    from ..service.stream_buffers import StreamBuffer

__all__ = ["Endpoint"]

_MOST_CONTROL_BYTES = 16 << 10


class Endpoint:
    """A route as an ASGI application.

    A request whose client disconnects is cancelled; one with an ``X-Quire-Stream-Id`` goes on for a while.
    """

    def __init__(self, route: Route, service: Service, routes: Sequence[Route]) -> None:
        self._route = route
        self._service = service
        self._routes = routes
        self._settings = service.settings
        if route.is_control:
            most = min(self._settings.max_body_bytes, _MOST_CONTROL_BYTES)
            self._settings = replace(self._settings, max_body_bytes=most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = request_state_of(scope)
        state.dialect, state.route = self._route.dialect, self._route.path
        if self._route.body is None:
            await self._run(scope, nothing_received(), _Sender(scope, send, self._service))
            return
        assert state.caller is not None
        is_form = self._route.is_form
        n_bytes = content_length(scope, MAX_FORM_BYTES if is_form else self._settings.max_body_bytes)
        if self._route.is_control:
            ticket = self._service.admission.enter_anyway(state.caller, self._settings.max_body_bytes)
        else:
            ticket = self._service.enter(state.caller, 3 * form_tokens(n_bytes) if is_form else n_bytes)
        try:
            await self._admitted(scope, receive, send, ticket)
        finally:
            ticket.close()

    async def _admitted(self, scope: Scope, receive: Receive, send: Send, ticket: Ticket) -> None:
        state = request_state_of(scope)
        state.ticket = ticket
        received, form = nothing_received(), None
        if self._route.is_form:
            form, received.n_bytes = await read_form(scope, receive, self._service.settings, ticket)
        else:
            received = await read_body(scope, receive, self._settings, ticket)
        assert state.caller is not None
        # Only answers of models are kept: a stream that resumes itself would never end.
        id_ = header(scope, b"x-quire-stream-id") if self._route.opens else None
        buffer = self._service.stream_buffers.open(state.caller, id_)
        sender = _Sender(scope, send, self._service, buffer)
        job = asyncio.ensure_future(self._run(scope, received, sender, form))
        gone = asyncio.ensure_future(_disconnected(receive))
        sender.job = job
        if buffer is not None:
            buffer.follow(job)
        try:
            await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
            if buffer is not None:
                await buffer.outlive(job)
        finally:
            gone.cancel()
            if not job.done():
                job.cancel()
                self._service.metrics.cancelled.inc()
        with suppress(asyncio.CancelledError):
            await job
        if job.cancelled():
            state.status = 499
            if state.abort is not None:
                state.abort()

    async def _run(self, scope: Scope, received: Received, sender: _Sender, form: dict[str, Any] | None = None) -> None:
        async with AsyncExitStack() as closing:
            try:
                reply = await self._reply(scope, received, closing, form)
            except QuireError as error:
                raise of_quire(error) from error
            state = request_state_of(scope)
            headers = [*state.headers, *_ignored(state.ignored)]
            if isinstance(reply, Reply):
                await sender.whole(reply, headers)
            else:
                await sender.stream(reply, headers)

    async def _reply(
        self, scope: Scope, received: Received, closing: AsyncExitStack, form: dict[str, Any] | None
    ) -> Reply | Events:
        route, service = self._route, self._service
        state = request_state_of(scope)
        context: RequestContext[Any] = RequestContext(service, None, scope, state, self._routes, closing, received)
        if route.body is not None:
            strict = service.settings.refuses_unknown
            if form is not None:
                if "file_name" not in route.body.__struct_fields__:
                    form.pop("file_name", None)
                context.body, ignored = to_wire(form, route.body, strict, is_form=True)
            else:
                content, depth = received.take(), service.settings.max_depth
                if route.may_be_empty:
                    content = content or b"{}"
                given = await context.prepared(decode_object, content, depth, route.list_field)
                context.body, ignored = await context.prepared(to_wire, given, route.body, strict)
                del given
            state.ignored += ignored
        body = context.body
        if isinstance(body, TimedBody):
            state.ping_s = body.sse_ping_interval
        if body is not None and route.opens:
            # Pinned until the request ends, so that loading another model does not evict it.
            model = body.model.removesuffix(":latest") if body.model and route.dialect is Dialect.OLLAMA else body.model
            context.opened_model = state.model = await service.find(model)
            await closing.enter_async_context(service.pinned(context.opened_model, state.caller))
            context.adapter = service.adapter_of(model)
            if context.opened_model in service.sleeping:
                raise ApiError(503, "model_sleeping", "the model sleeps: call POST /wake_up", "model", 5)
        reply = await route.handler(context)
        if header(scope, b"x-quire-prefill") and service.settings.cache_peer_key and context.opened_model:
            # A front will send the request to a peer, which shall find all blocks of the prompt.
            await context.ask(service.engine(context.opened_model), Ask(0, "await_written", {}))
        return reply


def _ignored(names: list[str]) -> list[tuple[bytes, bytes]]:
    """Return the header that names the fields without effect, each once."""
    shown = ",".join(dict.fromkeys(names[:256])).encode("ascii", "replace")[:1024]
    return [(b"x-quire-ignored", shown)] if shown else []


class _Sender:
    """Writes a reply, and cancels the request if the client does not read it."""

    def __init__(self, scope: Scope, send: Send, service: Service, buffer: StreamBuffer | None = None) -> None:
        self._state = request_state_of(scope)
        self._send = send
        self._service = service
        self._buffer = buffer
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
        pings = self._pings(events)
        try:
            await self._pieces(events, pings)
            if pings is not None:
                await pings.finish()
        finally:
            self._watch.cancel()
            if pings is not None:
                pings.cancel()
        await self._send({"type": "http.response.body", "body": b""})

    async def _pieces(self, events: Events, pings: Pings | None) -> None:
        try:
            async for piece in events.pieces:
                if piece:
                    if pings is not None:
                        pings.carrying()
                    await self._content(piece)
                    if pings is not None:
                        pings.carried()
        except (ApiError, QuireError) as error:
            failure = error if isinstance(error, ApiError) else of_quire(error)
            self._state.code = failure.code
            self._service.metrics.error(failure.code)
            if pings is not None:
                pings.carrying()
            await self._content(events.failed(failure))

    def _pings(self, events: Events) -> Pings | None:
        own = self._state.ping_s
        interval_s = self._service.settings.ping_s if own is None else own
        return Pings(self._piece, events.ping, interval_s) if events.ping is not None and interval_s > 0 else None

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._state.status = status
        message: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await self._send(message)

    async def _content(self, piece: bytes) -> None:
        if self._buffer is not None:
            self._buffer.add(piece)
        await self._piece(piece)

    async def _piece(self, piece: bytes) -> None:
        self._sending = True
        self._n_sends += 1
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._sending = False

    def _check(self, n_sends: int) -> None:
        """Cancel the request if it is still sending the same piece as in the previous check."""
        if self._sending and self._n_sends == n_sends and self.job is not None:
            self._service.metrics.error("slow_reader")
            self.job.cancel()
            return
        self._watch = asyncio.get_running_loop().call_later(self._timeout_s, self._check, self._n_sends)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
