"""Quire as an application of Ray Serve: replicas that answer, and an ingress that passes requests on to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from ..errors import LoadError
from ..routing.requests import Bodies, error_body, hashes_of, is_repeatable, model_of, refuse, until_gone

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

__all__ = ["Ingress", "RayFront", "Server"]

_KEPT = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "headers",
    "client",
    "server",
)
_MOST_SENT = 2  # replicas that a request is sent to: one that crashes servers shall not crash all
_MOST_MODELS = 64  # names that a replica is known for
_UNREAD = 64  # messages of an answer that wait for their reader
_log = logging.getLogger("quire.route")


class Server:
    """A replica: the service and the routes of ``quire serve``, without its sockets."""

    async def __init__(self, arguments: Sequence[str], queued_tokens: int) -> None:  # type: ignore[misc]
        """Open the model.

        Args:
            arguments: Those of ``quire serve``.
            queued_tokens: Prompt tokens that may wait before there should be more replicas.
        """
        from ..cli.serve import service_of
        from ..server.app import build_app

        self._queued_tokens = queued_tokens
        self._service = service_of(arguments)
        self._app = build_app(self._service)
        await self._service.start()

    async def answer(self, scope: Scope, body: bytes, *, hashes: Sequence[int] = ()) -> AsyncIterator[Message]:
        """Yield the messages of an answer.  ``hashes`` are for the router."""
        if model := serve.get_multiplexed_model_id():
            await self._has_used(model)
        sent: asyncio.Queue[Message | None] = asyncio.Queue(_UNREAD)
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return waiting.pop() if waiting else await asyncio.Future()  # connected until the answer is there

        async def run() -> None:
            try:
                await self._app(scope, receive, sent.put)
            finally:
                await sent.put(None)

        running = asyncio.ensure_future(run())
        try:
            while (message := await sent.get()) is not None:
                yield message
            await running
        finally:  # the caller may have left
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    @serve.multiplexed(max_num_models_per_replica=_MOST_MODELS)  # type: ignore[untyped-decorator]
    async def _has_used(self, model: str) -> str:
        """Let routers know a model or adapter that this replica has used; Quire itself loads and unloads them."""
        return model

    def check_health(self) -> None:
        """LoadError if the model does not answer, so that Ray starts another replica."""
        from ..server.service.library import not_ready

        reasons = not_ready(self._service.library)
        if reasons:
            raise LoadError("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what ``autoscale`` reads: the queue, 1 if it is full, and the share of the cache that is held."""
        beats = [beat for engine in self._service.engines().values() if (beat := engine.beat) is not None]
        held = max((1 - beat.n_free_blocks / max(beat.n_usable_blocks, 1) for beat in beats), default=0.0)
        n_tokens = sum(beat.n_waiting_tokens for beat in beats)
        return {"queued": n_tokens / self._queued_tokens, "cache_held": held}

    async def __del__(self) -> None:
        await self._service.stop()


@serve.ingress()
class Ingress:
    """A process that reads requests and passes them on."""

    def __init__(self, server: DeploymentHandle, is_multiplexed: bool) -> None:
        self._server, self._is_multiplexed = server, is_multiplexed

    def __serve_build_asgi_app__(self) -> RayFront:
        return RayFront(self._server, self._is_multiplexed)


class RayFront:
    """The ASGI application: hashes prompts, asks the replica that the router chooses, and another if that is lost."""

    def __init__(self, server: DeploymentHandle, is_multiplexed: bool) -> None:
        self._server = server.options(method_name="answer", stream=True)
        self._is_multiplexed = is_multiplexed
        self._bodies = Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            async with self._bodies.read(receive, send) as body:
                if body is not None:
                    await until_gone(self._pass_on(scope, body, send), receive)

    async def _pass_on(self, scope: Scope, body: bytes, send: Send) -> None:
        hashes = await hashes_of(scope, dict(scope["headers"]), body)
        kept = {name: scope[name] for name in _KEPT if name in scope}
        model = model_of(body) if self._is_multiplexed else ""
        server = self._server.options(multiplexed_model_id=model) if model else self._server
        for n_sent in range(1, _MOST_SENT + 1):
            passing = _Passing(send)
            try:
                answer = server.remote(kept, body, hashes=hashes)
                try:
                    async for message in answer:
                        await passing.send(message)
                finally:
                    answer.cancel()
                return
            except (RayError, RayServeException) as error:
                _log.warning("[ray] a replica failed: %.200s", error)
                if passing.has_begun:
                    await passing.break_off()
                    return
                if n_sent == _MOST_SENT or not is_repeatable(scope):
                    text = "the replica was lost and may have acted on the request: it was not sent to another one"
                    await refuse(send, 502, "replica_lost", text)
                    return


class _Passing:
    """Passes an answer's messages on.

    The head waits for the first piece, so that another replica can still be asked.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None
        self.has_begun = self._is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            self._is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
            self._head = message
            return
        if self._head is not None:
            self.has_begun = True
            await self._send(self._head)
            self._head = None
        await self._send(message)

    async def break_off(self) -> None:
        """End an answer whose replica is lost: a stream with an error event, others without their end."""
        if not self._is_stream:
            raise ConnectionError("the replica that answered was lost")
        event = b"data: " + error_body("replica_lost", "the replica that answered was lost") + b"\n\n"
        await self._send({"type": "http.response.body", "body": event, "more_body": False})
