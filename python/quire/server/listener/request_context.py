"""What a route gets of one request, and what a route is."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from ..body_types import TimedBody
from ..failures import Dialect
from ..time_limits import TimeLimits
from ..worker.protocol import Ask, Embed, Score
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

T = TypeVar("T")
T2 = TypeVar("T2")
P = ParamSpec("P")


@dataclass
class RequestContext(Generic[T]):
    """A request to a route, its body decoded.  ``routes``: all that the server has."""

    service: Service
    body: T
    scope: Scope
    state: RequestState
    routes: Sequence[Route]
    closing: AsyncExitStack
    received: Received = field(default_factory=nothing_received)
    arrived_s: float = field(default_factory=time.monotonic)
    # Fields of the body by what they are to the engine, where these have other names.
    said_by: dict[str, str] = field(default_factory=dict)
    opened_model: str | None = None  # the model that was opened for this request

    @property
    def caller(self) -> Caller:
        """Who asks."""
        caller = self.state.caller
        assert caller is not None  # no route runs before it is known
        return caller

    @property
    def ticket(self) -> Ticket:
        """What the request may take, where it has a body."""
        ticket = self.state.ticket
        assert ticket is not None
        return ticket

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.scope["path_params"][name])

    def engine(self, model: str | None) -> EngineClient:
        """The engine that answers this request, or (where none was opened for it) that of a model; ApiError 404 for one
        that there is not."""
        return self.service.engine(self.opened_model if self.opened_model is not None else model)

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.opened_model or self.service.model

    def keep(self, seconds: float | None) -> None:
        """How long the model that answers stays open after this request; None: as long as usual.

        Has no effect on a model that is not the caller's to close.
        """
        if self.opened_model is None:
            return
        if self.service.may_close(self.opened_model, self.caller):
            self.service.library.keep(self.opened_model, seconds)
        elif seconds is not None:
            self.ignore("keep_alive")

    async def needs_context(self, n_ctx: int) -> None:
        """Have the model that answers opened with a longer context where the server may change its models and the model
        was trained on so many positions.  Raises as ``Library.grow``; where it may not, nothing happens."""
        if self.opened_model is None or not self.service.settings.allow_changes:
            return
        info = self.service.engine(self.opened_model).info
        if info.n_ctx < n_ctx <= info.n_ctx_train:
            await self.service.library.grow(self.opened_model, n_ctx)

    def ignore(self, name: str) -> None:
        """Note that a field has no effect; the reply's header names it."""
        self.state.ignored.append(repr(name[:64]))

    def note(self, ignored: Sequence[str]) -> None:
        """The same for what a model cannot follow, by the engine's names."""
        for name in ignored:
            self.ignore(self.said_by.get(name, name))

    def submit(self, engine: EngineClient, work: Work) -> Stream:
        """Hand in work that ends, at the latest, with this request."""
        priority = self.service.admission.priority(self.caller, work.hints.priority)
        if priority < work.hints.priority and work.hints.priority != 0:
            self.ignore("priority")
        hints = msgspec.structs.replace(
            work.hints, key=self.caller.name, n_bytes=self.received.n_bytes, priority=priority
        )
        stream = engine.submit(msgspec.structs.replace(work, hints=hints))
        self.closing.callback(stream.close)
        stream.n_ctx = engine.info.n_ctx
        body = self.body if isinstance(self.body, TimedBody) else None
        stream.limits = TimeLimits.of(self.service.settings, body, self.arrived_s)
        if isinstance(work, Ask | Embed | Score):  # an answer as a whole
            stream.limits = stream.limits.without_first_token()
        return stream

    async def prepared(self, make: Callable[P, T2], *args: P.args, **kwargs: P.kwargs) -> T2:
        """What a function makes of the body: on the event loop, or on a thread where the body is large."""
        if not self.received.heavy:
            return make(*args, **kwargs)
        return await self.offload(make, *args, **kwargs)

    async def offload(self, make: Callable[P, T2], *args: P.args, **kwargs: P.kwargs) -> T2:
        """What a function makes, for which the event loop does not wait.  No call into C within it may take long."""
        job = partial(make, *args, **kwargs)
        return await offload(self.service.threads, self.caller.name, self.received.n_bytes, job)

    async def ask(self, engine: EngineClient, work: Work) -> Any:
        """The answer to a question."""
        return await self.submit(engine, work).answer()


Handler = Callable[[RequestContext[Any]], Awaitable[Reply | Events]]


@dataclass(frozen=True)
class Route:
    """A row of the table of routes.

    ``body``: the wire type of the body, where there is one.  ``opens``: its model is opened before the handler runs.
    ``list_field``: the field of the body that it is as a whole where it is a list.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[Any] | None = None
    dialect: Dialect = Dialect.OPENAI
    opens: bool = True
    list_field: str | None = None
