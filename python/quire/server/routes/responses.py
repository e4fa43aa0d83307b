"""``/v1/responses``: OpenAI's interface that remembers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ...sampling import SamplingParams
from ...structured import StructuredOutputsParams
from ..bodies import Body
from ..body_meter import MOST_VALUES
from ..engine_client import EngineClient
from ..failures import ApiError
from ..params import set_fields
from ..protocol import Chat
from ..request_context import Events, Reply, RequestContext
from .answers import Answering
from .fields import Name, Share, Text, hints_of, priority_of
from .known_fields import check_blocks, check_fields
from .openai_chat import options_of
from .response_items import messages_of, tool_of
from .response_shape import ResponseShape

__all__ = ["ResponsesBody", "create", "delete", "show"]


class Reasoning(Body, kw_only=True, forbid_unknown_fields=True):
    """How much the model thinks."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    refused: ClassVar[dict[str, tuple[object, ...]]] = {}


class TextFields(Body, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer: ``text``, ``json_object``, or ``json_schema`` with ``schema`` beside it."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None

    def form(self) -> StructuredOutputsParams | None:
        """As other routes have it, where the schema is one level deeper."""
        given = dict(self.format or {"type": "text"})
        if given.get("type") == "json_schema":
            inner = {name: value for name, value in given.items() if name != "type"}
            given = {"type": "json_schema", "json_schema": inner}
        return StructuredOutputsParams.from_response_format(given)


class ResponsesBody(Body, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields."""

    input: Text | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    model: Name | None = None
    instructions: Text | None = None
    previous_response_id: Annotated[str, Meta(max_length=64)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    reasoning: Reasoning | None = None
    text: TextFields | None = None
    stream: bool = False
    store: bool = True
    metadata: Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] = {}
    user: Annotated[str, Meta(max_length=512)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        "background": (False,),
        "conversation": (),
        "include": ([],),
        "max_tool_calls": (),
        "prompt": (),
        "prompt_cache_retention": ("in_memory", "in-memory"),
        "stream_options": ({}, {"include_obfuscation": False}),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }

    def work(
        self, engine: EngineClient, context: RequestContext[ResponsesBody], messages: list[dict[str, Any]]
    ) -> Chat:
        """What the engine is asked."""
        given = {"temperature": self.temperature, "top_p": self.top_p}
        values = {**engine.info.advised, **{name: value for name, value in given.items() if value is not None}}
        form = None if self.text is None else self.text.form()
        params = SamplingParams(**{**values, "max_tokens": self.max_output_tokens, "structured_outputs": form})
        effort = None if self.reasoning is None else self.reasoning.effort
        tools = [tool_of(tool, i) for i, tool in enumerate(self.tools)]
        choice: Any = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            allowed = [tool_of(tool, i) if isinstance(tool, dict) else tool for i, tool in enumerate(_list(choice))]
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": allowed}}
        elif isinstance(choice, dict):
            if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
                raise ApiError(400, "unsupported", "tool_choice must name a function but does not", "tool_choice")
            choice = {"type": "function", "function": {"name": choice["name"]}}
        options = options_of(tools, choice, effort, {})
        if not self.parallel_tool_calls:
            options["parallel_tool_calls"] = False
        own = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return Chat(
            0,
            own + messages,
            options,
            set_fields(params),
            hints_of(context.caller, None, priority_of(self.service_tier)),
        )


_ITEMS = {
    "message": ("type", "id", "status", "role", "content", "phase"),
    "function_call": ("type", "id", "status", "call_id", "name", "arguments"),
    "function_call_output": ("type", "id", "status", "call_id", "output"),
    "input_text": ("type", "text"),
    "output_text": ("type", "text"),
    "text": ("type", "text"),
}


def _check(body: ResponsesBody, context: RequestContext[ResponsesBody]) -> None:
    """ApiError 400 naming a field of an item, a part or a tool that is not known."""
    if not isinstance(body.input, str):
        check_blocks([{"type": "message", **item} for item in body.input], _ITEMS, "input", context)
    for i, tool in enumerate(body.tools):
        check_fields(tool, ("type", "name", "description", "parameters", "strict"), f"tools[{i}]", context)


def _list(choice: dict[str, Any]) -> list[Any]:
    tools = choice.get("tools")
    return tools if isinstance(tools, list) else []


async def create(context: RequestContext[ResponsesBody]) -> Reply | Events:
    """Answer an input, which may go on from an earlier answer."""
    body = context.body
    engine = context.engine(body.model)
    earlier: list[dict[str, Any]] = []
    n_values = context.received.n_values
    if body.previous_response_id is not None:
        kept = context.service.responses.get(context.caller, body.previous_response_id, "previous_response_id")
        earlier, n_values = kept.messages, n_values + kept.n_values
        if kept.n_bytes + context.received.n_bytes > context.service.settings.max_body_bytes or n_values > MOST_VALUES:
            text = "previous_response_id must be of a conversation that is no larger than a body may be but it is"
            raise ApiError(400, "invalid_value", text, "previous_response_id")
    await context.prepared(_check, body, context)
    messages = earlier + await context.prepared(messages_of, body.input)
    work = await context.prepared(body.work, engine, context, messages)
    answering = Answering(context, context.submit(engine, work))
    await answering.start()
    shape = ResponseShape(body, answering, messages, body.model or context.model, n_values)
    if body.stream:
        return Events(shape.pieces(), shape.failed)
    async for delta in answering.deltas():
        shape.take(delta)
    return Reply.json(shape.complete())


async def show(context: RequestContext[None]) -> Reply:
    """An answer that was kept."""
    return Reply.json(context.service.responses.get(context.caller, context.path("id")).response)


async def delete(context: RequestContext[None]) -> Reply:
    """Forget an answer."""
    id_ = context.path("id")
    context.service.responses.remove(context.caller, id_)
    return Reply.json({"id": id_, "object": "response", "deleted": True})
