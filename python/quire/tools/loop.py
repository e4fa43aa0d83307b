"""The loop of a turn with tools: what the model is asked next, and which of its calls run.

It asks no model itself, so ``LLM``, ``AsyncLLM``, the terminal and the server use it in their own ways.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import RequestError
from .tool import ToolResult

if TYPE_CHECKING:
    from ..chat import ChatMessage, ToolCall
    from .toolbox import Toolbox

__all__ = ["DENIED", "Approve", "ToolLoop", "ToolRun"]

Approve: TypeAlias = "Callable[[ToolCall], bool | Awaitable[bool]]"
"""Returns whether a person allows a call.  Only ``AsyncLLM`` takes an async one."""

DENIED = ToolResult("the user did not allow this call", is_error=True)


@dataclass(frozen=True)
class ToolRun:
    """A call that the model made, and its result."""

    call: ToolCall
    result: ToolResult


class ToolLoop:
    """One turn: ask the model with ``messages`` and ``keywords``, ``take`` its answer, ``run`` its calls, and again.

    The turn is over when ``take`` returns no calls.  After the last allowed round, the model is shown no tools, so that
    it has to answer.
    """

    def __init__(
        self,
        messages: Sequence[Mapping[str, object]],
        toolbox: Toolbox,
        *,
        tool_choice: Any = "auto",
        approve: Approve | None = None,
    ) -> None:
        self.messages: list[dict[str, object]] = [dict(message) for message in messages]
        self.runs: list[ToolRun] = []
        self._toolbox = toolbox
        self._choice = tool_choice
        self._approve = approve
        self._n_rounds = 0

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of ``LLM.chat`` for the next answer."""
        if not self._toolbox.tools:
            return {}
        return {"tools": self._toolbox.definitions, "tool_choice": "none" if self.is_last else self._choice}

    @property
    def is_last(self) -> bool:
        """True if the allowed rounds are over, so that the next answer ends the turn."""
        return self._n_rounds >= self._toolbox.options.max_rounds

    def check(self) -> None:
        """Raise RequestError if a tool asks for approval and nobody could give it."""
        asking = [tool.name for tool in self._toolbox.tools.values() if tool.approval == "ask"]
        if asking and self._approve is None:
            raise RequestError(
                f"[tools] {asking[0]!r:.80} runs only with approval: give approve=..., or its server approval='always'"
            )

    def take(self, message: ChatMessage, finish_reason: str | None) -> list[ToolCall]:
        """Add an answer to the messages and return the calls in it.

        Calls of an answer that was cut off are dropped, because the last one may be incomplete.
        """
        is_whole = finish_reason in ("stop", "tool_calls")
        calls = list(message.tool_calls) if is_whole and not self.is_last else []
        self.messages.append(replace(message, tool_calls=calls).as_dict())
        if calls:
            self._n_rounds += 1
            # A forced call is the first one only; otherwise the model could never answer.
            self._choice = "auto"
        return calls

    def asks(self, call: ToolCall) -> bool:
        """Return whether a person has to allow the call."""
        tool = self._toolbox.tools.get(call.function.name)
        return tool is not None and tool.approval != "always"

    def allowed(self, calls: Sequence[ToolCall]) -> list[bool]:
        """Ask for the calls that need approval, one by one."""
        return [not self.asks(call) or self._said(call) is True for call in calls]

    async def allowed_async(self, calls: Sequence[ToolCall]) -> list[bool]:
        """Ask for the calls that need approval, one by one, and wait for answers that take time."""
        found = []
        for call in calls:
            said = self._said(call) if self.asks(call) else True
            found.append((await said if inspect.isawaitable(said) else said) is True)
        return found

    def _said(self, call: ToolCall) -> bool | Awaitable[bool]:
        return False if self._approve is None else self._approve(call)

    async def run(self, calls: Sequence[ToolCall], allowed: Sequence[bool]) -> list[ToolRun]:
        """Run the allowed calls at the same time, and add all results to the messages in the order of the calls."""
        results = await asyncio.gather(*map(self._result, calls, allowed))
        runs = [ToolRun(call, result) for call, result in zip(calls, results, strict=True)]
        self.runs += runs
        self.messages += map(result_message, runs)
        return runs

    async def _result(self, call: ToolCall, allowed: bool) -> ToolResult:
        return await self._toolbox.call(call.function.name, call.function.arguments) if allowed else DENIED


def result_message(run: ToolRun) -> dict[str, object]:
    """Return the message that shows a result to the model."""
    text = f"Error: {run.result.text}" if run.result.is_error else run.result.text
    return {"role": "tool", "tool_call_id": run.call.id, "name": run.call.function.name, "content": text}
