"""Answers as messages, with the field names of OpenAI's API, and their deltas while they arrive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["ChatMessage", "FunctionCall", "MessageDelta", "ToolCall", "ToolCallDelta", "joined"]


@dataclass(frozen=True)
class FunctionCall:
    """The function of a call.  ``arguments`` is the text of a JSON object, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCall:
    """A tool call of the model."""

    id: str
    function: FunctionCall
    type: str = "function"


@dataclass(frozen=True)
class ToolCallDelta:
    """A delta of the call number ``index``.  The first one has ``id`` and ``name``."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class MessageDelta:
    """A delta of a message."""

    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning_content or self.tool_calls)


@dataclass(frozen=True)
class ChatMessage:
    """An answer.  ``content`` is None if there are only calls, ``reasoning_content`` if there is no reasoning."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    role: str = "assistant"

    def as_dict(self) -> dict[str, object]:
        """Return the message as JSON data, for the ``messages`` of the next turn.  Absent parts are left out."""
        message: dict[str, object] = {"role": self.role, "content": self.content or ""}
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in self.tool_calls
            ]
        return message


class _Parts(Protocol):
    @property
    def content(self) -> str: ...
    @property
    def reasoning_content(self) -> str: ...
    @property
    def tool_calls(self) -> tuple[ToolCallDelta, ...]: ...


def joined(deltas: Iterable[_Parts]) -> ChatMessage:
    """Join deltas into a message."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, tuple[str, str, list[str]]] = {}
    for delta in deltas:
        content.append(delta.content)
        reasoning.append(delta.reasoning_content)
        for call in delta.tool_calls:
            _, _, arguments = calls.setdefault(call.index, (call.id or "", call.name or "", []))
            arguments.append(call.arguments)
    text = "".join(content)
    return ChatMessage(
        content=text if text or not calls else None,
        reasoning_content="".join(reasoning) or None,
        tool_calls=[
            ToolCall(id, FunctionCall(name, "".join(arguments))) for _, (id, name, arguments) in sorted(calls.items())
        ],
    )
