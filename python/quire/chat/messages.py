"""Conversations as plain data, checked: what a template sees are dicts, lists, strings, numbers and nothing else."""

from __future__ import annotations

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
    """The messages as transformers hands them to a template: absent values left out, reasoning under each of its
    names, all else as it was given.

    Raises RequestError naming the entry that does not hold, UnsupportedError for parts that are not text.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError(f"[chat] messages must be a list of messages but is {type(messages).__name__}")
    if not messages:
        raise RequestError("[chat] messages must hold at least one message but is empty")
    return [_checked_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _checked_message(message: object, place: str) -> dict[str, Json]:
    if not isinstance(message, Mapping):
        raise RequestError(f"[chat] {place} must be an object but is {type(message).__name__}")
    data = plain(message, place)
    assert isinstance(data, dict)
    checked: dict[str, Json] = {key: value for key, value in data.items() if value is not None}
    role = checked.get("role")
    if not isinstance(role, str) or ROLE.fullmatch(role) is None:
        raise RequestError(f"[chat] {place}.role must be a word such as user or assistant but is {role!r}")
    if "tool_calls" in checked:
        _check_calls(checked["tool_calls"], f"{place}.tool_calls")
    if "content" in checked:
        _check_content(checked["content"], f"{place}.content")
    elif not checked.get("tool_calls") and not any(key in checked for key in REASONING_KEYS):
        raise RequestError(f"[chat] {place}.content must be text or a list of parts but is absent")
    reasoning = next((checked[key] for key in REASONING_KEYS if key in checked), None)
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise RequestError(f"[chat] {place}.reasoning_content must be text but is {type(reasoning).__name__}")
        checked = {"thinking": reasoning, **checked, "reasoning_content": reasoning}
    return checked


def _check_content(content: Json, place: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise RequestError(f"[chat] {place} must be text or a list of parts but is {type(content).__name__}")
    for i, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise RequestError(f"[chat] {place}[{i}] must be an object with a type")
        if part["type"] != "text":
            raise UnsupportedError(f"[chat] {place}[{i}].type must be text but is {part['type']!r}")
        text = part.get("text")
        if not isinstance(text, str):
            raise RequestError(f"[chat] {place}[{i}].text must be text but is {type(text).__name__}")


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
        checked.append(data)
    return checked
