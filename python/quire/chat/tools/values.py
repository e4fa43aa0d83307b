"""Convert arguments that arrive as plain text to the types of the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping

from quire.chat.tools.literals import python_value
from quire.chat.tools.scanner import Malformed, strict_json
from quire.chat.tools.schemas import PYTHON_TYPES, ValueSchema

__all__ = ["arguments_text", "is_text", "typed_value"]


def arguments_text(values: Mapping[str, object]) -> str:
    """Return arguments as JSON text.  Malformed for values that JSON lacks (infinities)."""
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise Malformed from None


def is_text(schema: object, as_text: bool | None = None) -> bool:
    """Return whether a value can only be the text that it is written as."""
    return as_text is True or ValueSchema.of(schema).is_text


def typed_value(text: str, schema: object, as_text: bool | None = None) -> object:
    """Return the value of a text by its JSON Schema.

    The text is parsed as JSON, then as Python's words and containers (templates print ``True`` and ``None``), if the
    schema allows the result; otherwise the value is the text itself.  Without a schema, a text that is a JSON value
    other than a string is that value.  Numbers are those of JSON: 007 and .5 are texts.  ``as_text`` tells whether the
    wire format marks the value as text; None if it does not say.
    """
    known = ValueSchema.of(schema)
    if as_text is True or known.is_text:
        return text
    for read in (strict_json, python_value):
        try:
            value = read(text.strip())
        except Malformed:
            continue
        if isinstance(value, str):
            return text if known.allows("string") else value
        if as_text is not False and _is_choice(text, value, known):
            return text
        if known.types is None or as_text is False or _allowed(value, known.types):
            return value
    return text


def _is_choice(text: str, value: object, schema: ValueSchema) -> bool:
    """Return whether the schema lists the text itself, but not the value parsed from it."""
    choices = schema.choices or []
    return text in choices and not any(value == choice and type(value) is type(choice) for choice in choices)


def _allowed(value: object, types: frozenset[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, float) and "integer" in types and value.is_integer():
        return True
    return any(isinstance(value, PYTHON_TYPES[name]) for name in types if name in PYTHON_TYPES and name != "boolean")
