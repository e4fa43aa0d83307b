"""Encode the events of a request as messages of the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...engine.engine import EngineRequest, Failure
from . import protocol as wire
from .predict_limit import PredictLimit

if TYPE_CHECKING:
    from ..._native.engine import Event, SampledToken
    from ...engine.requests.chat import ChatCollector

__all__ = ["Emit", "EventEncoder", "WorkerContext"]

Emit: TypeAlias = Callable[[Sequence[wire.FromEngine]], None]
_LOGPROBS_TOGETHER = 256


@dataclass(frozen=True)
class WorkerContext:
    """State shared by the requests of a worker: where messages go, and how a request is ended or cancelled."""

    emit: Emit
    end: Callable[[int, Sequence[wire.FromEngine]], None]  # sends the last messages of a request
    is_running: Callable[[int], bool]
    cancel: Callable[[int], None]  # takes the decoder's id
    shown: Sequence[bytes]  # bytes of each token

    def logprobs(self, tokens: Sequence[SampledToken]) -> list[wire.Logprob]:
        """Return tokens with their alternatives, as bytes."""
        shown = self.shown
        return [
            wire.Logprob(token.id, shown[token.id], token.logprob, [(id_, shown[id_], p) for id_, p in token.top])
            for token in tokens
        ]


class EventEncoder:
    """Turns the events of one request into messages."""

    def __init__(self, id_: int, request: EngineRequest, chat: ChatCollector | None, context: WorkerContext) -> None:
        self._context = context
        self._id = id_
        self._n_unfinished = request.n
        self._n_prompt_tokens = len(request.token_ids)
        self._chat = chat
        self._reasons: dict[int, str | None] = {}
        params = request.params
        assert params is not None
        self._logprobs = params.logprobs is not None
        # Events may arrive before the thread that submitted the request has announced it.
        self._lock = threading.Lock()
        self._early: list[Event | Failure] | None = []
        self.wants_progress = False
        self._predict_limit: PredictLimit | None = None
        self.native_id: int | None = None

    def follow(self, asked: wire.Generate) -> None:
        """Apply the request's wishes: progress messages, and a time limit."""
        self.wants_progress = asked.wants_progress
        if asked.predict_s is not None:
            self._predict_limit = PredictLimit(asked.predict_s, self._n_unfinished)

    def announce(self, prompt_ids: list[int] | None, ignored: Sequence[str] = ()) -> None:
        """Announce that the request was accepted, then send the events that arrived meanwhile."""
        with self._lock:
            early, self._early = self._early, None
            self._context.emit([wire.Started(self._id, self._n_prompt_tokens, prompt_ids, list(ignored))])
            if early:
                self._send(early)

    def deliver(self, items: Sequence[Event | Failure]) -> None:
        """Handle events of the request."""
        with self._lock:
            if self._early is not None:
                self._early += items
            else:
                self._send(items)

    def _send(self, items: Sequence[Event | Failure]) -> None:
        messages: list[wire.FromEngine] = []
        context = self._context
        for item in items:
            if isinstance(item, Failure):
                context.end(self._id, [*messages, wire.Failed(self._id, type(item.error).__name__, str(item.error))])
                return
            if item.kind == "admitted":
                messages.append(wire.Admitted(self._id, item.n_cached_tokens))
            if item.kind in ("admitted", "progress"):
                if self.wants_progress:
                    n_read = item.n_cached_tokens if item.kind == "admitted" else item.n_read_tokens
                    messages.append(wire.Delta(self._id, 0, "", [], n_read=n_read))
                continue
            messages += self._of_prompt(item)
            if self._takes(item) and (delta := self._delta(item)) is not None:
                messages.append(delta)
            if item.kind == "finish":
                self._n_unfinished -= 1
                messages.append(self._finished(item))
        if self._n_unfinished == 0:
            context.end(self._id, messages)
        elif messages and context.is_running(self._id):
            context.emit(messages)

    def _takes(self, event: Event) -> bool:
        """Return True if the time limit still admits the event.  Cancels the request once all its choices are over."""
        limit = self._predict_limit
        if limit is None or not event.token_ids:
            return True
        taken = limit.takes(event.choice, event.text, len(event.token_ids), time.monotonic())
        if taken and limit.all_over and self.native_id is not None:
            self._context.cancel(self.native_id)
        return taken

    def _delta(self, event: Event) -> wire.Delta | None:
        logprobs = self._context.logprobs(event.logprobs) if self._logprobs else []
        token_ids = list(event.token_ids)
        if self._chat is None:
            if not token_ids and not event.text:
                return None
            return wire.Delta(self._id, event.choice, event.text, token_ids, "", [], logprobs)
        delta = self._chat.add(event)
        self._reasons[event.choice] = delta.finish_reason
        if not token_ids and not delta.content and not delta.reasoning_content and not delta.tool_calls:
            return None
        calls = [wire.CallDelta(call.index, call.id, call.name, call.arguments) for call in delta.tool_calls]
        return wire.Delta(self._id, event.choice, delta.content, token_ids, delta.reasoning_content, calls, logprobs)

    def _of_prompt(self, event: Event) -> list[wire.Delta]:
        """Return the prompt's log-probabilities, in parts small enough not to block the listener."""
        shown = self._context.logprobs(event.prompt_logprobs)
        parts = [shown[at : at + _LOGPROBS_TOGETHER] for at in range(0, len(shown), _LOGPROBS_TOGETHER)]
        return [wire.Delta(self._id, event.choice, "", [], prompt_logprobs=part) for part in parts]

    def _finished(self, event: Event) -> wire.Finished:
        reason = event.finish_reason if self._chat is None else self._reasons[event.choice]
        assert reason is not None
        n_new = event.n_generated_tokens
        stop_reason = event.stop_reason
        if self._predict_limit is not None and (n_taken := self._predict_limit.n_taken(event.choice)) is not None:
            reason, stop_reason, n_new = "length", None, n_taken
        times = event.timings
        return wire.Finished(
            id=self._id,
            choice=event.choice,
            reason=reason,
            stop_reason=stop_reason,
            n_prompt_tokens=event.n_prompt_tokens,
            n_cached_tokens=event.n_cached_tokens,
            n_generated_tokens=n_new,
            queue_s=times.queue_s,
            prefill_s=times.prefill_s,
            decode_s=times.decode_s,
            n_drafted_tokens=event.n_drafted_tokens,
            n_accepted_tokens=event.n_accepted_tokens,
            n_host_tokens=event.n_host_tokens,
            n_disk_tokens=event.n_disk_tokens,
        )
