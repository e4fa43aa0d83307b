"""A tool that can be run, and the result of a call."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

__all__ = ["APPROVALS", "Approval", "Tool", "ToolResult", "arguments_of"]

Approval: TypeAlias = Literal["ask", "always", "never"]
"""When a call runs: after a person approved it, without asking, or never (then the model is not shown the tool)."""

APPROVALS: tuple[str, ...] = get_args(Approval)


@dataclass(frozen=True)
class ToolResult:
    """The text that the model sees after a call.  ``is_error``: the call failed, and the text says why."""

    text: str
    is_error: bool = False
    is_cut: bool = False

    def cut(self, most_chars: int) -> ToolResult:
        """Return the result with at most so many characters, and a note of how many there were."""
        if len(self.text) <= most_chars:
            return self
        note = f"\n[cut: the result has {len(self.text)} characters]"
        return replace(self, text=self.text[: max(0, most_chars - len(note))] + note, is_cut=True)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool.

    ``name``: as the model sees it.  ``own_name``: as its server knows it.  ``call``: takes the arguments.  ``server``:
    the name of its MCP server.  ``prepare``: starts that server if necessary, outside the call's time limit.
    ``hints``: the server's own claims, such as ``readOnlyHint``, which nothing relies on.
    """

    name: str
    own_name: str
    parameters: Mapping[str, Any]
    call: Callable[[dict[str, Any]], Awaitable[ToolResult]]
    description: str = ""
    approval: Approval = "ask"
    server: str | None = None
    hints: Mapping[str, Any] | None = None
    timeout_s: float | None = None
    prepare: Callable[[], Awaitable[None]] | None = None

    @property
    def definition(self) -> dict[str, object]:
        """Its definition in the format of OpenAI's chat API."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def arguments_of(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call.  ValueError if a model wrote something other than a JSON object."""
    if isinstance(given, Mapping):
        return dict(given)
    try:
        value = json.loads(given or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("the arguments are not a JSON object")
    return value
