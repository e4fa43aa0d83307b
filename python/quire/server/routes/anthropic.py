"""``POST /v1/messages`` and its count of tokens: Anthropic's interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ...sampling import SamplingParams
from ...sampling_defaults import chat_defaults
from ...structured import StructuredOutputsParams
from ..body_types import Body
from ..failures import ApiError, Dialect, brief, error_body
from ..listener import sse
from ..listener.replies import Events, Reply
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient
from ..worker.params import set_fields
from ..worker.protocol import Ask, Chat, Delta, Finished
from .answers import Answering, Message, arguments_object, new_id
from .fields import ConstrainedBody, Count, Name, Share, Stop, Text, hints_of
from .known_fields import check_blocks, check_fields
from .text_parts import content_of

__all__ = ["CountBody", "MessagesBody", "count", "create"]

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Thinking(Body, kw_only=True, forbid_unknown_fields=True):
    """``enabled`` with a budget, ``adaptive`` (as the model does by itself), or ``disabled``."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = None


class Metadata(Body, kw_only=True, forbid_unknown_fields=True):
    """Whom the request is for; nothing here depends on it."""

    user_id: Annotated[str, Meta(max_length=512)] | None = None


class OutputConfig(Body, kw_only=True, forbid_unknown_fields=True):
    """How much a model that knows such words thinks, and the form of its answer: ``json_schema`` with ``schema``."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None

    def form(self) -> StructuredOutputsParams | None:
        """ApiError 400 for another form."""
        if self.format is None:
            return None
        schema = self.format.get("schema")
        if self.format.keys() != {"type", "schema"} or self.format["type"] != "json_schema":
            raise _refuse("output_config.format", "have the type json_schema, a schema and nothing else")
        if not isinstance(schema, dict):
            raise _refuse("output_config.format.schema", "be an object")
        return StructuredOutputsParams(json=schema)


# Which parts of a prompt a cache should keep, and what a result means beside its text, changes no answer here: all of
# it is kept.
_BLOCKS = {
    "text": ("type", "text", "cache_control"),
    "thinking": ("type", "thinking", "signature", "cache_control"),
    "tool_use": ("type", "id", "name", "input", "cache_control"),
    "tool_result": ("type", "tool_use_id", "content", "is_error", "cache_control"),
}
_TOOL = ("type", "name", "description", "input_schema", "strict", "cache_control")
_CHOICE = ("type", "name", "disable_parallel_tool_use")


class CountBody(ConstrainedBody, kw_only=True, forbid_unknown_fields=True):
    """A conversation: ``system`` and ``content`` are texts or lists of blocks."""

    model: Name
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    system: Text | Annotated[list[dict[str, Any]], Meta(max_length=256)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] = []
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    inner: ClassVar[dict[str, type[Body]]] = {"thinking": Thinking, "output_config": OutputConfig}
    hints: ClassVar[dict[str, tuple[object, ...]]] = {
        **ConstrainedBody.hints,
        # What the client does with its own context; all of it that comes is read.
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
        """ApiError 400 naming a field of a message, a block or a tool that is not known."""
        check_blocks(self.system, _BLOCKS, "system", context)
        for i, message in enumerate(self.messages):
            check_fields(message, ("role", "content"), f"messages[{i}]", context)
            check_blocks(message.get("content"), _BLOCKS, f"messages[{i}].content", context)
        for i, tool in enumerate(self.tools):
            check_fields(tool, _TOOL, f"tools[{i}]", context)
        check_fields(self.tool_choice, _CHOICE, "tool_choice", context)

    def conversation(self) -> list[dict[str, Any]]:
        """The messages by the names of templates."""
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": _content(self.system, "system")})
        for i, message in enumerate(self.messages):
            messages += _message(message, f"messages[{i}]")
        return messages

    def options(self, context: RequestContext[Any]) -> dict[str, Any]:
        """Fields of ``ChatOptions``."""
        options: dict[str, Any] = {} if context.service.settings.refuses_unknown else {"lenient": True}
        context.said_by |= {"enable_thinking": "thinking", "reasoning_budget": "thinking.budget_tokens"}
        context.said_by["reasoning_effort"] = "output_config.effort"
        if self.tools:
            options["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(self.tools)]
        if self.tool_choice is not None and not self.tools:
            if _tool_choice(self.tool_choice) not in ("auto", "none"):
                context.ignore("tool_choice")
        elif self.tool_choice is not None:
            options["tool_choice"] = _tool_choice(self.tool_choice)
            if self.tool_choice.get("disable_parallel_tool_use") is True:
                options["parallel_tool_calls"] = False
        if self.thinking is not None and self.thinking.type == "disabled":
            options["template_values"] = {"enable_thinking": False}
        elif self.thinking is not None and self.thinking.budget_tokens is not None:
            options["reasoning_budget"] = self.thinking.budget_tokens
        if self.output_config is not None and self.output_config.effort is not None:
            options.setdefault("template_values", {})["reasoning_effort"] = self.output_config.effort
        return options


class MessagesBody(CountBody, kw_only=True, forbid_unknown_fields=True):
    """Anthropic's fields."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    example: ClassVar[dict[str, object]] = {
        "model": "tiny-chat",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Count | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=16)] = []
    stream: bool = False
    metadata: Metadata | None = None
    inner: ClassVar[dict[str, type[Body]]] = {**CountBody.inner, "metadata": Metadata}

    def work(self, engine: EngineClient, context: RequestContext[MessagesBody]) -> Chat:
        """What the engine is asked."""
        named = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        values = {**chat_defaults(engine.info.advised, given), **given}
        form = self.wanted_form(None if self.output_config is None else self.output_config.form())
        more = {"max_tokens": self.max_tokens, "stop": self.stop_sequences, "structured_outputs": form}
        params = SamplingParams(**{**values, **more})
        return Chat(0, self.conversation(), self.options(context), set_fields(params), hints_of(context.caller))


def _refuse(place: str, what: str) -> ApiError:
    return ApiError(400, "invalid_value", f"{place} must {what}", place)


def _content(content: Any, place: str) -> str | list[dict[str, Any]]:
    """Text, or the texts of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refuse(place, "be text or a list of blocks")
    texts = []
    for i, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            kind = block.get("type") if isinstance(block, dict) else None
            raise _refuse(f"{place}[{i}]", f"be a block of text but is {brief(kind)}")
        texts.append(block["text"])
    return content_of(texts)


def _message(message: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """A message as templates have it: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise _refuse(f"{place}.role", "be user or assistant")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise _refuse(f"{place}.content", "be text or a list of blocks")
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(content):
        at = f"{place}.content[{i}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            texts.append(_field(block, "text", str, at))
        elif kind == "thinking" and role == "assistant":
            thoughts.append(_field(block, "thinking", str, at))
        elif kind == "tool_use" and role == "assistant":
            function = {"name": _field(block, "name", str, at), "arguments": _field(block, "input", dict, at)}
            calls.append({"id": _field(block, "id", str, at), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            result = _content(block.get("content") or "", f"{at}.content")
            results.append({"role": "tool", "tool_call_id": _field(block, "tool_use_id", str, at), "content": result})
        else:
            raise _refuse(f"{at}.type", f"be one that a message of {role} may have but is {brief(kind)}")
    own: dict[str, Any] = {"role": role}
    if texts or not (calls or thoughts or results):
        own["content"] = content_of(texts)
    if thoughts:
        own["reasoning_content"] = "\n".join(thoughts)
    if calls:
        own["tool_calls"] = calls
    return results + ([own] if len(own) > 1 else [])


def _field(block: dict[str, Any], name: str, kind: type, place: str) -> Any:
    value = block.get(name)
    if not isinstance(value, kind):
        raise _refuse(f"{place}.{name}", f"be {'text' if kind is str else 'an object'}")
    return value


def _tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        raise _refuse(f"{place}.type", f"be custom but is {brief(tool['type'])}")
    function = {"name": _field(tool, "name", str, place), "parameters": _field(tool, "input_schema", dict, place)}
    if "description" in tool:
        function["description"] = _field(tool, "description", str, place)
    if "strict" in tool:
        function["strict"] = _field(tool, "strict", bool, place)
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Any]) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": _field(choice, "name", str, "tool_choice")}}
    if kind not in ("auto", "any", "none"):
        raise _refuse("tool_choice.type", f"be auto, any, tool or none but is {brief(kind)}")
    return "required" if kind == "any" else kind


async def count(context: RequestContext[CountBody]) -> Reply:
    """How many tokens a conversation is."""
    values = await context.prepared(_counted, context)
    answer = await context.ask(context.engine(context.body.model), Ask(0, "count", values))
    context.note(answer["ignored"])
    return Reply.json({"input_tokens": answer["n_tokens"]})


def _counted(context: RequestContext[CountBody]) -> dict[str, Any]:
    context.body.check(context)
    return {"messages": context.body.conversation(), "options": context.body.options(context)}


async def create(context: RequestContext[MessagesBody]) -> Reply | Events:
    """Answer a conversation."""
    body = context.body
    engine = context.engine(body.model)
    await context.prepared(body.check, context)
    work = await context.prepared(body.work, engine, context)
    answering = Answering(context, context.submit(engine, work))
    await answering.start()
    head = {"id": f"msg_{new_id()}", "type": "message", "role": "assistant", "model": body.model}
    if body.stream:
        return Events(_pieces(head, answering), _failed)
    message = Message()
    async for delta in answering.deltas():
        message.add(delta)
    content = _blocks(message)
    return Reply.json({**head, "content": content, **_stop(answering.ends[0]), "usage": _usage(answering)})


def _failed(error: ApiError) -> bytes:
    return sse.named_event("error", error_body(error, Dialect.ANTHROPIC))


def _usage(answering: Answering) -> dict[str, int]:
    usage = answering.usage
    return {
        "input_tokens": usage.n_prompt - usage.n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.n_cached,
        "output_tokens": usage.n_generated,
    }


def _stop(end: Finished) -> dict[str, Any]:
    """Why the answer ended; a stop string is the request's own."""
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


async def _pieces(head: dict[str, Any], answering: Answering) -> AsyncIterator[bytes]:
    """The answer as events: one block after another is started, goes on and stops."""
    started = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(answering)}
    yield sse.named_event("message_start", {"type": "message_start", "message": started})
    blocks = _BlockEvents()
    async for batch in answering.batches():
        pieces = [piece for event in batch if isinstance(event, Delta) for piece in blocks.of(event)]
        yield b"".join(pieces) if batch else sse.named_event("ping", {"type": "ping"})
    yield b"".join(blocks.stop())
    end = {"type": "message_delta", "delta": _stop(answering.ends[0]), "usage": _usage(answering)}
    yield sse.named_event("message_delta", end)
    yield sse.named_event("message_stop", {"type": "message_stop"})


class _BlockEvents:
    """Makes events of blocks from deltas."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: str | None = None

    def of(self, delta: Delta) -> list[bytes]:
        """The events of a delta."""
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
        """The end of the block that is open, if one is."""
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
