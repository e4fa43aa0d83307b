"""How ``LLM`` waits for its requests."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from .core import LLMCore
from .engine import Failure
from .running import Call, Running, Stream

if TYPE_CHECKING:
    from .._native.engine import Event
    from .requests.chat import ChatResult
    from .requests.tool_turn import RunResult, ToolTurn

__all__ = ["BlockingCore"]

T = TypeVar("T")
PieceT = TypeVar("PieceT")
_Inbox: TypeAlias = "queue.SimpleQueue[Sequence[Event | Failure]]"


class BlockingCore(LLMCore):
    """An open model whose calls block the thread that makes them."""

    def _run(self, prepare: Callable[[], Call[T]]) -> T:
        """Run the requests of a call until all have ended."""
        call = prepare()
        inbox: _Inbox = queue.SimpleQueue()
        requests = call.requests
        with Running[object](self._engine, inbox.put) as running:
            while requests:
                for request, collector in requests:
                    running.submit(request, collector)
                while running:
                    for _ in running.take(inbox.get()):
                        pass
                requests = () if call.more is None else call.more()
        return call.result()

    def _run_turn(self, turn: ToolTurn, chat: Callable[..., ChatResult]) -> RunResult:
        """Run a turn with tools; calls run on a thread of their own, approval is asked for on this one."""
        from ..tools import event_thread

        with turn.toolbox:
            turn.loop.check()
            while True:
                last = chat(turn.loop.messages, turn.params, **turn.keywords, **turn.loop.keywords)
                calls = turn.loop.take(last.message, last.finish_reason)
                if not calls:
                    return turn.result(last)
                event_thread.run(turn.loop.run(calls, turn.loop.allowed(calls)))

    def _stream(self, prepare: Callable[[], Stream[PieceT]]) -> Generator[PieceT, None, None]:
        """Return the pieces of an answer as they come.  The request is prepared at once and submitted when read."""
        return self._pieces(prepare())

    def _pieces(self, stream: Stream[PieceT]) -> Generator[PieceT, None, None]:
        inbox: _Inbox = queue.SimpleQueue()
        with Running[PieceT](self._engine, inbox.put) as running:
            running.submit(stream.request, stream.collector)
            while running:
                yield from running.take(inbox.get())
