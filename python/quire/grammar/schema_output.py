"""Assemble the schemas that were read: alternatives with null, and definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["or_null", "with_definitions"]

MAX_INLINED = 24  # definitions in each other

_MAPS, _LISTS = ("properties", "patternProperties"), ("anyOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def or_null(made: object) -> object:
    """Return a schema that also allows null."""
    if isinstance(made, bool):
        return made or {"type": "null"}
    assert isinstance(made, dict)
    kinds = made.get("type")
    if kinds is not None and not made.keys() & {"enum", "const", "anyOf", "allOf", "$ref"}:
        listed = [kinds] if isinstance(kinds, str) else kinds
        return {**made, "type": [*listed, *([] if "null" in listed else ["null"])]}
    if made.keys() == {"anyOf"}:
        return {"anyOf": [*made["anyOf"], {"type": "null"}]}
    return {"anyOf": [made, {"type": "null"}]}


def with_definitions(made: object, definitions: Mapping[str, object]) -> object:
    """Add the definitions that a schema refers to.  Those used once replace their reference."""
    uses: Counter[str] = Counter()

    def count(schema: object) -> object:
        if isinstance(schema, Mapping) and "$ref" in schema:
            uses[_name(schema)] += 1
        return schema if not isinstance(schema, Mapping) else _mapped(schema, count)

    for schema in (made, *definitions.values()):
        count(schema)
    inlined: set[str] = set()

    def inline(schema: object, depth: int) -> object:
        if not isinstance(schema, Mapping):
            return schema
        if "$ref" in schema and uses[_name(schema)] == 1 and depth < MAX_INLINED:
            inlined.add(_name(schema))
            return inline(definitions[_name(schema)], depth + 1)
        return _mapped(schema, lambda inner: inline(inner, depth))

    whole = inline(made, 0)
    left = {name: inline(schema, 0) for name, schema in definitions.items() if uses[name] > 1}
    left |= {name: schema for name, schema in definitions.items() if uses[name] == 1 and name not in inlined}
    return {**whole, "$defs": left} if left and isinstance(whole, Mapping) else whole


def _name(reference: Mapping[str, Any]) -> str:
    return str(reference["$ref"]).removeprefix("#/$defs/")


def _mapped(schema: Mapping[str, Any], change: Callable[[object], object]) -> dict[str, Any]:
    """Return the schema with a change applied to its inner schemas."""
    made = dict(schema)
    for keyword in _MAPS:
        if keyword in made:
            made[keyword] = {name: change(inner) for name, inner in made[keyword].items()}
    for keyword in _LISTS:
        if keyword in made:
            made[keyword] = [change(inner) for inner in made[keyword]]
    for keyword in _SINGLE:
        if keyword in made:
            made[keyword] = change(made[keyword])
    return made
