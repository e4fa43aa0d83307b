"""Rephrase msgspec's errors in plain words: the field at fault, what it is, and what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["of_decoding", "of_validation"]

_AT = re.compile(r" - at `(key` in `)?(.*)`$")
_BYTE = re.compile(r"^JSON is malformed: (.*) \(byte (\d+)\)$")
_KINDS = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "null",
}  # fmt: skip
_LIMITS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_SIZES = {"str": "characters", "array": "entries", "object": "entries"}


def of_decoding(error: Exception) -> str:
    """Say why a body is not valid JSON."""
    text = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        return f"a text is not UTF-8: {error.reason} (byte {error.start} of the text)"
    if text == "Input data was truncated":
        return "it ends inside a value (or a text has half of a surrogate pair)"
    if "out of range" in text:
        return "a number has too many digits"
    if found := _BYTE.match(text):
        return f"{found[1]} at byte {found[2]}"
    return text[:200]


def of_validation(error: msgspec.ValidationError, wire: type[Any], given: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the field at fault, None for the body itself, and the whole message."""
    text = " ".join(str(error).split())
    at = _AT.search(text)
    path = at[2].removeprefix("$").removeprefix(".") if at is not None else ""
    text = _AT.sub("", text)
    if found := re.match(r"Object missing required field `(.*)`$", text):
        path = f"{path}.{found[1]}".lstrip(".")
        return path, f"{path} is required"
    if found := re.match(r"Object contains unknown field `(.*)`$", text):
        return path or None, f"unknown field {found[1][:64]!r}" + (f" in {path}" if path else "")
    if re.match(r"Invalid enum value", text):
        names = _names_of(wire, path)
        known = f"one of {', '.join(names)}" if len(names) > 1 else "".join(names) or "a known value"
        return path, f"unsupported {path}{_shown(given, path)}: expected {known}"
    if at is not None and at[1]:
        return path or None, _rule(text, f"a key of {path or 'the body'}", "")
    return path or None, _rule(text, path or "the body", _shown(given, path))


def _rule(text: str, name: str, shown: str) -> str:
    if found := re.match(r"Expected `(.*?)`, got `(.*)`$", text):
        kinds = [_KINDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
        wanted = " or ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)
        return f"{name}{shown} is {_KINDS.get(found[2], found[2])}: expected {wanted}"
    if found := re.match(r"Expected `array` of length (\d+), got (\d+)$", text):
        return f"{name} has {found[2]} entries: expected {found[1]}"
    if found := re.match(r"Expected `(\w+)` of length (>=|<=) (\d+)$", text):
        size = _SIZES.get(found[1], "entries")
        return f"{name} has too {'few' if found[2] == '>=' else 'many'} {size}: expected {_LIMITS[found[2]]} {found[3]}"
    if found := re.match(r"Expected `(\w+)` (>=|<=|>|<) (\S+)$", text):
        number = f"{float(found[3]):g}" if found[1] == "float" else found[3]
        return f"{name}{shown} is out of range: expected {_LIMITS[found[2]]} {number}"
    if found := re.match(r"Expected `str` matching regex '(.*)'$", text):
        return f"{name}{shown} is not allowed: expected text that matches {found[1]}"
    return f"{name} is a number of more than 64 bits" if "out of range" in text else f"{name}: {text[:200]}"


def _names_of(wire: type[Any], path: str) -> list[str]:
    """Return the words that a field of the body may be, if it is an enumeration."""
    try:
        found = next(f for f in msgspec.structs.fields(wire) if f.encode_name == path)
    except StopIteration:
        return []
    described = msgspec.json.schema(found.type)
    return [str(value) for part in (described, *described.get("anyOf", ())) for value in part.get("enum", ())]


def _shown(given: Mapping[str, Any], path: str) -> str:
    """Return the value of a field after a space, if it is short; else an empty text."""
    value = given.get(path)
    if isinstance(value, str):
        return f" {value[:40]!r}"
    return f" {value!r:.40}" if isinstance(value, int | float) else ""
