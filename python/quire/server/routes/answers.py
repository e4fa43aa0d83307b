"""The stream of one answer, as every route reads it, with its counts, times and log entry."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from ...chat.tools.json_calls import started_object
from ...chat.tools.scanner import Malformed
from ..failures import ApiError
from ..listener import sse
from ..listener.request_context import RequestContext
from ..worker.engine_client import Stream, StreamEvent
from ..worker.protocol import Delta, Finished, Logprob
from .truncation import explain_length

__all__ = ["Message", "ResponseStream", "Usage", "arguments_object", "new_id"]

# Tokens that an answer without a limit counts as in the queue.  Most answers are shorter, and with longer estimates a
# few such answers would fill the queue.
_USUAL_ANSWER = 4096


@dataclass
class Usage:
    """Token counts of a request: its prompt, the cached part of it, and all its choices."""

    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    n_drafted: int = 0  # drafted tokens that were computed
    n_accepted: int = 0  # drafted tokens that were accepted
    n_host: int = 0  # cached tokens that came from memory of the host
    n_disk: int = 0  # and from disk

    def openai(self) -> dict[str, Any]:
        """Return the counts in OpenAI's format."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.n_prompt,
            "completion_tokens": self.n_generated,
            "total_tokens": self.n_prompt + self.n_generated,
            "prompt_tokens_details": {"cached_tokens": self.n_cached, **self._tiers()},
        }
        if self.n_drafted:
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": self.n_accepted,
                "rejected_prediction_tokens": self.n_drafted - self.n_accepted,
            }
        return usage

    def _tiers(self) -> dict[str, int]:
        found = {"x-quire-host-tokens": self.n_host, "x-quire-disk-tokens": self.n_disk}
        return {name: n for name, n in found.items() if n}

    def add(self, other: Usage) -> None:
        """Add another request's tokens."""
        self.n_prompt += other.n_prompt
        self.n_cached += other.n_cached
        self.n_generated += other.n_generated
        self.n_drafted += other.n_drafted
        self.n_accepted += other.n_accepted
        self.n_host += other.n_host
        self.n_disk += other.n_disk


class Turn(Protocol):
    """A turn of a session, which keeps the answer."""

    def add(self, delta: Delta) -> None:
        """Take a piece of the answer."""

    async def commit(self, answer: ResponseStream) -> None:
        """Take note that the answer is complete."""


@dataclass
class ResponseStream:
    """An answer in progress: its events in batches, its usage, and the ends of its choices."""

    context: RequestContext[Any]
    stream: Stream
    usage: Usage = field(default_factory=Usage)
    ends: dict[int, Finished] = field(default_factory=dict)
    first_token_s: float | None = None
    n_seen: dict[int, int] = field(default_factory=dict)  # tokens received of each choice
    advice: str = "shorten it"  # shown if the prompt is too long
    turn: Turn | None = None

    async def start(self) -> None:
        """Wait until the engine has accepted the request, so that an error still gets a status of its own."""
        try:
            started = await self.stream.start()
        except ApiError as error:
            explain_length(error, self.context, self.advice)
            raise
        self.context.closing.callback(self._leave)
        self.usage.n_prompt = started.n_prompt_tokens
        self.context.note(started.ignored)
        n_new = self.stream.n_most_new
        room = self.stream.n_ctx - started.n_prompt_tokens
        n_new = min(room, _USUAL_ANSWER if n_new is None else n_new)
        self.context.ticket.know(started.n_prompt_tokens + n_new * self.stream.n_choices)

    async def batches(self) -> AsyncIterator[Sequence[StreamEvent]]:
        """Yield the events of the answer in batches."""
        while (batch := await self.stream.batch()) is not None:
            n_tokens = 0
            for event in batch:
                if isinstance(event, Finished):
                    self._finished(event)
                elif event.n_read is None:
                    n_tokens += len(event.token_ids)
                    if self.turn is not None:
                        self.turn.add(event)
                    self.n_seen[event.choice] = self.n_seen.get(event.choice, 0) + len(event.token_ids)
                    if self.first_token_s is None:
                        self._first_token()
            if n_tokens:
                self.context.service.recent.add_tokens(n_tokens)
            if self.turn is not None and len(self.ends) == self.stream.n_choices:
                await self.turn.commit(self)
                self.turn = None
            yield batch

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yield the pieces of the answer one by one."""
        async for batch in self.batches():
            for event in batch:
                if isinstance(event, Delta):
                    yield event

    def _leave(self) -> None:
        """Count the tokens of unfinished choices, after the client left or a limit passed."""
        open_choices = [choice for choice in range(self.stream.n_choices) if choice not in self.ends]
        if not open_choices or not (self.n_seen or self.stream.admitted):
            return
        n_generated = [self.n_seen.get(choice, 0) for choice in open_choices]
        n_generated[0] += self.stream.n_unread_tokens
        is_new_prompt = 0 not in self.ends
        n_prompt = self.usage.n_prompt if is_new_prompt else 0
        self.context.ticket.charge(n_prompt + sum(n_generated))
        self.context.service.metrics.left(n_prompt if is_new_prompt else None, self.stream.n_cached, n_generated)
        logged = self.context.state.usage
        logged["prompt_tokens"] = logged.get("prompt_tokens", 0) + n_prompt
        logged["generated_tokens"] = logged.get("generated_tokens", 0) + sum(n_generated)

    def _first_token(self) -> None:
        self.first_token_s = time.monotonic() - self.context.arrived_s
        self.context.service.recent.add_first_token(self.first_token_s)

    def _finished(self, end: Finished) -> None:
        if end.reason == "cancelled":
            text = "the request was aborted: the model was paused before the answer was complete"
            raise ApiError(503, "request_aborted", text, retry_after_s=1)
        self.ends[end.choice] = end
        n_new = end.n_generated_tokens + (end.n_prompt_tokens if end.choice == 0 else 0)
        self.context.ticket.charge(n_new)
        usage = self.usage
        usage.n_prompt = end.n_prompt_tokens
        usage.n_cached = max(usage.n_cached, end.n_cached_tokens)
        usage.n_host = max(usage.n_host, end.n_host_tokens)
        usage.n_disk = max(usage.n_disk, end.n_disk_tokens)
        usage.n_generated += end.n_generated_tokens
        usage.n_drafted += end.n_drafted_tokens
        usage.n_accepted += end.n_accepted_tokens
        self.context.service.metrics.finished(end, self.first_token_s, time.monotonic() - self.context.arrived_s)
        logged = self.context.state.usage
        n_prompt_tokens = end.n_prompt_tokens if end.choice == 0 else 0
        logged["prompt_tokens"] = logged.get("prompt_tokens", 0) + n_prompt_tokens
        logged["generated_tokens"] = logged.get("generated_tokens", 0) + end.n_generated_tokens
        if self.first_token_s is not None:
            logged.setdefault("first_token_seconds", round(self.first_token_s, 4))


class Message:
    """Joins the deltas of a chat choice.  ``logprob`` formats log-probabilities, if they are wanted."""

    def __init__(self, logprob: Callable[[Logprob], dict[str, Any]] | None = None) -> None:
        self._logprob = logprob
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.logprobs: list[msgspec.Raw] = []

    def add(self, delta: Delta) -> None:
        """Add a delta."""
        self.content.append(delta.content)
        self.reasoning.append(delta.reasoning)
        if self._logprob is not None:
            self.logprobs += [sse.raw(self._logprob(token)) for token in delta.logprobs]
        for call in delta.calls:
            empty = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            self.calls.setdefault(call.index, empty)["function"]["arguments"] += call.arguments

    def openai(self) -> dict[str, Any]:
        """Return the message in OpenAI's format."""
        content = "".join(self.content)
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not self.calls else None}
        if reasoning := "".join(self.reasoning):
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = [self.calls[i] for i in sorted(self.calls)]
        return message


def arguments_object(text: str) -> dict[str, Any]:
    """Return a call's arguments as an object.

    Of arguments cut off by ``max_tokens``, only the complete members are kept.  Anything that is not an object becomes
    the member ``arguments``.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        if not text.startswith("{"):
            return {"arguments": text}
        try:
            return {key: json.loads(part) for key, part in started_object(text).members.items()}
        except Malformed:
            return {"arguments": text}
    return value if isinstance(value, dict) else {"arguments": value}


def new_id() -> str:
    """Return the random part of an answer's id."""
    return os.urandom(12).hex()
