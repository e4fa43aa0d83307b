"""What msgspec says of a body that does not hold, in this server's words: which field, what it must be, what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["of_decoding", "of_validation"]

_AT = re.compile(r" - at `(?:key in )?(.*)`$")
_BYTE = re.compile(r"^JSON is malformed: (.*) \(byte (\d+)\)$")
_KINDS = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "null",
}  # fmt: skip
_LIMITS = {">=": ("at least", "less"), "<=": ("at most", "more"), ">": ("more than", "not"), "<": ("less than", "not")}
_SIZES = {"str": "characters", "array": "entries", "object": "entries"}


def of_decoding(error: Exception) -> str:
    """Why a body is no JSON, to stand after "but"."""
    text = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        return f"its text is no UTF-8: {error.reason} (byte {error.start} of a text)"
    if text == "Input data was truncated":
        return "it ends within a value or a text (or a text has half of a surrogate pair)"
    if "out of range" in text:
        return "a number has more digits than a number can have"
    if found := _BYTE.match(text):
        return f"has a fault at byte {found[2]}: {found[1]}"
    return f"does not hold: {text[:200]}"


def of_validation(error: msgspec.ValidationError, wire: type[Any], given: Mapping[str, Any]) -> tuple[str | None, str]:
    """The field at fault (None: the body itself) and the whole message."""
    text = " ".join(str(error).split())
    at = _AT.search(text)
    path = at[1].removeprefix("$").removeprefix(".") if at is not None else ""
    text = _AT.sub("", text)
    if found := re.match(r"Object missing required field `(.*)`$", text):
        path = f"{path}.{found[1]}".lstrip(".")
        return path, f"{path} must be given but is absent"
    if found := re.match(r"Object contains unknown field `(.*)`$", text):
        return path or None, f"{path} must have fields that are known but has {found[1][:64]!r}"
    if re.match(r"Invalid enum value", text):
        names = _names_of(wire, path)
        known = f"one of {', '.join(names)}" if len(names) > 1 else "".join(names) or "one of the values that are known"
        return path, f"{path} must be {known} but is {_shown(given, path)}"
    if " must " in text:  # a rule of the type's own
        return path or None, f"{path}: {text}"
    return path or None, f"{path or 'the body'} {_rule(text)}"


def _rule(text: str) -> str:
    if found := re.match(r"Expected `(.*?)`, got `(.*)`$", text):
        kinds = [_KINDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
        wanted = " or ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)
        return f"must be {wanted} but is {_KINDS.get(found[2], found[2])}"
    if found := re.match(r"Expected `array` of length (\d+), got (\d+)$", text):
        return f"must have {found[1]} entries but has {found[2]}"
    return _limit(text)


def _limit(text: str) -> str:
    if found := re.match(r"Expected `(\w+)` of length (>=|<=) (\d+)$", text):
        limit, other = _LIMITS[found[2]]
        return f"must have {limit} {found[3]} {_SIZES.get(found[1], 'entries')} but has {other}"
    if found := re.match(r"Expected `(\w+)` (>=|<=|>|<) (\S+)$", text):
        number = f"{float(found[3]):g}" if found[1] == "float" else found[3]
        limit, other = _LIMITS[found[2]]
        return f"must be {_KINDS[found[1]]} of {limit} {number} but is {other}"
    if found := re.match(r"Expected `str` matching regex '(.*)'$", text):
        return f"must be text like {found[1]} but is another one"
    if "out of range" in text:
        return "must be a number that 64 bits can hold but is not"
    return f"must hold but does not: {text[:200]}"


def _names_of(wire: type[Any], path: str) -> list[str]:
    """The words that a field of the body may be, where these are all that it may be."""
    try:
        found = next(f for f in msgspec.structs.fields(wire) if f.encode_name == path)
    except StopIteration:
        return []
    described = msgspec.json.schema(found.type)
    return [str(value) for part in (described, *described.get("anyOf", ())) for value in part.get("enum", ())]


def _shown(given: Mapping[str, Any], path: str) -> str:
    value = given.get(path)
    return repr(value[:40]) if isinstance(value, str) else "another one"
