"""Calls of ``LLM`` and ``AsyncLLM``: their requests, their results, and their events while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from .engine import Deliver, Engine, EngineRequest, Failure

if TYPE_CHECKING:
    from .._native.engine import Event

__all__ = ["Call", "Collects", "Running", "Stream"]

T = TypeVar("T")
PieceT = TypeVar("PieceT")
MadeT_co = TypeVar("MadeT_co", covariant=True)


class Collects(Protocol[MadeT_co]):
    """Takes the events of one request."""

    @property
    def complete(self) -> bool:
        """Return whether the request has ended."""

    def add(self, event: Event) -> MadeT_co:
        """Take an event and return what it means to the caller."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """Prepared requests with their collectors, and the function that makes the result once all have ended.

    ``more``: prepares further requests, which depend on what came of the earlier ones; none of them: all have ended.
    """

    requests: Sequence[tuple[EngineRequest, Collects[object]]]
    result: Callable[[], T]
    more: Callable[[], Sequence[tuple[EngineRequest, Collects[object]]]] | None = None


@dataclass(frozen=True)
class Stream(Generic[PieceT]):
    """A prepared request whose answer is read piece by piece."""

    request: EngineRequest
    collector: Collects[PieceT]


class Running(Generic[PieceT]):
    """The requests of one call that have not ended.  Leaving the ``with`` block cancels them."""

    def __init__(self, engine: Engine, deliver: Deliver) -> None:
        """``deliver`` gets the requests' events on the engine's thread and passes them on to ``take``."""
        self._engine = engine
        self._deliver = deliver
        self._collectors: dict[int, Collects[PieceT]] = {}

    def submit(self, request: EngineRequest, collector: Collects[PieceT]) -> None:
        """Hand a request to the engine."""
        self._collectors[self._engine.submit(request, self._deliver)] = collector

    def __bool__(self) -> bool:
        return bool(self._collectors)

    def take(self, items: Sequence[Event | Failure]) -> Iterator[PieceT]:
        """Give events to their collectors and yield what these make of them.  Raises the error of a failed request."""
        for item in items:
            if isinstance(item, Failure):
                del self._collectors[item.request_id]
                raise item.error
            collector = self._collectors[item.request_id]
            piece = collector.add(item)
            if collector.complete:
                del self._collectors[item.request_id]
            yield piece

    def __enter__(self) -> Running[PieceT]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for request_id in self._collectors:
            self._engine.cancel(request_id)
