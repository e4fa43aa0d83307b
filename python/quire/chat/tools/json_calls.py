"""Parse calls that are JSON objects, whole or partial."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from quire.chat.tools.calls import Call, Unfinished, checked_name, is_name
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, Wait, strict_json

__all__ = [
    "KEYS",
    "JsonKeys",
    "call_of_json",
    "checked_arguments",
    "items",
    "json_arguments",
    "json_list",
    "json_value",
    "members",
    "started_calls",
    "started_list",
    "started_object",
]


@dataclass(frozen=True)
class JsonKeys:
    """The names of a call's parts in JSON objects."""

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id", "tool_call_id")

    def of_call(self, key: str) -> bool:
        """Return whether a member of this name holds nothing that a call without arguments would lose."""
        return key in (*self.name, *self.id, "id", "tool_call_id", "index", "type", "function")


KEYS = JsonKeys()


def checked_arguments(raw: str) -> str:
    """Return arguments as the text of a JSON object.  Raises Malformed.

    A JSON string that contains an object is accepted.  An empty string and null mean no arguments.
    """
    value = strict_json(raw)
    if isinstance(value, str):
        raw, value = value, strict_json(value) if value.strip() else None
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise Malformed
    return raw.strip()


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def members(raw: str) -> dict[str, str]:
    """Return the members of a valid JSON object, with values as written.  Malformed for a repeated member."""
    found: dict[str, str] = {}
    at = _skip(raw, raw.index("{") + 1)
    while raw[at] != "}":
        key, at = _DECODER.raw_decode(raw, at)
        start = _skip(raw, _skip(raw, at) + 1)
        _, at = _DECODER.raw_decode(raw, start)
        if key in found:
            raise Malformed
        found[key] = raw[start:at]
        at = _skip(raw, at)
        if raw[at] == ",":
            at = _skip(raw, at + 1)
    return found


def items(raw: str) -> list[str]:
    """Return the items of a valid JSON array as written."""
    found = []
    at = _skip(raw, raw.index("[") + 1)
    while raw[at] != "]":
        _, end = _DECODER.raw_decode(raw, at)
        found.append(raw[at:end])
        at = _skip(raw, end)
        if raw[at] == ",":
            at = _skip(raw, at + 1)
    return found


def _skip(raw: str, at: int) -> int:
    match = _SPACE.match(raw, at)
    return at if match is None else match.end()


def call_of_json(raw: str, keys: JsonKeys = KEYS, bare: bool = False) -> Call:
    """Return the call in a JSON object, or in ``{"function": {...}}``.  Raises Malformed.

    A ``bare`` object has no marks around it, so it must have arguments to be a call.
    """
    if not raw.lstrip().startswith("{"):
        raise Malformed
    parts = members(raw)
    inner = parts.get("function", "")
    if inner.startswith("{"):
        parts = {**parts, **members(inner)}
    name = next((parts[key] for key in keys.name if key in parts), "null")
    arguments = next((parts[key] for key in keys.arguments if key in parts), None)
    if arguments is None and (bare or not all(map(keys.of_call, parts))):
        raise Malformed  # arguments under another name would be lost
    id = next((strict_json(parts[key]) for key in keys.id if key in parts), None)
    return Call(
        checked_name(strict_json(name)),
        "{}" if arguments is None else checked_arguments(arguments),
        id if isinstance(id, str) and is_name(id) else None,
    )


def json_list(scan: Scanner, keys: JsonKeys = KEYS) -> Wait[list[Call]]:
    """Return the calls of a JSON array of objects, or of one object: all or none."""
    raw = yield from json_value(scan, keys)
    calls = [call_of_json(item, keys) for item in items(raw)] if raw.startswith("[") else [call_of_json(raw, keys)]
    if not calls:
        raise Malformed
    return calls


def json_value(scan: Scanner, keys: JsonKeys = KEYS, bare_names: Collection[str] | None = None) -> Wait[str]:
    """Take the text of an object or array that is a call or a list of calls.  ``bare_names``: see ``started_calls``."""
    try:
        return (yield from scan.json())
    except CutOff as cut:
        raise Unfinished(started_calls(cut.text, keys, bare_names)) from None


def json_arguments(scan: Scanner, name: str, id: str | None = None) -> Wait[Call]:
    """Take the arguments of a tool's call, a JSON object."""
    try:
        return Call(name, checked_arguments((yield from scan.json())), id)
    except CutOff as cut:
        raise Unfinished([Call(name, _started_arguments(cut.text), id)]) from None


# Partial calls, in answers that were cut


@dataclass(frozen=True)
class StartedObject:
    """The beginning of a JSON object.

    It has the complete ``members`` and, for the next one, the beginning of its name (``begun``), or its name (``key``)
    and the beginning of its value (``rest``).
    """

    members: dict[str, str]
    begun: str = ""
    key: str | None = None
    rest: str = ""

    @property
    def flat(self) -> StartedObject:
        """Return the object with the members of ``function`` as its own."""
        if self.key == "function" and self.rest.startswith("{"):
            inner = started_object(self.rest)
            return StartedObject({**self.members, **inner.members}, inner.begun, inner.key, inner.rest)
        whole = self.members.get("function", "")
        return replace(self, members={**self.members, **members(whole)}) if whole.startswith("{") else self


def started_object(raw: str) -> StartedObject:
    """Split the beginning of an object into its parts."""
    found: dict[str, str] = {}
    at = _skip(raw, 1)
    while raw[at : at + 1] not in ("", "}"):
        end = _end_of_value(raw, at)
        if end is None:
            return StartedObject(found, begun=raw[at:])
        key = strict_json(raw[at:end])
        if not isinstance(key, str) or key in found:
            raise Malformed
        start = _skip(raw, _skip(raw, end) + 1)
        end = _end_of_value(raw, start)
        if end is None:
            return StartedObject(found, key=key, rest=raw[start:])
        found[key] = raw[start:end]
        at = _skip(raw, end)
        if raw[at : at + 1] == ",":
            at = _skip(raw, at + 1)
    return StartedObject(found)


def started_list(raw: str) -> tuple[list[str], str]:
    """Return the complete items of an array's beginning, and the beginning of the next one."""
    found: list[str] = []
    at = _skip(raw, 1)
    while raw[at : at + 1] not in ("", "]"):
        end = _end_of_value(raw, at)
        if end is None:
            return found, raw[at:]
        found.append(raw[at:end])
        at = _skip(raw, end)
        if raw[at : at + 1] == ",":
            at = _skip(raw, at + 1)
    return found, ""


def started_calls(raw: str, keys: JsonKeys = KEYS, bare_names: Collection[str] | None = None) -> list[Call]:
    """Return the calls in the beginning of an array or object.  Malformed if it cannot become a call.

    With ``bare_names`` there are no marks around it, so an object with other members, or with a name that is not one of
    these tools, is not a call.
    """
    if not raw.startswith("["):
        return _started_call(raw, keys, bare_names)
    whole, rest = started_list(raw)
    return [
        *(call_of_json(item, keys, bare_names is not None) for item in whole),
        *_started_call(rest, keys, bare_names),
    ]


def _started_call(raw: str, keys: JsonKeys, bare_names: Collection[str] | None) -> list[Call]:
    if not raw:
        return []
    if not raw.startswith("{"):
        raise Malformed
    parts = started_object(raw).flat
    if bare_names is not None:
        _check_bare(parts, keys)
    name = next((parts.members[key] for key in keys.name if key in parts.members), None)
    if name is None:
        return []
    called = checked_name(strict_json(name))
    if bare_names is not None and called not in bare_names:
        raise Malformed
    whole = next((parts.members[key] for key in keys.arguments if key in parts.members), None)
    rest = _started_arguments(parts.rest) if parts.key in keys.arguments else ""
    id = next((strict_json(parts.members[key]) for key in keys.id if key in parts.members), None)
    arguments = rest if whole is None else checked_arguments(whole)
    return [Call(called, arguments, id if isinstance(id, str) and is_name(id) else None)]


def _check_bare(parts: StartedObject, keys: JsonKeys) -> None:
    known = [*keys.name, *keys.arguments, *keys.id, "type", "function", "index"]
    whole = [*parts.members, *([] if parts.key is None else [parts.key])]
    if not all(key in known for key in whole) or not any(f'"{key}"'.startswith(parts.begun) for key in known):
        raise Malformed


def _started_arguments(raw: str) -> str:
    """Return the beginning of arguments, which may be the text of a JSON string."""
    raw = raw.lstrip()
    if raw.startswith('"'):
        for n in range(len(raw), max(0, len(raw) - 12), -1):  # an escape may be cut
            try:
                text = strict_json(raw[:n] + '"')
            except Malformed:
                continue
            raw = text if isinstance(text, str) else ""
            break
    if raw and not raw.startswith("{") and not "null".startswith(raw):
        raise Malformed
    return raw if raw.startswith("{") else ""


def _end_of_value(raw: str, at: int) -> int | None:
    """Return the end of the value at a place, or None if it may be incomplete, like a number at the end."""
    try:
        _, end = _DECODER.raw_decode(raw, at)
    except (ValueError, RecursionError):
        return None
    return end if end < len(raw) or raw[end - 1] in '"}]' else None
