"""Check conversations and copy them to plain data: templates see only dicts, lists, strings, numbers and null."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from quire.errors import RequestError, UnsupportedError

__all__ = ["Json", "MediaMark", "Messages", "check_outline", "checked_messages", "checked_tools", "plain"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Messages: TypeAlias = Sequence[Mapping[str, object]]
"""A conversation: ``{"role": ..., "content": text or text parts}``, ``tool_calls`` and so on as in OpenAI's API."""

ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
MAX_DEPTH = 64
# The names of a message's reasoning.  Templates read one of the first two.
_TEXT_PARTS = ("text", "input_text", "output_text")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


class MediaMark(str):
    """Text that stands for an image or a sound.

    A part of a message with such a text may have a type other than text, so that templates write their own placeholder.
    """

    __slots__ = ()


def plain(value: object, place: str, depth: int = 0) -> Json:
    """Return a copy of ``value`` made of JSON types.  RequestError names the place of anything else."""
    if depth > MAX_DEPTH:
        raise RequestError(f"[chat] {place} is nested more than {MAX_DEPTH} deep")
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]
    if isinstance(value, MediaMark):
        return value
    if isinstance(value, str):  # a subclass such as an enum, whose methods are not for templates
        return str.__str__(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RequestError(f"[chat] {place} has a key of type {type(key).__name__}: expected strings")
        return {str(key): plain(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise RequestError(f"[chat] {place} of type {type(value).__name__} is not JSON data")


def checked_messages(messages: Messages) -> list[dict[str, Json]]:
    """Return the messages as templates take them.

    Absent values are left out, except for the content of a call that a client sent as null.  OpenAI's older fields get
    their newer names, reasoning is there under each of its names, and calls and results are linked by id and name.

    Raises:
        RequestError: A message is invalid; the error names it.
        UnsupportedError: A part is not text.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError(f"[chat] messages: expected a list, not {type(messages).__name__}")
    if not messages:
        raise RequestError("[chat] messages is empty: expected at least one message")
    checked = [_checked_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    _link_results(checked)
    return checked


def check_outline(messages: Messages) -> None:
    """Raise RequestError for a message whose role is no word, or whose content is no text and no list."""
    for i, message in enumerate(messages):
        _check_role(message.get("role"), f"messages[{i}]")
        content = message.get("content")
        if content is not None and message["role"] != "tool" and not isinstance(content, str | list):
            raise RequestError(f"[chat] messages[{i}].content is {content!r:.80}: expected text or a list of parts")


def _check_role(role: object, place: str) -> None:
    if not isinstance(role, str) or ROLE.fullmatch(role) is None:
        raise RequestError(f"[chat] {place}.role {role!r:.80} is not a word such as user or assistant")


def _checked_message(message: object, place: str) -> dict[str, Json]:
    if not isinstance(message, Mapping):
        raise RequestError(f"[chat] {place}: expected an object, not {type(message).__name__}")
    data = plain(message, place)
    assert isinstance(data, dict)
    checked: dict[str, Json] = {key: value for key, value in data.items() if value is not None}
    _check_role(checked.get("role"), place)
    _rename_older_fields(checked)
    if "tool_calls" in checked:
        _check_calls(checked["tool_calls"], f"{place}.tool_calls")
        if not checked["tool_calls"]:
            del checked["tool_calls"]
    _set_content(checked, "content" in data, place)
    reasoning = next((checked[key] for key in REASONING_KEYS if key in checked), None)
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise RequestError(f"[chat] {place}.reasoning_content: expected text, not {type(reasoning).__name__}")
        checked = {"thinking": reasoning, **checked, "reasoning_content": reasoning}
    return checked


def _rename_older_fields(message: dict[str, Json]) -> None:
    """Turn a function's call and result, as in OpenAI's older API, into those of a tool."""
    call = message.pop("function_call", None) if isinstance(message.get("function_call"), dict) else None
    if call is not None and not message.get("tool_calls"):
        message["tool_calls"] = [{"type": "function", "function": call}]
    if message["role"] == "function":
        message["role"] = "tool"


def _set_content(message: dict[str, Json], is_given: bool, place: str) -> None:
    """Check the content, or replace one that is absent or null."""
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
    """Return a tool's result as text or parts; other JSON data becomes its text."""
    is_parts = isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)
    return content if isinstance(content, str) or is_parts else json.dumps(content, ensure_ascii=False)


def _checked_content(content: Json, place: str) -> Json:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"[chat] {place}: expected text or a list of parts, not {type(content).__name__}")
    return [_checked_part(part, f"{place}[{i}]") for i, part in enumerate(content)] or ""


def _checked_part(part: Json, place: str) -> dict[str, Json]:
    """Return a text part, accepting the shapes of the Chat, Responses and Assistants APIs."""
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    if not isinstance(part, dict) or not isinstance(part.get("type", "text"), str):
        raise RequestError(f"[chat] {place} is not an object with a type")
    kind, text = part.get("type", "text"), part.get("text")
    if isinstance(text, MediaMark):
        return {"type": kind, "text": str.__str__(text)}
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
        raise RequestError(f"[chat] {place}: expected a list, not {type(calls).__name__}")
    for i, call in enumerate(calls):
        if not isinstance(call, dict):
            raise RequestError(f"[chat] {place}[{i}]: expected an object, not {type(call).__name__}")
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"[chat] {place}[{i}].function has no name")


def checked_tools(tools: Sequence[Mapping[str, object]] | None) -> list[dict[str, Json]] | None:
    """Return tool definitions as plain data.  RequestError names an invalid entry."""
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise RequestError(f"[chat] tools: expected a list, not {type(tools).__name__}")
    checked = []
    for i, tool in enumerate(tools):
        data = plain(tool, f"tools[{i}]")
        if not isinstance(data, dict):
            raise RequestError(f"[chat] tools[{i}]: expected an object, not {type(tool).__name__}")
        checked.append(_without_nulls(data))
    return checked


def _without_nulls(tool: dict[str, Json]) -> dict[str, Json]:
    """Return a definition with its type and without null fields, which some templates would show."""
    kept: dict[str, Json] = {key: value for key, value in tool.items() if value is not None}
    function = kept.get("function")
    if isinstance(function, dict):
        kept["function"] = {key: value for key, value in function.items() if value is not None}
        kept.setdefault("type", "function")
    return kept
