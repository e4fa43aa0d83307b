"""A turn with tools: the loop, its toolbox, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...tools.loop import ToolLoop, ToolRun
from ...tools.toolbox import Toolbox
from .chat import ChatResult

if TYPE_CHECKING:
    from ...chat import ChatMessage, Messages
    from ...params.sampling import SamplingParams
    from ...tools.tool_use import ToolUse

__all__ = ["RunResult", "ToolTurn"]


@dataclass(frozen=True)
class RunResult:
    """The end of a turn with tools.

    ``result`` is the last answer, ``messages`` the conversation with all calls, results and that answer, ``calls`` the
    calls that the model made, each with its ``call`` and ``result``.
    """

    result: ChatResult
    messages: list[dict[str, object]]
    calls: list[ToolRun]

    @property
    def message(self) -> ChatMessage:
        """The last answer as a message."""
        return self.result.message

    @property
    def text(self) -> str:
        """The text of the last answer."""
        return self.result.message.content or ""


@dataclass(frozen=True)
class ToolTurn:
    """A turn that has not begun, or is under way."""

    loop: ToolLoop
    toolbox: Toolbox
    params: SamplingParams | None
    keywords: dict[str, Any]

    @classmethod
    def of(cls, messages: Messages, params: SamplingParams | None, use: ToolUse, keywords: dict[str, Any]) -> ToolTurn:
        """Return a turn; its MCP servers are not connected yet."""
        toolbox = Toolbox(use.tools, use.options)
        choice = keywords.pop("tool_choice", "auto")
        return cls(ToolLoop(messages, toolbox, tool_choice=choice, approve=use.approve), toolbox, params, keywords)

    def result(self, last: ChatResult) -> RunResult:
        """Return the result after the last answer."""
        return RunResult(last, self.loop.messages, self.loop.runs)
