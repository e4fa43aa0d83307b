"""The routes' view of a model: an engine that takes work and sends messages, wherever it runs."""

from __future__ import annotations

import asyncio
import enum
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ...errors import LoadError
from ..failures import ApiError, api_error
from ..time_limits import TimeLimits
from .protocol import (
    Admitted,
    Answer,
    Ask,
    Beat,
    Delta,
    Embed,
    Failed,
    Finished,
    FromEngine,
    ModelInfo,
    Score,
    Started,
    Tag,
    Work,
)

__all__ = ["EngineClient", "EngineState", "OpeningLost", "Stream", "StreamEvent", "Streams"]

StreamEvent = Delta | Finished

# An answer is paused when this much of it is unread.
_MOST_UNREAD_BYTES = 64 << 10
_MESSAGE_BYTES, _LOGPROB_BYTES, _TOP_BYTES = 64, 64, 24  # least size of a message and its parts


class OpeningLost(LoadError):
    """The worker that was to load a model ended without an error message; a retry may succeed."""


class EngineState(enum.Enum):
    """The states of an engine's life cycle."""

    LOADING = "loading"
    READY = "ready"
    HUNG = "not answering"
    RESTARTING = "restarting"
    FAILED = "failed"  # it was loaded before, and its file can no longer be loaded
    STOPPED = "stopped"


class EngineClient(Protocol):
    """One model that answers requests, in this process or in another one."""

    @property
    def state(self) -> EngineState: ...
    @property
    def info(self) -> ModelInfo:
        """The model's properties; ApiError 503 before it was first loaded."""

    @property
    def beat(self) -> Beat | None:
        """The latest heartbeat."""

    @property
    def n_active(self) -> int:
        """Number of requests in flight."""

    def keep_adapters(self, info: Mapping[str, Any], kept: list[tuple[str, str, float]]) -> None:
        """Take note of changed adapters: fields of ``ModelInfo``, and ``Open.adapters`` to load them again."""

    def keep_controls(self, paused: bool, asleep: list[str]) -> None:
        """Take note of a pause, and of the parts that sleep, for when the model has to be loaded again."""

    def submit(self, work: Work) -> Stream:
        """Submit work, whose ``id`` is set here.  ApiError 503 while the engine is unavailable."""

    def reload_from(self, path: str) -> None:
        """Load this file or folder if the model has to be loaded again."""

    async def start(self) -> None:
        """Load the model.  Raises a QuireError if that fails."""

    async def stop(self) -> None:
        """Free all memory; requests in flight fail."""


class Stream:
    """The messages of one request, for one reader on the event loop.

    ``n_most_new`` is the request's token limit for each of its ``n_choices``, ``n_ctx`` the model's context, and
    ``n_unread_bytes`` the size of messages that wait for the reader.  An unread answer is paused, so that a slow client
    uses neither a place in the batch nor memory here.
    """

    def __init__(self, streams: Streams, id_: int, n_choices: int, n_most_new: int | None) -> None:
        self._streams = streams
        self._id = id_
        self._n_unfinished = self.n_choices = n_choices
        self.n_most_new = n_most_new
        self.n_ctx = 0
        self._waiting: list[FromEngine] = []
        self._wake: asyncio.Future[None] | None = None
        self.submitted_s = time.monotonic()
        self.started: Started | None = None
        self.admitted_s = self.submitted_s
        self.admitted = False
        self.n_cached = 0
        self.limits = TimeLimits()
        self.n_unread_bytes = 0
        self.paused = False

    def put(self, message: FromEngine) -> None:
        """Add a message; called on the event loop's thread."""
        if isinstance(message, Admitted):
            self.limits = self.limits.without_queue()
            self.admitted, self.admitted_s, self.n_cached = True, time.monotonic(), message.n_cached_tokens
            return
        if isinstance(message, Delta) and message.n_read is None:
            self.limits = self.limits.without_first_token()
        self._waiting.append(message)
        self.n_unread_bytes += _size_of(message)
        if self._wake is None:  # the reader is still busy with earlier messages
            self._pause(self.n_unread_bytes > _MOST_UNREAD_BYTES)
        elif not self._wake.done():
            self._wake.set_result(None)

    def _pause(self, paused: bool) -> None:
        if paused != self.paused and self._n_unfinished:
            self.paused = paused
            self._streams.send_pause(self._id, paused)

    @property
    def n_unread_tokens(self) -> int:
        """Tokens of the answer that wait for the reader."""
        return sum(len(message.token_ids) for message in self._waiting if isinstance(message, Delta))

    async def start(self) -> Started:
        """Wait until the engine has accepted the request.  ApiError if it rejects it."""
        await self._wait()
        first = self._waiting.pop(0)
        if isinstance(first, Failed):
            raise self._failed(first)
        assert isinstance(first, Started)
        self.started = first
        return first

    async def answer(self) -> Any:
        """Wait for the answer to a question.  ApiError if it is rejected."""
        await self._wait()
        first = self._waiting.pop(0)
        self._n_unfinished = 0
        if isinstance(first, Failed):
            raise self._failed(first)
        assert isinstance(first, Answer)
        return first.value

    async def batch(self) -> Sequence[StreamEvent] | None:
        """Return all new events; None after the end.  ApiError on failure."""
        if self._n_unfinished == 0 and not self._waiting:
            return None
        await self._wait()
        taken, self._waiting = self._waiting, []
        self.n_unread_bytes = 0
        self._pause(paused=False)
        events: list[StreamEvent] = []
        for message in taken:
            if isinstance(message, Failed):
                # Deliver the events before the failure first.
                if events:
                    self._waiting = [message]
                    return events
                raise self._failed(message)
            if isinstance(message, Finished):
                self._n_unfinished -= 1
            assert isinstance(message, Delta | Finished)
            events.append(message)
        return events

    def close(self) -> None:
        """Stop reading, which cancels a request that has not ended."""
        self._streams.close(self._id, cancel=self._n_unfinished > 0)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed(self, message: Failed) -> ApiError:
        self._n_unfinished = 0
        return api_error(message.kind, message.message, message.retry_after_s)

    async def _wait(self) -> None:
        """Wait for a message.  ApiError when a time limit passes."""
        while not self._waiting:
            now, at_s = time.monotonic(), self.limits.next_s
            if at_s <= now:
                raise self.limits.passed()
            self._wake = asyncio.get_running_loop().create_future()
            timer = None
            if at_s < math.inf:
                timer = asyncio.get_running_loop().call_later(at_s - now, _wake, self._wake)
            try:
                await self._wake
            finally:
                self._wake = None
                if timer is not None:
                    timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _size_of(message: FromEngine) -> int:
    """Return the approximate bytes of a message."""
    if not isinstance(message, Delta):
        return _MESSAGE_BYTES
    n = _MESSAGE_BYTES + len(message.content) + len(message.reasoning)
    n += sum(len(call.arguments) for call in message.calls)
    for logprobs in (message.logprobs, message.prompt_logprobs):
        n += sum(_LOGPROB_BYTES + _TOP_BYTES * len(logprob.top) for logprob in logprobs)
    return n


class Streams(ABC):
    """The requests in flight of one engine, by id."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self._work: dict[int, Work] = {}
        self._last_id = 0

    @property
    def n_active(self) -> int:
        """Number of requests in flight."""
        return len(self._streams)

    def open(self, work: Work) -> tuple[Work, Stream]:
        """Create a stream for new work; return it with the work and its id."""
        self._last_id += 1
        made = msgspec.structs.replace(work, id=self._last_id)
        params = {} if isinstance(work, Ask | Embed | Score | Tag) else work.params
        made_stream = Stream(self, self._last_id, int(params.get("n", 1)), params.get("max_tokens"))
        stream = self._streams[self._last_id] = made_stream
        self._work[self._last_id] = made
        return made, stream

    def dispatch(self, messages: Sequence[FromEngine]) -> None:
        """Hand messages to their readers; messages of closed requests are dropped."""
        streams = self._streams
        for message in messages:
            if isinstance(message, Started | Admitted | Delta | Finished | Failed | Answer):
                stream = streams.get(message.id)
                if stream is not None:
                    stream.put(message)

    def close(self, id_: int, cancel: bool) -> None:
        """Remove a request; ``cancel`` tells the engine, because it has not ended."""
        if self._streams.pop(id_, None) is None:
            return
        del self._work[id_]
        if cancel:
            self.send_cancel(id_)

    @abstractmethod
    def send_cancel(self, id_: int) -> None:
        """Tell the engine to cancel a request."""

    @abstractmethod
    def send_pause(self, id_: int, paused: bool) -> None:
        """Tell the engine that a request's answer is no longer being read, or is being read again."""

    def fail_all(self, kind: str, message: str) -> list[Work]:
        """End every request with a failure; return their work."""
        for id_, stream in self._streams.items():
            stream.put(Failed(id_, kind, message))
        return list(self._work.values())
