"""Anthropic's API: ``POST /v1/messages`` and its token count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, structs

from ...params.sampling import SamplingParams
from ...params.sampling_defaults import chat_defaults
from ...params.structured import StructuredOutputsParams
from ..body_types import Body
from ..failures import ApiError, Dialect, error_body
from ..listener import sse
from ..listener.replies import Events, Reply
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient
from ..worker.params import set_fields
from ..worker.protocol import Ask, Chat, Delta, Finished
from .answers import Message, ResponseStream, arguments_object, new_id
from .anthropic_blocks import (
    Conversation,
    check_blocks_of,
    check_tools,
    refuse,
    tool_choice_of,
    tools_of,
)
from .fields import ConstrainedBody, Count, Name, Stops, Text, Tools, hints_of, stops_of
from .known_fields import leave_out
from .sampling_fields import limits_of, sampling_fields, sampling_of
from .session_turns import begin_turn
from .text_parts import is_prefill, without_billing_line

__all__ = ["CountBody", "MessagesBody", "count", "create"]

_PING = sse.named_event("ping", {"type": "ping"})
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Thinking(Body, kw_only=True, forbid_unknown_fields=True):
    """``enabled`` with a budget, ``adaptive`` (the model decides), or ``disabled``."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = None


class Metadata(Body, kw_only=True, forbid_unknown_fields=True):
    """The user a request is made for; it has no effect."""

    user_id: Annotated[str, Meta(max_length=512)] | None = None


class OutputConfig(Body, kw_only=True, forbid_unknown_fields=True):
    """How much to think, for models with such levels, and the answer's form: ``json_schema`` with ``schema``."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None

    def form(self) -> StructuredOutputsParams | None:
        """Return the form.  ApiError 400 for an unsupported one."""
        if self.format is None:
            return None
        schema = self.format.get("schema")
        if self.format.keys() != {"type", "schema"} or self.format["type"] != "json_schema":
            raise refuse("output_config.format", "expected the type json_schema, a schema and nothing else")
        if not isinstance(schema, dict):
            raise refuse("output_config.format.schema", "expected an object")
        return StructuredOutputsParams(json=schema)


class CountBody(ConstrainedBody, kw_only=True, forbid_unknown_fields=True):
    """A conversation: ``system`` and ``content`` are texts or lists of blocks."""

    model: Name
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    system: Text | Annotated[list[dict[str, Any]], Meta(max_length=256)] | None = None
    tools: Tools = []
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    inner: ClassVar[dict[str, type[Body]]] = {"thinking": Thinking, "output_config": OutputConfig}
    hints: ClassVar[dict[str, tuple[object, ...]]] = {
        **ConstrainedBody.hints,
        # Concerns the client's own context management; everything that it sends is read.
        "context_management": (),
        "service_tier": ("auto", "standard_only"),
        "inference_geo": (),
        "betas": (),
    }
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        "mcp_servers": ([],),
        "container": (),
    }

    def check(self, context: RequestContext[Any]) -> None:
        """Check the fields of messages, blocks and tools.  ApiError 400 for an unknown one."""
        check_blocks_of(self.system, self.messages, context)
        check_tools(self.tools, self.tool_choice, context)

    def conversation(self, context: RequestContext[Any]) -> list[dict[str, Any]]:
        """Return the messages in the format of templates."""
        takes_urls = context.service.media_sources.is_open
        messages = Conversation(partial(leave_out, context), takes_urls=takes_urls).messages(self.system, self.messages)
        if self.system:
            context.said_by["messages[0].role"] = "system.role"
        kept = without_billing_line(messages)
        if kept is not messages:
            context.ignore("x-anthropic-billing-header")
        return kept

    def options(self, context: RequestContext[Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return fields of ``ChatOptions``.  If the messages end with the beginning of an answer, it is continued."""
        options: dict[str, Any] = {} if context.service.settings.refuses_unknown else {"lenient": True}
        context.said_by |= {"enable_thinking": "thinking", "reasoning_budget": "thinking.budget_tokens"}
        context.said_by["reasoning_effort"] = "output_config.effort"
        if is_prefill(messages):
            options["continue_final_message"] = True
        if tools := tools_of(self.tools, context):
            options["tools"] = tools
        if self.tool_choice is not None:
            options |= self._choice(self.tool_choice, tools, context)
        if self.thinking is not None and self.thinking.type == "disabled":
            options["template_values"] = {"enable_thinking": False}
        elif self.thinking is not None and self.thinking.budget_tokens is not None:
            options["reasoning_budget"] = self.thinking.budget_tokens
        if self.output_config is not None and self.output_config.effort is not None:
            options.setdefault("template_values", {})["reasoning_effort"] = self.output_config.effort
        return options

    def _choice(
        self, given: dict[str, Any], tools: list[dict[str, Any]], context: RequestContext[Any]
    ) -> dict[str, Any]:
        """Return fields of ``ChatOptions`` for a tool choice; none if the model cannot call the chosen tool."""
        choice = tool_choice_of(given)
        names = {tool["function"]["name"] for tool in tools}
        named = choice["function"]["name"] if isinstance(choice, dict) else None
        if not tools or (named not in (None, *names) and any(tool.get("name") == named for tool in self.tools)):
            if choice not in ("auto", "none"):
                context.ignore("tool_choice")
            return {}
        alone = {"parallel_tool_calls": False} if given.get("disable_parallel_tool_use") is True else {}
        return {"tool_choice": choice, **alone}


@sampling_fields("anthropic")
class MessagesBody(CountBody, kw_only=True, forbid_unknown_fields=True):
    """A request in Anthropic's format."""

    max_tokens: Annotated[int, limits_of("max_tokens")]
    example: ClassVar[dict[str, object]] = {
        "model": "tiny-chat",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    stop_sequences: Stops = []
    stream: bool = False
    metadata: Metadata | None = None
    session: Name | None = None
    inner: ClassVar[dict[str, type[Body]]] = {**CountBody.inner, "metadata": Metadata}

    def work(self, engine: EngineClient, context: RequestContext[MessagesBody]) -> Chat:
        """Return the engine's work for the request."""
        given = sampling_of(self)
        values = {**chat_defaults(engine.info.advised, given), **given}
        form = self.wanted_form(None if self.output_config is None else self.output_config.form())
        more = {"max_tokens": self.max_tokens, "stop": stops_of(self.stop_sequences), "structured_outputs": form}
        params = SamplingParams(**{**values, **more})
        messages = self.conversation(context)
        return Chat(0, messages, self.options(context, messages), set_fields(params), hints_of(context.caller))


async def count(context: RequestContext[CountBody]) -> Reply:
    """Count the tokens of a conversation."""
    values = await context.prepared(_counted, context)
    values["messages"] = await context.with_images(values["messages"])
    answer = await context.ask(context.engine(context.body.model), Ask(0, "count", values))
    context.note(answer["ignored"])
    return Reply.json({"input_tokens": answer["n_tokens"]})


def _counted(context: RequestContext[CountBody]) -> dict[str, Any]:
    context.body.check(context)
    messages = context.body.conversation(context)
    return {"messages": messages, "options": context.body.options(context, messages)}


async def create(context: RequestContext[MessagesBody]) -> Reply | Events:
    """Answer a conversation."""
    body = context.body
    engine = context.engine(body.model)
    await context.prepared(body.check, context)
    work = await context.prepared(body.work, engine, context)
    work = structs.replace(work, messages=await context.with_images(work.messages))
    work, turn = begin_turn(context, engine, work, body)
    answer = ResponseStream(context, context.submit(engine, work), advice="shorten the conversation", turn=turn)
    await answer.start()
    head = {"id": f"msg_{new_id()}", "type": "message", "role": "assistant", "model": body.model}
    if body.stream:
        return Events(_pieces(head, answer), _failed, ping=_PING)
    message = Message()
    async for delta in answer.deltas():
        message.add(delta)
    content = _blocks(message)
    return Reply.json({**head, "content": content, **_stop(answer.ends[0]), "usage": _usage(answer)})


def _failed(error: ApiError) -> bytes:
    return sse.named_event("error", error_body(error, Dialect.ANTHROPIC))


def _usage(answer: ResponseStream) -> dict[str, int]:
    usage = answer.usage
    return {
        "input_tokens": usage.n_prompt - usage.n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.n_cached,
        "output_tokens": usage.n_generated,
    }


def _stop(end: Finished) -> dict[str, Any]:
    """Return the stop reason.  Only stop strings of the request are reported as stop sequences."""
    if end.reason == "stop" and isinstance(end.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_reason}
    return {"stop_reason": _STOP_REASONS[end.reason], "stop_sequence": None}


def _blocks(message: Message) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if thoughts := "".join(message.reasoning):
        blocks.append({"type": "thinking", "thinking": thoughts, "signature": ""})
    if text := "".join(message.content):
        blocks.append({"type": "text", "text": text})
    for call in message.calls.values():
        function = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": arguments_object(function["arguments"]),
            }
        )
    return blocks


async def _pieces(head: dict[str, Any], answer: ResponseStream) -> AsyncIterator[bytes]:
    """Yield the answer as events: blocks start, receive deltas and stop one after another."""
    started = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(answer)}
    yield sse.named_event("message_start", {"type": "message_start", "message": started})
    blocks = _BlockEvents()
    async for batch in answer.batches():
        pieces = [piece for event in batch if isinstance(event, Delta) for piece in blocks.of(event)]
        yield b"".join(pieces)
    yield b"".join(blocks.stop())
    end = {"type": "message_delta", "delta": _stop(answer.ends[0]), "usage": _usage(answer)}
    yield sse.named_event("message_delta", end)
    yield sse.named_event("message_stop", {"type": "message_stop"})


class _BlockEvents:
    """Turns deltas into events of blocks."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: str | None = None

    def of(self, delta: Delta) -> list[bytes]:
        """Return the events for a delta."""
        pieces: list[bytes] = []
        if delta.reasoning:
            pieces += self._in("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            pieces.append(self._delta({"type": "thinking_delta", "thinking": delta.reasoning}))
        if delta.content:
            pieces += self._in("text", {"type": "text", "text": ""})
            pieces.append(self._delta({"type": "text_delta", "text": delta.content}))
        for call in delta.calls:
            block: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            pieces += self._in(f"tool_use {call.index}", block)
            pieces.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return pieces

    def stop(self) -> list[bytes]:
        """Return the event that ends the open block, if there is one."""
        if self._kind is None:
            return []
        self._kind = None
        return [sse.named_event("content_block_stop", {"type": "content_block_stop", "index": self._index})]

    def _in(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        if self._kind == kind:
            return []
        pieces = self.stop()
        self._index, self._kind = self._index + 1, kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*pieces, sse.named_event("content_block_start", start)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return sse.named_event(
            "content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta}
        )
