"""Ollama's ``/api/generate`` and ``/api/chat``."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import msgspec

from ...failures import ApiError, Dialect, error_body
from ...listener import sse
from ...listener.bodies import to_wire
from ...listener.replies import Events, Reply
from ...listener.request_context import RequestContext
from ...worker.engine_client import EngineClient
from ...worker.params import set_fields
from ...worker.protocol import Ask, CallDelta, Chat, Delta, Finished, Generate, Logprob, Work
from ..answers import ResponseStream, arguments_object
from ..fields import hints_of
from ..known_fields import functions_of
from ..models import check_may_close
from ..sampling_fields import check_alternatives
from ..text_parts import is_prefill
from .fields import Answered, ChatBody, GenerateBody, Options, keep_alive_s, name_of
from .memory import numbers_of

__all__ = ["chat", "generate", "moment"]

LINES = b"application/x-ndjson"


async def generate(context: RequestContext[GenerateBody]) -> Reply | Events:
    """Answer a prompt, continue it (``raw``), or fill the gap before ``suffix``."""
    body = context.body
    engine, given = await _checked(context)
    if not body.prompt and not body.suffix:
        return _loaded(context, {"response": ""})
    params = await context.prepared(_params, context, engine, given)
    hints = hints_of(context.caller)
    messages: list[dict[str, Any]] = []
    work: Work
    if body.suffix:
        values = {"prefix": body.prompt, "suffix": body.suffix, "beginning": "", "extra": []}
        prompt = (await context.ask(engine, Ask(0, "infill", values)))["tokens"]
        work = Generate(0, prompt, params, hints)
    elif body.raw:
        limit = given.prompt_limit(engine.info) if body.truncate else None
        mark = context.service.media_marker
        work = Generate(
            0, mark * len(body.images) + body.prompt, params, hints, max_prompt_tokens=limit,
            keep_tokens=max(given.num_keep, 0), media=body.images, mark=mark,
        )  # fmt: skip
    else:
        messages = await context.prepared(body.conversation)
        work = Chat(0, messages, _chat_options(context, engine, given), params, hints)
    if messages and body.images:  # the tokens that the reply returns for a next prompt cannot hold them
        messages = [*messages[:-1], {"role": "user", "content": body.prompt}]
    return await _answer(context, engine, work, _GenerateShape(body.model, messages))


async def chat(context: RequestContext[ChatBody]) -> Reply | Events:
    """Answer a conversation."""
    body = context.body
    engine, given = await _checked(context)
    if not body.messages:
        return _loaded(context, {"message": {"role": "assistant", "content": ""}})
    options = _chat_options(context, engine, given)
    if tools := functions_of(body.tools, context):
        options["tools"] = tools
    params = await context.prepared(_params, context, engine, given)
    messages = await context.prepared(body.conversation, context)
    if is_prefill(messages):
        options["continue_final_message"] = True
    work = Chat(0, messages, options, params, hints_of(context.caller))
    return await _answer(context, engine, work, _ChatShape(body.model))


def _chat_options(context: RequestContext[Any], engine: EngineClient, given: Options) -> dict[str, Any]:
    """Return fields of ``ChatOptions``."""
    context.said_by |= {"enable_thinking": "think", "reasoning_effort": "think"}
    options: dict[str, Any] = {"template_values": context.body.template_values()}
    if context.body.truncate:
        options |= {"max_prompt_tokens": given.prompt_limit(engine.info), "cut_prompt": True}
        options["keep_tokens"] = max(given.num_keep, 0)
    return options if context.service.settings.refuses_unknown else {**options, "lenient": True}


async def _checked(context: RequestContext[Any]) -> tuple[EngineClient, Options]:
    """Return the engine, with its context grown towards ``num_ctx`` if possible, and the options.

    ApiError for an invalid body or an unknown model.
    """
    body: Answered = context.body
    await context.prepared(body.check)
    context.keep(keep_alive_s(body.keep_alive))
    try:
        options, ignored = to_wire(body.options, Options, context.service.settings.refuses_unknown)
    except ApiError as error:
        error.param = f"options.{error.param}" if error.param else "options"
        raise
    context.state.ignored += ignored
    if options.num_ctx is not None:
        await _grow(context, options.num_ctx)
    return context.engine(name_of(body.model)), options


async def _grow(context: RequestContext[Any], n_ctx: int) -> None:
    """Grow the model's context if possible; if it stays shorter, the reply says so."""
    try:
        await context.needs_context(min(n_ctx, context.engine(None).info.n_ctx_train))
    except ApiError as error:
        if error.code not in ("context_too_large", "model_busy"):
            raise
    if context.engine(None).info.n_ctx < n_ctx:
        context.ignore("options.num_ctx")


def _params(context: RequestContext[Any], engine: EngineClient, options: Options) -> dict[str, Any]:
    body: Answered = context.body
    check_alternatives(context, top_logprobs=body.top_logprobs)
    params = options.params(engine.info, logprobs=body.n_logprobs(), structured_outputs=body.form())
    return set_fields(params)


def moment(seconds: float | None = None) -> str:
    """Format a time (by default now) like Ollama."""
    at = datetime.now(timezone.utc) if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
    return at.isoformat().replace("+00:00", "Z")


def _loaded(context: RequestContext[Any], empty: dict[str, Any]) -> Reply:
    """Answer a request without a prompt, which only loads or unloads the model."""
    body: Answered = context.body
    is_closing = keep_alive_s(body.keep_alive) == 0
    if is_closing:
        check_may_close(context, context.model)
    reason = "unload" if is_closing else "load"
    answer = {"model": body.model, "created_at": moment(), **empty, "done": True, "done_reason": reason}
    return Reply(sse.line(answer), media_type=LINES) if body.stream else Reply.json(answer)


async def _answer(context: RequestContext[Any], engine: EngineClient, work: Work, shape: _Shape) -> Reply | Events:
    advice = "shorten it" if context.body.truncate else "shorten it, have it cut (truncate)"
    answer = ResponseStream(context, context.submit(engine, work), advice=advice)
    await answer.start()
    if context.body.stream:
        # No pings: lines of JSON have no comments, and a client would read anything as part of the answer.
        return Events(_pieces(answer, shape), lambda error: sse.line(error_body(error, Dialect.OLLAMA)), LINES)
    parts = _Parts()
    async for delta in answer.deltas():
        parts.add(delta)
    return Reply.json(shape.object(parts, end_fields(answer)))


async def _pieces(answer: ResponseStream, shape: _Shape) -> AsyncIterator[bytes]:
    calls = _Parts()
    async for batch in answer.batches():
        pieces = []
        for event in batch:
            if isinstance(event, Finished):
                continue
            # Send a call only when it is complete, because its arguments are an object.
            calls.add_calls(event.calls)
            parts = _Parts([event.content], [event.reasoning], _logprobs(event))
            if event.content or event.reasoning or event.logprobs:
                pieces.append(sse.line(shape.object(parts, {"done": False})))
        if pieces:
            yield b"".join(pieces)
    if calls.calls:
        yield sse.line(shape.object(calls, {"done": False}))
    yield sse.line(shape.object(_Parts(), end_fields(answer)))


def end_fields(answer: ResponseStream) -> dict[str, Any]:
    """Return the fields of the last line; times are in nanoseconds.  A single new token has no time of its own."""
    end = answer.ends[0]
    fields = {
        "done": True,
        "done_reason": "length" if end.reason == "length" else "stop",
        "total_duration": int((time.monotonic() - answer.context.arrived_s) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": end.n_prompt_tokens,
        "prompt_eval_duration": int(end.prefill_s * 1e9),
        "eval_count": end.n_generated_tokens,
    }
    return {**fields, "eval_duration": int(end.decode_s * 1e9)} if end.n_generated_tokens > 1 else fields


@dataclass
class _Parts:
    """Joined parts of an answer."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[msgspec.Raw] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        """Add a delta."""
        self.content.append(delta.content)
        self.reasoning.append(delta.reasoning)
        self.logprobs += _logprobs(delta)
        self.add_calls(delta.calls)

    def add_calls(self, calls: list[CallDelta]) -> None:
        """Add pieces of tool calls."""
        for call in calls:
            empty = {"id": call.id, "name": call.name, "arguments": ""}
            self.calls.setdefault(call.index, empty)["arguments"] += call.arguments


class _Shape(ABC):
    """Builds an answer, or a part of it, in Ollama's format."""

    def __init__(self, model: str) -> None:
        self._model = model

    def object(self, parts: _Parts, more: dict[str, Any]) -> dict[str, Any]:
        """Return the object of a line."""
        shown = {"model": self._model, "created_at": moment(), **self._own(parts), **more}
        if parts.logprobs:
            shown["logprobs"] = parts.logprobs
        return shown

    @abstractmethod
    def _own(self, parts: _Parts) -> dict[str, Any]:
        """Return the fields that only one of the routes has."""


class _GenerateShape(_Shape):
    def __init__(self, model: str, messages: list[dict[str, Any]]) -> None:
        """Store the conversation; the last line of the answer returns it, with the answer, as ``context``."""
        super().__init__(model)
        self._messages = messages
        self._said: list[str] = []

    def object(self, parts: _Parts, more: dict[str, Any]) -> dict[str, Any]:
        shown = super().object(parts, more)
        self._said += parts.content
        if more["done"] and self._messages:
            turn = {"role": "assistant", "content": "".join(self._said)}
            if numbers := numbers_of([*self._messages, turn]):
                shown["context"] = numbers
        return shown

    def _own(self, parts: _Parts) -> dict[str, Any]:
        shown = {"response": "".join(parts.content)}
        if reasoning := "".join(parts.reasoning):
            shown["thinking"] = reasoning
        return shown


class _ChatShape(_Shape):
    def _own(self, parts: _Parts) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(parts.content)}
        if reasoning := "".join(parts.reasoning):
            message["thinking"] = reasoning
        if parts.calls:
            message["tool_calls"] = [_call(index, call) for index, call in sorted(parts.calls.items())]
        return {"message": message}


def _call(index: int, call: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": call["id"],
        "function": {"index": index, "name": call["name"], "arguments": arguments_object(call["arguments"])},
    }


def _logprobs(delta: Delta) -> list[msgspec.Raw]:
    return [sse.raw(_logprob(token)) for token in delta.logprobs]


def _logprob(token: Logprob) -> dict[str, Any]:
    top = [_one_logprob(shown, logprob) for _, shown, logprob in token.top]
    return {**_one_logprob(token.shown, token.logprob), "top_logprobs": top}


def _one_logprob(shown: bytes, logprob: float) -> dict[str, Any]:
    return {"token": shown.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(shown)}
