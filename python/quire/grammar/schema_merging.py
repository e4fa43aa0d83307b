"""Merge schemas that apply together (``allOf``, ``$ref`` beside other keywords) if one schema can say the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .schema_keywords import LOWER_BOUNDS, UPPER_BOUNDS

__all__ = ["merged"]

Schema = Mapping[str, Any]

# The meaning of these keywords depends on others of the same object.
_SCOPED = (
    ({"additionalProperties", "unevaluatedProperties"}, {"properties", "patternProperties"}),
    ({"items", "additionalItems", "unevaluatedItems"}, {"items", "prefixItems"}),
)
_LEAST = LOWER_BOUNDS | {"minLength", "minItems", "minProperties"}
_MOST = UPPER_BOUNDS | {"maxLength", "maxItems", "maxProperties"}
_ALONE = {"nullable", "if", "then", "else", "contains", "minContains", "maxContains"}


def merged(parts: Sequence[Schema]) -> dict[str, Any] | None:
    """Return one schema that allows what all parts allow, with properties in the parts' order, or None.

    The parts have neither references nor ``allOf``.
    """
    if any(part.keys() & _ALONE for part in parts):
        return None
    if len(parts) == 1:
        return dict(parts[0])
    for scoped, beside in _SCOPED:
        users = [part for part in parts if part.keys() & scoped]
        if users and (len(users) > 1 or any(part is not users[0] and part.keys() & beside for part in parts)):
            return None
    found: dict[str, Any] = {}
    for part in parts:
        for keyword, value in part.items():
            if keyword not in found:
                found[keyword] = value
                continue
            both = _both(keyword, found[keyword], value)
            if both is None:
                return None
            found[keyword] = both
    return found


def _both(keyword: str, one: Any, other: Any) -> Any:
    """Return the value of a keyword that says the same as both together, or None."""
    if keyword == "properties":
        return {**one, **{name: _each(one[name], schema) if name in one else schema for name, schema in other.items()}}
    if keyword == "required":
        return list(dict.fromkeys([*one, *other]))
    if keyword == "type":
        return _common_types(one, other)
    if isinstance(one, bool) or isinstance(other, bool) or keyword not in _LEAST | _MOST:
        return one if _same(one, other) else None
    return max(one, other) if keyword in _LEAST else min(one, other)


def _each(one: Any, other: Any) -> Any:
    if _same(one, other) or other is True or other == {}:
        return one
    return other if one is True or one == {} else {"allOf": [one, other]}


def _common_types(one: Any, other: Any) -> Any:
    first, second = ([kinds] if isinstance(kinds, str) else kinds for kinds in (one, other))
    common = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    if "integer" in second and "number" in first and "integer" not in common:
        common.append("integer")
    return common[0] if len(common) == 1 else common or None


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON, where 1 is not true."""
    return one is other or (one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))
