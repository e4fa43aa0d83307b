"""Inputs of ``/v1/responses``: items to messages, and tools by their older shape."""

from __future__ import annotations

from typing import Any

from ...failures import ApiError, brief
from ..text_parts import content_of

__all__ = ["is_hosted", "messages_of", "tool_of"]


def _refuse(place: str, what: str) -> ApiError:
    return ApiError(400, "invalid_value", f"{place} must {what}", place)


def tool_of(tool: dict[str, Any], index: int) -> dict[str, Any]:
    """A function as ``/v1/chat/completions`` has it, one level deeper.  ApiError 400 for tools of other kinds."""
    place = f"tools[{index}]"
    if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        raise _refuse(f"{place}.type", f"be function, with a name, but is {brief(tool.get('type'))}")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


# Tools that OpenAI's server runs, or that have no schema: a model here cannot be told of them.
_HOSTED = (
    "web_search", "file_search", "code_interpreter", "image_generation", "computer", "mcp", "local_shell", "shell",
    "custom", "apply_patch", "namespace",
)  # fmt: skip


def is_hosted(tool: Any) -> bool:
    """Whether a tool is one of those, in any version."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind.startswith(_HOSTED)


def messages_of(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of an input."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(given):
        _add(messages, item, f"input[{i}]")
    return messages


def _add(messages: list[dict[str, Any]], item: dict[str, Any], place: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise _refuse(f"{place}.role", f"be user, assistant, system or developer but is {brief(role)}")
        role = "system" if role == "developer" else role
        messages.append({"role": role, "content": _content(item.get("content"), f"{place}.content")})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        made = {"id": item.get("call_id"), "type": "function", "function": function}
        # Calls of one turn, and the text before them, are one message.
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(made)
    elif kind == "function_call_output":
        output = _content(item.get("output"), f"{place}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "reasoning":  # what the model thought in another turn is not shown to it again
        return
    else:
        raise _refuse(
            f"{place}.type", f"be message, function_call, function_call_output or reasoning but is {brief(kind)}"
        )


def _content(content: Any, place: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refuse(place, "be text or a list of parts")
    texts = []
    for i, part in enumerate(content):
        kinds = ("input_text", "output_text", "text")
        if not isinstance(part, dict) or part.get("type") not in kinds or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else None
            raise _refuse(f"{place}[{i}]", f"be a part of text but is {brief(kind)}")
        texts.append(part["text"])
    return content_of(texts)
