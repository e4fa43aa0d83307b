"""``/v1/responses``: OpenAI's stateful API."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import json, structs

from ....params.sampling import SamplingParams
from ....params.sampling_defaults import chat_defaults, most_prompt_tokens
from ...failures import ApiError, brief
from ...listener import sse
from ...listener.body_meter import MOST_VALUES
from ...listener.replies import Events, Reply
from ...listener.request_context import RequestContext
from ...service.conversation_store import ConversationStore
from ...worker.engine_client import EngineClient
from ...worker.params import set_fields
from ...worker.protocol import Chat
from ..answers import ResponseStream
from ..fields import hints_of, priority_of
from ..known_fields import check_blocks, check_fields, leave_out
from ..sampling_fields import sampling_of
from ..text_parts import without_billing_line
from ..tools import refuse_pages
from ..truncation import DROP_ADVICE
from .chat_fields import counted, options_of
from .conversations import stored
from .mcp_tools import McpTools
from .mcp_turn import McpHistory, McpTurn
from .response_items import messages_of, tool_of
from .response_shape import Asked, ResponseShape, response_object
from .responses_fields import ResponsesBody
from .tool_names import ToolNames, functions_in

__all__ = ["cancel", "count", "create", "delete", "show"]


def _work(
    engine: EngineClient, context: RequestContext[ResponsesBody], messages: list[dict[str, Any]], mcp: McpTools
) -> Chat:
    """Return the engine's work for the request."""
    body = context.body
    given = sampling_of(body)
    most = engine.info.advised.get("max_tokens") if body.max_output_tokens is None else body.max_output_tokens
    form = body.wanted_form(None if body.text is None else body.text.form())
    more = {"max_tokens": most, "structured_outputs": form}
    values: dict[str, Any] = {**chat_defaults(engine.info.advised, given), **given, **more}
    params = SamplingParams(**values)
    effort = None if body.reasoning is None else body.reasoning.effort
    tools, choice = _tools(body, context, mcp)
    told: dict[str, Any] = {}
    if effort is not None:
        name, value = ("enable_thinking", False) if effort == "none" else ("reasoning_effort", effort)
        told[name] = value
        context.said_by[name] = "reasoning.effort"
    options = options_of(tools, choice, context, told)
    if not body.parallel_tool_calls:
        options["parallel_tool_calls"] = False
    return Chat(
        0,
        without_billing_line(_instructed(body.instructions, messages)),
        options,
        set_fields(params),
        hints_of(context.caller, None, priority_of(body.service_tier)),
        body.return_progress and body.stream,
    )


def _tools(
    body: ResponsesBody, context: RequestContext[ResponsesBody], mcp: McpTools
) -> tuple[list[dict[str, Any]], Any]:
    """Return the functions among the tools, and the tool choice, in the format of ``/v1/chat/completions``.

    Tools of MCP servers are functions, too.
    """
    tools: list[dict[str, Any]] = []
    names = ToolNames(body.tools)
    for place, space, tool in functions_in(body.tools):
        if mcp and tool.get("type") == "mcp":
            tools += [dict(each.definition) for each in mcp.of(tool["server_label"])]
        elif (made := tool_of(tool, place)) is None:
            leave_out(context, place)
        else:
            made["function"]["name"] = names.shown(space, tool["name"])
            if made["function"]["name"] in mcp.tools:
                text = f"{place}.name is that of an MCP server's tool"
                raise ApiError(400, "invalid_value", text, f"{place}.name")
            tools.append(made)
    choice: Any = body.tool_choice
    if not isinstance(choice, dict):
        return tools, choice
    kind = choice.get("type")
    if mcp and kind == "mcp":
        return tools, _only(mcp, choice, "required")
    if kind == "allowed_tools":
        listed = choice.get("tools")
        named = [tool for tool in listed if isinstance(tool, dict)] if isinstance(listed, list) else []
        given = [(names.shown(tool.get("namespace"), tool.get("name")), tool) for tool in named]
        allowed = [made for name, tool in given if (made := tool_of({**tool, "name": name}, "tool_choice")) is not None]
        if named and not allowed:  # only tools of other types, which the model cannot call
            leave_out(context, "tool_choice")
            return [], None
        return tools, {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": allowed}}
    if kind == "function" and isinstance(choice.get("name"), str):
        return tools, {"type": "function", "function": {"name": names.shown(choice.get("namespace"), choice["name"])}}
    if not isinstance(kind, str) or kind == "function":
        text = 'tool_choice names no function: give {"type": "function", "name": ...}'
        raise ApiError(400, "unsupported", text, "tool_choice")
    leave_out(context, "tool_choice")
    return tools, None


def _only(mcp: McpTools, named: dict[str, Any], mode: str) -> dict[str, Any]:
    """Return the choice of one MCP server's tools, or of one of them.  ApiError 400 if there is none."""
    found = [
        {"type": "function", "function": {"name": tool.name}}
        for tool in mcp.of(str(named.get("server_label")))
        if named.get("name") in (None, tool.own_name)
    ]
    if not found:
        raise ApiError(400, "invalid_value", "tool_choice names no tool of an MCP server in tools", "tool_choice")
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": found}}


def _instructed(instructions: str | None, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge instructions with a leading system message, because templates accept only one."""
    if not instructions:
        return messages
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{"role": "system", "content": f"{instructions}\n\n{first['content']}"}, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


# Fields of calls and results besides arguments and output, which tell who made an item and with which tool.
_CALL = ("type", "id", "status", "call_id", "name", "namespace", "caller", "created_by")
_ITEMS = {
    "message": ("type", "id", "status", "role", "content", "phase"),
    "function_call": (*_CALL, "arguments"),
    "function_call_output": (*_CALL, "output"),
    "custom_tool_call": (*_CALL, "input"),
    "custom_tool_call_output": (*_CALL, "output"),
    "input_text": ("type", "text"),
    "output_text": ("type", "text", "annotations", "logprobs"),
    "text": ("type", "text"),
}


def _check(body: ResponsesBody, context: RequestContext[ResponsesBody]) -> None:
    """Check the fields of items, parts and tools.  ApiError 400 for an unknown one."""
    if not isinstance(body.input, str):
        check_blocks([{"type": "message", **item} for item in body.input], _ITEMS, "input", context)
    for place, _, tool in functions_in(body.tools):
        if tool.get("type") == "function":
            check_fields(tool, ("type", "name", "description", "parameters", "strict"), place, context)


async def _read(
    context: RequestContext[ResponsesBody], history: McpHistory | None
) -> tuple[list[dict[str, Any]], int, str | list[dict[str, Any]]]:
    """Return the messages of an input after those that it continues, the number of their values, and the input.

    ``history`` receives what they say about tools of MCP servers.
    """
    body = context.body
    earlier: list[dict[str, Any]] = []
    n_values = context.received.n_values
    if body.previous_response_id is not None:
        kept = context.service.responses.get(context.caller, body.previous_response_id, "previous_response_id")
        if (status := kept.response["status"]) in ("in_progress", "failed", "cancelled"):
            text = f"the response of previous_response_id has no answer: it is {status}"
            raise ApiError(400, "invalid_value", text, "previous_response_id")
        earlier, n_values = kept.messages, n_values + kept.n_values
        if kept.n_bytes + context.received.n_bytes > context.service.settings.max_body_bytes or n_values > MOST_VALUES:
            text = "the conversation of previous_response_id exceeds the size limit of a request"
            raise ApiError(400, "invalid_value", text, "previous_response_id")
        if history is not None:
            history.listed |= {str(tool.get("server_label")) for tool in kept.response["tools"]}
    if (id_ := body.conversation_id) is not None:
        earlier = await _of_conversation(context, id_, history)
    await context.prepared(_check, body, context)
    given = body.input if isinstance(body.input, str) else _with_kept(context, body.input)
    left_out = partial(leave_out, context)
    messages = earlier + await context.prepared(messages_of, given, ToolNames(body.tools), left_out, history)
    return messages, n_values, given


async def _of_conversation(
    context: RequestContext[ResponsesBody], id_: str, history: McpHistory | None
) -> list[dict[str, Any]]:
    """Return the messages of a conversation.  ApiError 400 if it is too large for a request."""
    if context.body.previous_response_id is not None:
        text = "previous_response_id cannot be combined with conversation"
        raise ApiError(400, "invalid_value", text, "previous_response_id")
    kept = await stored(context, ConversationStore.items, id_)
    n_bytes = len(await context.offload(json.encode, kept))
    if n_bytes + context.received.n_bytes > context.service.settings.max_body_bytes or len(kept) > MOST_VALUES:
        text = "the conversation exceeds the size limit of a request: delete items"
        raise ApiError(400, "invalid_value", text, "conversation")
    names = ToolNames(context.body.tools)
    return await context.offload(messages_of, kept, names, lambda _: None, history)


def _with_kept(context: RequestContext[ResponsesBody], items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace references to stored items by the items.  ApiError 404 for an unknown one."""
    if not any(item.get("type") == "item_reference" for item in items):
        return items
    kept = context.service.responses.items(context.caller)

    def resolved(i: int, item: dict[str, Any]) -> dict[str, Any]:
        if item.get("type") != "item_reference":
            return item
        id_ = item.get("id")
        if not isinstance(id_, str) or id_ not in kept:
            text = f"input[{i}].id: no stored item {brief(id_)} (send the item itself)"
            raise ApiError(404, "item_not_found", text, f"input[{i}].id")
        return kept[id_]

    return [resolved(i, item) for i, item in enumerate(items)]


async def create(context: RequestContext[ResponsesBody]) -> Reply | Events:
    """Answer an input, which may continue an earlier response."""
    body = context.body
    engine = context.engine(body.model)
    history = _mcp(context)
    if body.background:
        return _in_background(context)
    if body.conversation_id is not None:
        context.closing.callback(context.service.conversations.begin(body.conversation_id))
    messages, n_values, given = await _read(context, history if history.mcp else None)
    turn = None
    if history.mcp:
        turn = McpTurn(context, history)
        messages = await turn.begin(messages)
    work = await context.prepared(_work, engine, context, messages, history.mcp)
    work = structs.replace(work, messages=await context.with_images(work.messages))
    if body.truncation == "auto":
        work.options["max_prompt_tokens"] = most_prompt_tokens(engine.info.n_ctx, body.max_output_tokens)
    answer = ResponseStream(context, context.submit(engine, work), advice=DROP_ADVICE)
    await answer.start()
    shape = ResponseShape(
        body, answer, Asked(engine, work, messages, n_values, given, turn), body.model or context.model
    )
    if body.stream:
        return Events(shape.pieces(), shape.failed, ping=sse.PING)
    return Reply.json(await shape.whole())


def _in_background(context: RequestContext[ResponsesBody]) -> Reply:
    """Begin to answer an input, and return the response that will have the answer."""
    body = context.body
    if body.stream:
        raise ApiError(400, "unsupported_parameter", "stream is unsupported with background", "stream")
    if not body.store:
        raise ApiError(400, "invalid_value", "background needs store", "store")
    response = response_object(body, body.model or context.model, "in_progress")
    context.service.background.start(context.caller, response, json.encode(structs.replace(body, background=False)))
    return Reply.json(response)


async def cancel(context: RequestContext[None]) -> Reply:
    """End a response in the background."""
    return Reply.json(context.service.background.cancel(context.caller, context.path("id")))


def _mcp(context: RequestContext[ResponsesBody]) -> McpHistory:
    """Return the tools of MCP servers that the request may use.  ApiError 403 for a page of another origin."""
    mcp = McpTools(context.body.tools, context.service.toolbox)
    if mcp:
        refuse_pages(context)
        if context.state.in_batch:  # it may come from a page, and nobody could approve a call
            raise ApiError(400, "unsupported", "tools of MCP servers do not run in batches", "tools")
    elif context.body.max_tool_calls is not None:
        context.ignore("max_tool_calls")
    for place in mcp.ignored:
        context.ignore(place)
    return McpHistory(mcp)


async def count(context: RequestContext[ResponsesBody]) -> Reply:
    """Count the prompt tokens of an input."""
    engine = context.engine(context.body.model)
    history = _mcp(context)
    messages, _, _ = await _read(context, history if history.mcp else None)
    work = await context.prepared(_work, engine, context, messages, history.mcp)
    values = {"messages": await context.with_images(work.messages), "options": work.options}
    return Reply.json(await counted(context, engine, values))


async def show(context: RequestContext[None]) -> Reply:
    """Return a stored response."""
    return Reply.json(context.service.responses.get(context.caller, context.path("id")).response)


async def delete(context: RequestContext[None]) -> Reply:
    """Delete a stored response."""
    id_ = context.path("id")
    context.service.background.remove(context.caller, id_)
    return Reply.json({"id": id_, "object": "response", "deleted": True})
