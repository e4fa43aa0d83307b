"""The context of a request that a route's handler receives, and the description of a route."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar
from urllib.parse import parse_qs

import msgspec

from ..body_types import TimedBody
from ..failures import ApiError, Dialect
from ..media_sources import wanted_urls, with_contents
from ..time_limits import TimeLimits
from ..worker.protocol import Ask, Embed, JsonObject, Score, Tag
from .bodies import Received, nothing_received
from .offload import offload
from .replies import Events, Reply

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from starlette.types import Scope

    from ..service.admission import Ticket
    from ..service.caller import Caller
    from ..service.service import Service
    from ..worker.engine_client import EngineClient, Stream
    from ..worker.protocol import Work
    from .request_state import RequestState

__all__ = ["Handler", "RequestContext", "Route"]

_MOST_QUERIES = 16
T = TypeVar("T")
T2 = TypeVar("T2")
P = ParamSpec("P")


@dataclass
class RequestContext(Generic[T]):
    """A request to a route, with its body decoded.  ``routes`` lists all routes of the server."""

    service: Service
    body: T
    scope: Scope
    state: RequestState
    routes: Sequence[Route]
    closing: AsyncExitStack
    received: Received = field(default_factory=nothing_received)
    arrived_s: float = field(default_factory=time.monotonic)
    # Maps the engine's names for ignored fields to the body's, where they differ.
    said_by: dict[str, str] = field(default_factory=dict)
    opened_model: str | None = None  # the model loaded for this request
    adapter: tuple[str, float] | None = None  # that the request chose by the model's name, and its scale

    @property
    def caller(self) -> Caller:
        """The caller, identified by its API key."""
        caller = self.state.caller
        assert caller is not None  # access.py sets it before any route runs
        return caller

    @property
    def ticket(self) -> Ticket:
        """The request's share of the limits; only requests with a body have one."""
        ticket = self.state.ticket
        assert ticket is not None
        return ticket

    def path(self, name: str) -> str:
        """Return a parameter of the path."""
        return str(self.scope["path_params"][name])

    def engine(self, model: str | None) -> EngineClient:
        """Return the engine loaded for this request, or else that of ``model``.  ApiError 404 for an unknown model."""
        return self.service.engine(self.opened_model if self.opened_model is not None else model)

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.opened_model or self.service.model

    def keep(self, seconds: float | None) -> None:
        """Set how long the model stays loaded after this request; None for the default.

        Has no effect on a model that the caller may not unload.
        """
        if self.opened_model is None:
            return
        if self.service.may_close(self.opened_model, self.caller):
            self.service.library.keep(self.opened_model, seconds)
        elif seconds is not None:
            self.ignore("keep_alive")

    async def needs_context(self, n_ctx: int) -> None:
        """Reload the model with a longer context, if the server may change its models.

        Does nothing if the model was not trained on a context that long.  Raises like ``Library.grow``.
        """
        if self.opened_model is None or not self.service.settings.allow_changes:
            return
        info = self.service.engine(self.opened_model).info
        if info.n_ctx < n_ctx <= info.n_ctx_train:
            await self.service.library.grow(self.opened_model, n_ctx)

    def ignore(self, name: str) -> None:
        """Record that a field has no effect; a header of the reply will name it."""
        self.state.ignored.append(repr(name[:64]))

    def note(self, ignored: Sequence[str]) -> None:
        """Record fields that the model cannot follow, given by the engine's names."""
        for name in ignored:
            self.ignore(self.said_by.get(name, name))

    def submit(self, engine: EngineClient, work: Work) -> Stream:
        """Submit work, which ends with this request at the latest."""
        wanted = min(BACKGROUND_PRIORITY, work.hints.priority) if self.state.is_background else work.hints.priority
        priority = self.service.admission.priority(self.caller, wanted)
        if priority < wanted and wanted != 0:
            self.ignore("priority")
        hints = msgspec.structs.replace(
            work.hints, key=self.caller.name, n_bytes=self.received.n_bytes, priority=priority
        )
        stream = engine.submit(self._adapted(msgspec.structs.replace(work, hints=hints)))
        self.closing.callback(stream.close)
        stream.n_ctx = engine.info.n_ctx
        body = self.body if isinstance(self.body, TimedBody) else None
        stream.limits = TimeLimits.of(self.service.settings, body, self.arrived_s)
        if isinstance(work, Ask | Embed | Score):  # answered as a whole, so there is no first token
            stream.limits = stream.limits.without_first_token()
        return stream

    def _adapted(self, work: Work) -> Work:
        """Return work with the adapter that the request chose, unless its fields choose others."""
        if self.adapter is None or isinstance(work, Ask):
            return work
        if isinstance(work, Embed | Score | Tag):
            return msgspec.structs.replace(work, hints=msgspec.structs.replace(work.hints, adapter=(self.adapter,)))
        return msgspec.structs.replace(work, params={"adapter": (self.adapter,), **work.params})

    async def prepared(self, make: Callable[P, T2], *args: P.args, **kwargs: P.kwargs) -> T2:
        """Call a function on the body: on the event loop, or on a thread if the body is large."""
        if not self.received.heavy:
            return make(*args, **kwargs)
        return await self.offload(make, *args, **kwargs)

    async def offload(self, make: Callable[P, T2], *args: P.args, **kwargs: P.kwargs) -> T2:
        """Call a function on a thread.  It must not contain long calls into C, which would hold the GIL."""
        job = partial(make, *args, **kwargs)
        return await offload(self.service.threads, self.caller.name, self.received.n_bytes, job)

    async def with_images(self, messages: list[JsonObject]) -> list[JsonObject]:
        """Return messages with the images that their URLs name, as far as the server's settings allow it.

        RequestError if an image cannot be had; messages of servers that fetch nothing are left to the model's worker.
        """
        sources = self.service.media_sources
        if not sources.is_open or not (urls := wanted_urls(messages)):
            return messages
        files = await offload(self.service.fetching, self.caller.name, 0, partial(sources.contents, urls))
        return with_contents(messages, files)

    def query(self) -> dict[str, list[str]]:
        """Return the parameters after the path's question mark.  ApiError 400 for more than 16."""
        try:
            return parse_qs(bytes(self.scope["query_string"]).decode("ascii", "replace"), max_num_fields=_MOST_QUERIES)
        except ValueError:
            text = f"too many query parameters: expected at most {_MOST_QUERIES}"
            raise ApiError(400, "invalid_value", text) from None

    async def ask(self, engine: EngineClient, work: Work) -> Any:
        """Submit a question and return its answer."""
        return await self.submit(engine, work).answer()


BACKGROUND_PRIORITY = -100
"""The priority of requests that the server sends to itself: the lowest."""

Handler = Callable[[RequestContext[Any]], Awaitable[Reply | Events]]


@dataclass(frozen=True)
class Route:
    """A row of the table of routes.

    ``body`` is the wire type of the body, if there is one.  ``opens``: load its model before the handler runs.
    ``list_field``: accept a list as the body, as the value of this field.  ``is_form``: the body is a form with a file.
    ``may_be_empty``: no body is one without fields.  ``is_control``: admit it even if the queue is full, with a small
    body, as requests may be waiting for it.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[Any] | None = None
    dialect: Dialect = Dialect.OPENAI
    opens: bool = True
    list_field: str | None = None
    is_form: bool = False
    may_be_empty: bool = False
    is_control: bool = False
