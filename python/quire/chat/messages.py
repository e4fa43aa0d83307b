"""Conversations as plain data, checked: what a template sees are dicts, lists, strings, numbers and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from quire.errors import RequestError, UnsupportedError

__all__ = ["Json", "Messages", "checked_messages", "checked_tools", "plain"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Messages: TypeAlias = Sequence[Mapping[str, object]]
"""A conversation: ``{"role": ..., "content": text or text parts}``, ``tool_calls`` and so on as in OpenAI's API."""

ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
MAX_DEPTH = 64
# Names that a message's reasoning goes by; templates read one of the first two.
_TEXT_PARTS = ("text", "input_text", "output_text")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def plain(value: object, place: str, depth: int = 0) -> Json:
    """A copy of ``value`` made of JSON types only.  Raises RequestError naming the place of anything else."""
    if depth > MAX_DEPTH:
        raise RequestError(f"[chat] {place} must be nested at most {MAX_DEPTH} deep but is deeper")
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]
    if isinstance(value, str):  # an enum, say: its methods are not for templates
        return str.__str__(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RequestError(f"[chat] {place} must have strings as keys but has {type(key).__name__}")
        return {str(key): plain(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise RequestError(f"[chat] {place} must be JSON data but is {type(value).__name__}")


def checked_messages(messages: Messages) -> list[dict[str, Json]]:
    """Return the messages as templates take them.

    Absent values are left out, but for the content of a call that a client sent as null.  OpenAI's older fields have
    their newer names, reasoning stands under each of its names, and calls and results know each other by id and name.

    Raises:
        RequestError: A message does not hold; it is named.
        UnsupportedError: A part is not text.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError(f"[chat] messages must be a list of messages but is {type(messages).__name__}")
    if not messages:
        raise RequestError("[chat] messages must hold at least one message but is empty")
    checked = [_checked_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    _link_results(checked)
    return checked


def _checked_message(message: object, place: str) -> dict[str, Json]:
    if not isinstance(message, Mapping):
        raise RequestError(f"[chat] {place} must be an object but is {type(message).__name__}")
    data = plain(message, place)
    assert isinstance(data, dict)
    checked: dict[str, Json] = {key: value for key, value in data.items() if value is not None}
    role = checked.get("role")
    if not isinstance(role, str) or ROLE.fullmatch(role) is None:
        raise RequestError(f"[chat] {place}.role must be a word such as user or assistant but is {role!r}")
    _rename_older_fields(checked)
    if "tool_calls" in checked:
        _check_calls(checked["tool_calls"], f"{place}.tool_calls")
        if not checked["tool_calls"]:
            del checked["tool_calls"]
    _set_content(checked, "content" in data, place)
    reasoning = next((checked[key] for key in REASONING_KEYS if key in checked), None)
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise RequestError(f"[chat] {place}.reasoning_content must be text but is {type(reasoning).__name__}")
        checked = {"thinking": reasoning, **checked, "reasoning_content": reasoning}
    return checked


def _rename_older_fields(message: dict[str, Json]) -> None:
    """Turn a function's call and result, as OpenAI's interface had them first, into those of a tool."""
    call = message.pop("function_call", None) if isinstance(message.get("function_call"), dict) else None
    if call is not None and not message.get("tool_calls"):
        message["tool_calls"] = [{"type": "function", "function": call}]
    if message["role"] == "function":
        message["role"] = "tool"


def _set_content(message: dict[str, Json], is_given: bool, place: str) -> None:
    """Check the content, or say what stands for one that is absent or null."""
    refusal = message.pop("refusal", None)
    if "content" in message:
        if message["role"] == "tool":
            message["content"] = _result_content(message["content"])
        message["content"] = _checked_content(message["content"], f"{place}.content")
    elif isinstance(refusal, str) and refusal:
        message["content"] = refusal
    elif message.get("tool_calls") or any(key in message for key in REASONING_KEYS):
        if is_given:
            message["content"] = None
    elif message["role"] in ("assistant", "tool"):
        message["content"] = ""
    else:
        raise RequestError(f"[chat] {place}.content is absent: give text or a list of parts")


def _result_content(content: Json) -> Json:
    """A tool's result as text or parts: other JSON data as its text."""
    is_parts = isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)
    return content if isinstance(content, str) or is_parts else json.dumps(content, ensure_ascii=False)


def _checked_content(content: Json, place: str) -> Json:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"[chat] {place} must be text or a list of parts but is {type(content).__name__}")
    return [_checked_part(part, f"{place}[{i}]") for i, part in enumerate(content)] or ""


def _checked_part(part: Json, place: str) -> dict[str, Json]:
    """A part of text, in the shapes that chats, Responses and Assistants have for it."""
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    if not isinstance(part, dict) or not isinstance(part.get("type", "text"), str):
        raise RequestError(f"[chat] {place} is not an object with a type")
    kind, text = part.get("type", "text"), part.get("text")
    if kind == "refusal":
        kind, text = "text", part.get("refusal")
    if kind not in _TEXT_PARTS:
        raise UnsupportedError(f"[chat] {place}.type {kind!r} is unsupported: only text is read")
    if isinstance(text, dict):  # {"value": ..., "annotations": ...}
        text = text.get("value")
    if not isinstance(text, str):
        raise RequestError(f"[chat] {place}.text {json.dumps(part.get('text'))[:80]} is not a string")
    return {**part, "type": "text", "text": text}


def _link_results(messages: list[dict[str, Json]]) -> None:
    """Give calls without an id one, and results the id and name of their call, by id or else by order."""
    waiting: dict[str, str] = {}
    n_calls = 0
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            waiting = {}
            for call in calls:
                assert isinstance(call, dict)
                n_calls += 1
                if not isinstance(call.get("id"), str) or not call["id"]:
                    call["id"] = str(call["id"]) if call.get("id") else f"call{n_calls:05d}"
                function = call.get("function", call)
                assert isinstance(function, dict)
                if function is not call:
                    call.setdefault("type", "function")
                waiting[str(call["id"])] = str(function["name"])
        elif message["role"] == "tool":
            id = message.get("tool_call_id") or next(iter(waiting), None)
            if id is None:
                continue
            message["tool_call_id"] = str(id)
            name = waiting.pop(str(id), None)
            if name is not None:
                message.setdefault("name", name)


def _check_calls(calls: Json, place: str) -> None:
    if not isinstance(calls, list):
        raise RequestError(f"[chat] {place} must be a list but is {type(calls).__name__}")
    for i, call in enumerate(calls):
        if not isinstance(call, dict):
            raise RequestError(f"[chat] {place}[{i}] must be an object but is {type(call).__name__}")
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"[chat] {place}[{i}].function must have a name")


def checked_tools(tools: Sequence[Mapping[str, object]] | None) -> list[dict[str, Json]] | None:
    """Tool definitions as plain data.  Raises RequestError naming the entry that does not hold."""
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise RequestError(f"[chat] tools must be a list but is {type(tools).__name__}")
    checked = []
    for i, tool in enumerate(tools):
        data = plain(tool, f"tools[{i}]")
        if not isinstance(data, dict):
            raise RequestError(f"[chat] tools[{i}] must be an object but is {type(tool).__name__}")
        checked.append(_without_nulls(data))
    return checked


def _without_nulls(tool: dict[str, Json]) -> dict[str, Json]:
    """A definition without its null fields, which some templates would show, and with its type."""
    kept: dict[str, Json] = {key: value for key, value in tool.items() if value is not None}
    function = kept.get("function")
    if isinstance(function, dict):
        kept["function"] = {key: value for key, value in function.items() if value is not None}
        kept.setdefault("type", "function")
    return kept
