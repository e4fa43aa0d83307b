"""A turn of ``/v1/responses`` in which the server runs tools of MCP servers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ....tools.loop import DENIED
from ....tools.tool import Tool, ToolResult
from ...failures import ApiError, brief
from ...service.approvals import WaitingCall
from ..answers import ResponseStream
from ..truncation import DROP_ADVICE
from .mcp_tools import McpTools
from .output_items import approval_item, call_item, listing_item, mcp_call_item, with_result
from .tool_names import ToolNames

if TYPE_CHECKING:
    from ...listener.request_context import RequestContext
    from ...worker.engine_client import EngineClient
    from ...worker.protocol import Chat
    from .responses_fields import ResponsesBody

__all__ = ["McpHistory", "McpTurn", "Planned"]


@dataclass
class McpHistory:
    """The parts of an input that are about tools of MCP servers.

    ``listed``: the servers whose tools were listed before.  ``answers``: a person's answers about calls, each with the
    message that its result goes into and its place.
    """

    mcp: McpTools
    listed: set[str] = field(default_factory=set)
    answers: list[tuple[dict[str, Any], dict[str, Any], str]] = field(default_factory=list)


@dataclass
class Planned:
    """A call of the model, its item, and the tool if it runs here and now."""

    made: dict[str, Any]
    item: dict[str, Any]
    tool: Tool | None = None


class McpTurn:
    """The calls of one response.

    ``items`` precede the model's first answer: lists of tools, and calls that a person has just allowed.
    """

    def __init__(self, context: RequestContext[ResponsesBody], history: McpHistory) -> None:
        self.items: list[dict[str, Any]] = []
        self._context = context
        self._history = history
        self._mcp = history.mcp
        self._n_rounds = self._n_calls = 0

    async def begin(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run the calls that a person has allowed, and return the messages with their results.

        ApiError 404 for an answer about a call that does not wait, 400 for one that is not an answer.
        """
        self.items = [listing_item(each, self._mcp) for each in self._mcp.labels if each not in self._history.listed]
        waiting = [(message, *self._waiting(item, place)) for message, item, place in self._history.answers]
        ids = {call["id"] for message in messages for call in message.get("tool_calls", ())}
        results = await asyncio.gather(*(self._answered(call, item) for _, call, item in waiting))
        for (message, call, item), result in zip(waiting, results, strict=True):
            id_ = item["approval_request_id"]
            message |= {"tool_call_id": call.call_id if call.call_id in ids else id_, "content": _shown(result)}
            if item["approve"]:
                made = mcp_call_item(self._mcp.tools[call.tool], call.arguments, id_)
                self.items.append(with_result(made, result))
        return self._with_every_result(messages)

    def _waiting(self, item: dict[str, Any], place: str) -> tuple[WaitingCall, dict[str, Any]]:
        id_, said = item.get("approval_request_id"), item.get("approve")
        if not isinstance(id_, str) or not isinstance(said, bool):
            raise ApiError(400, "invalid_value", f"{place}: expected approval_request_id and approve", place)
        call = self._context.service.approvals.take(self._context.caller, id_, f"{place}.approval_request_id")
        if call.tool not in self._mcp.tools:
            raise ApiError(400, "invalid_value", f"{place}: the request does not offer {brief(call.tool)}", place)
        return call, item

    async def _answered(self, call: WaitingCall, item: dict[str, Any]) -> ToolResult:
        if item["approve"]:
            return await self._run(call.tool, call.arguments)
        reason = item.get("reason")
        return replace(DENIED, text=f"{DENIED.text}: {reason:.1000}") if isinstance(reason, str) and reason else DENIED

    def _with_every_result(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Give every call of these tools a result: those that nobody answered did not run."""
        known = {message.get("tool_call_id") for message in messages if message["role"] == "tool"}
        made: list[dict[str, Any]] = []
        for message in messages:
            made.append(message)
            for call in message.get("tool_calls", ()):
                if call["function"]["name"] in self._mcp.tools and call["id"] not in known:
                    made.append(_result_message(call, DENIED))
        return made

    def planned(self, calls: Sequence[dict[str, Any]], names: ToolNames, *, is_whole: bool) -> list[Planned]:
        """Decide what happens to each call; ``is_whole``: the last one was not cut off."""
        return [self._planned(made, names, is_whole and not self.is_over) for made in calls]

    def _planned(self, made: dict[str, Any], names: ToolNames, may_run: bool) -> Planned:
        name, arguments = made["function"]["name"], made["function"]["arguments"]
        tool = self._mcp.tools.get(name)
        if tool is None:
            return Planned(made, call_item(made, names))
        if not may_run:
            return Planned(made, {**mcp_call_item(tool, arguments), "status": "incomplete"})
        if not self._mcp.asks(name):
            return Planned(made, mcp_call_item(tool, arguments), tool)
        item = approval_item(tool, arguments)
        call = WaitingCall(name, arguments, made["id"])
        self._context.service.approvals.add(self._context.caller, item["id"], call)
        return Planned(made, item)

    async def run(self, planned: Sequence[Planned]) -> list[dict[str, Any]]:
        """Run the calls that run here, at the same time, and complete their items.

        Returns the messages with the results.
        """
        running = [each for each in planned if each.tool is not None]
        self._n_rounds += 1
        names = [(each.made["function"]["name"], each.made["function"]["arguments"]) for each in running]
        results = await asyncio.gather(*(self._run(*each) for each in names))
        for each, result in zip(running, results, strict=True):
            each.item = with_result(each.item, result)
        return [_result_message(each.made, result) for each, result in zip(running, results, strict=True)]

    async def _run(self, name: str, arguments: str) -> ToolResult:
        most = self._context.body.max_tool_calls
        self._n_calls += 1
        if most is not None and self._n_calls > most:
            return ToolResult("not run: max_tool_calls is reached", is_error=True)
        return await self._context.service.toolbox.call(name, arguments)

    @property
    def is_over(self) -> bool:
        """True if no more calls may run, so that the model has to answer."""
        most = self._context.body.max_tool_calls
        is_spent = most is not None and self._n_calls >= most
        return is_spent or self._n_rounds >= self._context.service.toolbox.options.max_rounds

    async def answer(self, engine: EngineClient, work: Chat, n_left: int | None) -> ResponseStream:
        """Ask the model again; ``n_left``: tokens that are left for its answer."""
        # A forced call is the first one only; otherwise the model could never answer.
        options = {**work.options, "tool_choice": "none" if self.is_over else "auto"}
        params = work.params if n_left is None else {**work.params, "max_tokens": n_left}
        again = structs.replace(work, options=options, params=params)
        answer = ResponseStream(self._context, self._context.submit(engine, again), advice=DROP_ADVICE)
        await answer.start()
        return answer


def _shown(result: ToolResult) -> str:
    return f"Error: {result.text}" if result.is_error else result.text


def _result_message(call: dict[str, Any], result: ToolResult) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "content": _shown(result)}
