"""Convert inputs of ``/v1/responses``: items to messages, and tools to their older format."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ...failures import ApiError, brief
from ..text_parts import Shown, content_of, image_part, is_media
from .tool_names import ToolNames

if TYPE_CHECKING:
    from .mcp_turn import McpHistory

__all__ = ["LeftOut", "messages_of", "tool_of"]

LeftOut: TypeAlias = Callable[[str], None]
"""Called with the place of each item or part that the model will not see."""

# Calls of tools by their item type: the field of their arguments, and the name under which the model knows the tool
# (None: the item has its own name).
_CALLS: dict[str, tuple[str, str | None]] = {
    "function_call": ("arguments", None),
    "custom_tool_call": ("input", None),
    "mcp_call": ("arguments", None),
    "local_shell_call": ("action", "local_shell"),
    "shell_call": ("action", "shell"),
    "apply_patch_call": ("operation", "apply_patch"),
}
_OUTPUTS = (
    "function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output",
    "apply_patch_call_output",
)  # fmt: skip


def _refuse(place: str, what: str) -> ApiError:
    return ApiError(400, "invalid_value", f"{place}: {what}", place)


def tool_of(tool: dict[str, Any], place: str) -> dict[str, Any] | None:
    """Convert a function to the format of ``/v1/chat/completions``; None for a tool of another type.

    ApiError 400 for a function without a name.
    """
    kind = tool.get("type")
    if isinstance(kind, str) and kind != "function":
        return None
    if kind != "function" or not isinstance(tool.get("name"), str):
        raise _refuse(f"{place}.type", f"expected a function with a name, got {brief(kind)}")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def messages_of(
    given: str | list[dict[str, Any]], names: ToolNames, left_out: LeftOut, history: McpHistory | None = None
) -> list[dict[str, Any]]:
    """Convert an input to messages.  Items without content for a model are left out; ApiError 400 for invalid ones.

    ``history`` receives what is about tools of MCP servers, if the request has any.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(given):
        if "namespace" in item:
            item = {**item, "name": names.shown(item["namespace"], item.get("name"))}  # noqa: PLW2901
        if history is None or not _add_mcp(messages, item, f"input[{i}]", history):
            _add(messages, item, f"input[{i}]", left_out)
        if item.get("type") in _CALLS or item.get("type") in _OUTPUTS:
            _check_names(item, f"input[{i}]")
    return messages


def _check_names(item: dict[str, Any], place: str) -> None:
    """Refuse a call or a result that no chat template could read; stored, it would block its conversation."""
    kind = item["type"]
    if kind in _CALLS and _CALLS[kind][1] is None and (not isinstance(item.get("name"), str) or not item["name"]):
        raise _refuse(f"{place}.name", f"expected the tool's name, got {brief(item.get('name'))}")
    if not isinstance(item.get("call_id"), str | None):
        raise _refuse(f"{place}.call_id", f"expected text, got {brief(item['call_id'])}")


def _add_mcp(messages: list[dict[str, Any]], item: dict[str, Any], place: str, history: McpHistory) -> bool:
    """Add an item about tools of MCP servers; return whether it is one."""
    kind = item.get("type")
    if kind == "mcp_list_tools":
        history.listed.add(str(item.get("server_label")))
    elif kind in ("mcp_call", "mcp_approval_request"):
        shown = history.mcp.shown(item.get("server_label"), item.get("name"))
        _add_call(messages, {**item, "name": shown}, "mcp_call")
    elif kind == "mcp_approval_response":
        messages.append({"role": "tool", "content": ""})
        history.answers.append((messages[-1], item, place))
    else:
        return False
    return True


def _add(messages: list[dict[str, Any]], item: dict[str, Any], place: str, left_out: LeftOut) -> None:
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise _refuse(f"{place}.type", f"expected text, got {brief(kind)}")
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise _refuse(f"{place}.role", f"expected user, assistant, system or developer, got {brief(role)}")
        role = "system" if role == "developer" else role
        messages.append({"role": role, "content": _content(item.get("content"), f"{place}.content", left_out)})
    elif kind in _CALLS:
        _add_call(messages, item, kind)
    elif kind in _OUTPUTS:
        output = _output(item.get("output"), f"{place}.output", left_out)
        messages.append({"role": "tool", "tool_call_id": _call_id(item), "content": output})
    elif kind != "reasoning":  # reasoning of earlier turns is not shown to the model again
        left_out(place)


def _call_id(item: dict[str, Any]) -> Any:
    return item.get("call_id") or item.get("id")


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], kind: str) -> None:
    field, name = _CALLS[kind]
    given = item.get(field)
    if kind == "custom_tool_call":
        given = {"input": given}
    given = {} if given is None else given
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    function = {"name": name or item.get("name"), "arguments": arguments}
    # Calls of one turn, and the text before them, form one message.
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    made = {"id": _call_id(item), "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(made)
    if kind == "mcp_call" and (result := item.get("output") or item.get("error")):
        shown = result if isinstance(result, str) else msgspec.json.encode(result).decode()
        messages.append({"role": "tool", "tool_call_id": _call_id(item), "content": shown})


def _output(output: Any, place: str, left_out: LeftOut) -> str | list[dict[str, Any]]:
    """Convert a tool's output: text, parts, or (from a shell) objects without a type, which are shown as JSON."""
    if isinstance(output, list) and all(isinstance(part, dict) and "type" in part for part in output):
        return _content(output, place, left_out)
    if output is None:  # from a tool that only reports success
        return ""
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()


def _content(content: Any, place: str, left_out: LeftOut) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _refuse(place, "expected text or a list of parts")
    shown: list[Shown] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "input_image" and isinstance(part.get("image_url"), str):
            shown.append(image_part(part["image_url"]))
            continue
        if kind == "input_audio" and isinstance(part.get("input_audio"), dict):
            shown.append({"type": "input_audio", "input_audio": part["input_audio"]})
            continue
        if not isinstance(kind, str) or is_media(kind):
            raise _refuse(
                f"{place}[{i}]", f"expected a text part, an image with image_url or input_audio, got {brief(kind)}"
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if isinstance(text, str):
            shown.append(text)
        elif kind in ("input_text", "output_text", "text"):
            raise _refuse(f"{place}[{i}].text", f"expected text, got {brief(text)}")
        else:
            left_out(f"{place}[{i}]")
    return content_of(shown)
