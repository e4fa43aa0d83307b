"""Arguments that come as plain text, one by one: their types are those of the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping

from quire.chat.tools.literals import python_value
from quire.chat.tools.scanner import Malformed, strict_json

__all__ = ["allows", "arguments_text", "is_text", "typed_value"]

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def arguments_text(values: Mapping[str, object]) -> str:
    """Arguments as JSON text.  Raises Malformed for what JSON has not (infinities)."""
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise Malformed from None


def is_text(schema: object, as_text: bool | None = None) -> bool:
    """Whether a value can be nothing but the text that it is written as."""
    return as_text is True or _types(schema) == {"string"}


def allows(schema: object, kind: str) -> bool:
    """Whether a schema allows a type of JSON, given by its name."""
    types = _types(schema)
    return types is None or kind in types


def typed_value(text: str, schema: object, as_text: bool | None = None) -> object:
    """The value that a text stands for, by its JSON Schema.

    JSON first, then Python's literals (templates print ``True`` and ``None``), where the schema allows what comes out;
    otherwise the text itself.  Without a schema a text that is a JSON value other than a string is that value.
    ``as_text``: what the wire itself says, where it does.
    """
    types = _types(schema)
    if as_text is True or types == {"string"}:
        return text
    for read in (strict_json, python_value):
        try:
            value = read(text.strip())
        except Malformed:
            continue
        if isinstance(value, str):
            return text if types is None or "string" in types else value
        if types is None or as_text is False or _allowed(value, types):
            return value
    return text


def _allowed(value: object, types: set[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, float) and "integer" in types and value.is_integer():
        return True
    return any(isinstance(value, _PYTHON_TYPES[name]) for name in types if name in _PYTHON_TYPES and name != "boolean")


def _types(schema: object, depth: int = 0) -> set[str] | None:
    """The names of the types that a schema allows; None for any."""
    if not isinstance(schema, Mapping) or depth > 8:
        return None
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {name for name in kind if isinstance(name, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return {_type_of(value) for value in values}
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list):
            found = [_types(option, depth + 1) for option in options]
            return None if None in found else {name for types in found if types is not None for name in types}
    return None


def _type_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = [name for name, kind in _PYTHON_TYPES.items() if isinstance(value, kind)]
    return names[0] if names else "string"
