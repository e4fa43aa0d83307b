"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ....sampling_defaults import chat_defaults
from ...failures import ApiError, Dialect, error_body
from ...listener import sse
from ...listener.replies import Events, Reply
from ...listener.request_context import RequestContext
from ...worker.engine_client import EngineClient
from ...worker.params import set_fields
from ...worker.protocol import CallDelta, Chat, Delta, Finished, Logprob, ModelInfo
from ..answers import Answering, Message, new_id
from ..fields import Count, FormFields, SharedFields, form_of, shown_tier

__all__ = ["ChatBody", "StreamOptions", "checked_messages", "complete", "options_of"]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``include_usage``: the last event but ``[DONE]`` has the usage.  Nothing is ever put in to hide sizes."""

    include_usage: bool = False
    include_obfuscation: bool = False

    def __post_init__(self) -> None:
        if self.include_obfuscation:
            raise ValueError("include_obfuscation must be false, as it is not supported, but is true")


class ChatBody(SharedFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields, and those of Quire's sampling and templates."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream_options: StreamOptions | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    reasoning_budget: Count | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: FormFields | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] = {}
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        **SharedFields.refused,
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "functions": ([],),
        "function_call": ("none",),
        "verbosity": ("medium",),
        "continue_final_message": (False,),
        "add_generation_prompt": (True,),
    }

    def usual(self, info: ModelInfo, given: dict[str, Any]) -> dict[str, Any]:
        """What holds where nothing is said."""
        return chat_defaults(info.advised, given)

    def limit(self) -> int | None:
        """Tokens to generate at most."""
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            text = "max_tokens must be max_completion_tokens or left out but is another number"
            raise ApiError(400, "invalid_value", text, "max_tokens")
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def work(self, engine: EngineClient, context: RequestContext[ChatBody]) -> Chat:
        """What the engine is asked."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(
                400, "invalid_value", "top_logprobs must come with logprobs but comes without", "top_logprobs"
            )
        n_logprobs = (self.top_logprobs or 0) if self.logprobs else None
        form = form_of(self.response_format, self.structured_outputs)
        params = self.params(engine.info, self.limit(), logprobs=n_logprobs, structured_outputs=form)
        options = options_of(self.tools, self.tool_choice, self.reasoning_effort, self.chat_template_kwargs)
        if not self.parallel_tool_calls:
            options["parallel_tool_calls"] = False
        if self.reasoning_budget is not None:
            options["reasoning_budget"] = self.reasoning_budget
        return Chat(
            0, checked_messages(self.messages, context), options, set_fields(params), self.hints(context.caller)
        )


_MESSAGE_KEYS = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking")
)
# What clients send back of an answer, with the values that say nothing.
_EMPTY: dict[str, tuple[object, ...]] = {"refusal": ("",), "annotations": ([],), "audio": (), "function_call": ()}


def checked_messages(messages: list[dict[str, Any]], context: RequestContext[Any]) -> list[dict[str, Any]]:
    """The messages by roles that templates know: OpenAI's newer name of the system is ``developer``.

    ApiError 400 naming a field that is not known, unless the server is lenient: some template may read it.
    """
    for i, message in enumerate(messages):
        for name, value in message.items():
            if name in _MESSAGE_KEYS or value is None or value in _EMPTY.get(name, ()):
                continue
            at = f"messages[{i}].{name[:64]}"
            if name in _EMPTY:
                raise ApiError(400, "unsupported_parameter", f"{at} must be left out but is set", at)
            if not context.service.settings.lenient:
                raise ApiError(400, "unknown_parameter", f"a message's field must be known but {at!r} is not", at)
    return [{**m, "role": "system"} if m.get("role") == "developer" else m for m in messages]


def options_of(
    tools: list[dict[str, Any]], tool_choice: Any, effort: str | None, template_values: dict[str, Any]
) -> dict[str, Any]:
    """Fields of ``ChatOptions``."""
    values = dict(template_values)
    if effort == "none":
        values.setdefault("enable_thinking", False)
    elif effort is not None:
        values.setdefault("reasoning_effort", effort)
    options: dict[str, Any] = {"template_values": values}
    if isinstance(tool_choice, dict) and tool_choice.get("type") == "allowed_tools":
        tools, tool_choice = _allowed(tools, tool_choice.get("allowed_tools"))
    if tools:
        options["tools"] = tools
    if tool_choice is not None:
        options["tool_choice"] = tool_choice
    return options


def _allowed(tools: list[dict[str, Any]], given: Any) -> tuple[list[dict[str, Any]], str]:
    """The tools that may be called, and whether one must: only these are shown to the model.  ApiError 400."""
    place = "tool_choice.allowed_tools"
    mode, listed = (given.get("mode"), given.get("tools")) if isinstance(given, dict) else (None, None)
    if mode not in ("auto", "required"):
        raise ApiError(400, "invalid_value", f"{place}.mode must be auto or required but is not", f"{place}.mode")
    names = [_name_of(tool) for tool in listed] if isinstance(listed, list) else []
    known = {_name_of(tool) for tool in tools} - {None}
    if not names or not known.issuperset(names):
        text = f"{place}.tools must name functions of tools but does not"
        raise ApiError(400, "invalid_value", text, f"{place}.tools")
    return [tool for tool in tools if _name_of(tool) in names], mode


def _name_of(tool: Any) -> str | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


async def complete(context: RequestContext[ChatBody]) -> Reply | Events:
    """Answer a conversation."""
    body = context.body
    engine = context.engine(body.model)
    work = await context.prepared(body.work, engine, context)
    answering = Answering(context, context.submit(engine, work))
    await answering.start()
    shape = _Shape(body, body.model or context.model)
    if body.stream:
        return Events(shape.pieces(answering), lambda error: sse.event(error_body(error, Dialect.OPENAI)))
    return Reply.json(await shape.whole(answering))


class _Shape:
    """OpenAI's shapes of one answer."""

    def __init__(self, body: ChatBody, model: str) -> None:
        self._body = body
        self._head = {
            "id": f"chatcmpl-{new_id()}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            **shown_tier(body.service_tier),
        }

    async def whole(self, answering: Answering) -> dict[str, Any]:
        """The answer as one object."""
        parts = [Message(openai_logprob) for _ in range(self._body.n)]
        async for delta in answering.deltas():
            parts[delta.choice].add(delta)
        choices = [
            {
                "index": i,
                "message": _openai_message(part),
                "logprobs": {"content": part.logprobs, "refusal": None} if self._body.logprobs else None,
                "finish_reason": answering.ends[i].reason,
            }
            for i, part in enumerate(parts)
        ]
        return {**self._head, "choices": choices, "usage": answering.usage.openai()}

    async def pieces(self, answering: Answering) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        head = {**self._head, "object": "chat.completion.chunk"}
        wants_usage = self._body.stream_options is not None and self._body.stream_options.include_usage
        usage = {"usage": None} if wants_usage else {}

        def chunk(choice: int, delta: dict[str, Any], reason: str | None, logprobs: Any = None) -> bytes:
            one = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return sse.event({**head, "choices": [one], **usage})

        yield b"".join(chunk(i, {"role": "assistant", "content": ""}, None) for i in range(self._body.n))
        async for batch in answering.batches():
            pieces = []
            for event in batch:
                if isinstance(event, Finished):
                    pieces.append(chunk(event.choice, {}, event.reason))
                elif (new := delta_fields(event)) or event.logprobs:
                    shown = {"content": [openai_logprob(token) for token in event.logprobs], "refusal": None}
                    pieces.append(chunk(event.choice, new, None, shown if event.logprobs else None))
            yield b"".join(pieces) if batch else sse.PING
        if wants_usage:
            yield sse.event({**head, "choices": [], "usage": answering.usage.openai()})
        yield sse.DONE


def delta_fields(delta: Delta) -> dict[str, Any]:
    """What is new, by OpenAI's names."""
    new: dict[str, Any] = {}
    if delta.content:
        new["content"] = delta.content
    if delta.reasoning:
        new["reasoning_content"] = delta.reasoning
    if delta.calls:
        new["tool_calls"] = [_call_fields(call) for call in delta.calls]
    return new


def _call_fields(call: CallDelta) -> dict[str, Any]:
    fields: dict[str, Any] = {"index": call.index, "function": {"arguments": call.arguments}}
    if call.id is not None:
        fields |= {"id": call.id, "type": "function"}
    if call.name is not None:
        fields["function"]["name"] = call.name
    return fields


def openai_logprob(token: Logprob) -> dict[str, Any]:
    """A token's log-probability as chats have it."""
    top = [{"token": _text(shown), "logprob": p, "bytes": list(shown)} for _, shown, p in token.top]
    return {"token": _text(token.shown), "logprob": token.logprob, "bytes": list(token.shown), "top_logprobs": top}


def _text(shown: bytes) -> str:
    return shown.decode("utf-8", "replace")


def _openai_message(parts: Message) -> dict[str, Any]:
    content = "".join(parts.content)
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not parts.calls else None}
    if reasoning := "".join(parts.reasoning):
        message["reasoning_content"] = reasoning
    if parts.calls:
        message["tool_calls"] = [parts.calls[i] for i in sorted(parts.calls)]
    return message
