"""Complete tool definitions with fields that clients leave out and some templates require."""

from __future__ import annotations

from collections.abc import Iterator

from quire.chat.messages import Json

__all__ = ["definition_forms"]

MAX_DEPTH = 16


def definition_forms(tools: list[dict[str, Json]]) -> Iterator[list[dict[str, Json]]]:
    """Return definitions unchanged, with descriptions and parameters, and with each value's type and description."""
    yield tools
    filled = [_filled(tool) for tool in tools]
    yield filled
    yield [_typed(tool) for tool in filled]


def _filled(tool: dict[str, Json]) -> dict[str, Json]:
    function = tool.get("function")
    if not isinstance(function, dict):
        return _filled_function(tool)
    return {"type": "function", **tool, "function": _filled_function(function)}


def _filled_function(function: dict[str, Json]) -> dict[str, Json]:
    given = function.get("parameters")
    parameters: dict[str, Json] = given if isinstance(given, dict) else {}
    parameters = {"type": "object", "properties": {}, "required": [], **parameters}
    return {"description": "", **function, "parameters": parameters}


def _typed(tool: dict[str, Json]) -> dict[str, Json]:
    function = tool.get("function", tool)
    assert isinstance(function, dict)
    typed = {**function, "parameters": _typed_schema(function.get("parameters"), MAX_DEPTH)}
    return {**tool, "function": typed} if "function" in tool else typed


def _typed_schema(schema: Json, depth: int) -> dict[str, Json]:
    """Return a schema with a type and a description, at every level."""
    made: dict[str, Json] = dict(schema) if isinstance(schema, dict) else {}
    kind = made.get("type")
    made["type"] = kind if isinstance(kind, str) else _type_of(made)
    made.setdefault("description", "")
    if depth == 0:
        return made
    properties = made.get("properties")
    if made["type"] == "object" or isinstance(properties, dict):
        inner = properties if isinstance(properties, dict) else {}
        made["properties"] = {name: _typed_schema(value, depth - 1) for name, value in inner.items()}
    if made["type"] == "array":
        made["items"] = _typed_schema(made.get("items"), depth - 1)
    return made


def _type_of(schema: dict[str, Json]) -> str:
    """Return the first type that a schema without a single type allows, or text if it names none."""
    kinds = schema.get("type")
    options = [{"type": kind} for kind in kinds] if isinstance(kinds, list) else []
    for key in ("anyOf", "oneOf", "allOf"):
        listed = schema.get(key)
        options += [option for option in listed if isinstance(option, dict)] if isinstance(listed, list) else []
    found = [option["type"] for option in options if option.get("type") not in (None, "null")]
    if found and isinstance(found[0], str):
        return found[0]
    return "object" if "properties" in schema or "additionalProperties" in schema else "string"
