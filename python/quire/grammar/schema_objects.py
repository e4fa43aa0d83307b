"""Translate keywords about the keys of objects for llguidance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from math import comb
from typing import Any

from .ecma import whole_text_pattern
from .schema_keywords import ANNOTATIONS
from .schema_places import Notes, Place, pointer, unenforceable, unsupported
from .schema_values import counts

__all__ = ["named_keys", "one_key_each", "patterned", "sized"]

MAX_CHOICES = 64  # combinations of keys


def one_key_each(options: list[object]) -> list[dict[str, Any]] | None:
    """Turn a ``oneOf`` whose options each require a different key into alternatives that exclude each other."""
    names: list[str] = []
    for option in options:
        said = {key: option[key] for key in option.keys() - ANNOTATIONS} if isinstance(option, Mapping) else {}
        required = said.get("required")
        if said.keys() - {"required", "type"} or said.get("type", "object") != "object":
            return None
        if not isinstance(required, list) or len(required) != 1 or not isinstance(required[0], str):
            return None
        names += required
    if len(set(names)) < len(names):
        return None
    absent = {name: {other: False for other in names if other != name} for name in names}
    return [{"type": "object", "required": [name], "properties": absent[name]} for name in names]


def patterned(schemas: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Translate ``patternProperties`` to llguidance's dialect."""
    found = {whole_text_pattern(pattern, pointer(place)): schema for pattern, schema in schemas.items()}
    if len(found) != len(schemas):
        raise unsupported(place, "'patternProperties' with patterns that do not exclude each other")
    return found


def named_keys(
    said: Mapping[str, Any], names: object, place: Place, notes: Notes, flat: Callable[[object], Any]
) -> dict[str, Any]:
    """Express ``propertyNames``, whose value is ``names``, by other keywords of an object's schema.

    ``flat`` returns the keywords of a schema with its references followed.  UnsupportedError if no other keywords can
    express it.
    """
    rest = {keyword: value for keyword, value in said.items() if keyword != "propertyNames"}
    names = flat(names)
    if names is False:
        return {**rest, "maxProperties": 0}
    if names is True:
        return rest
    assert isinstance(names, Mapping)
    if "format" in names:
        notes.add(f"format {names['format']!r:.40}", (*place, "format"))
    names = {keyword: value for keyword, value in names.items() if keyword not in ("format", "nullable")}
    if names.get("type", "string") == "string":
        names.pop("type", None)
    if not names:
        return rest
    others = rest.get("additionalProperties", True)
    listed = _listed_names(names, flat)
    if listed is not None and "patternProperties" not in rest:
        own = rest.get("properties", {})
        return {**rest, "properties": {name: own.get(name, others) for name in listed}, "additionalProperties": False}
    pattern = _pattern_of(names)
    if pattern is None or rest.keys() & {"properties", "patternProperties"}:
        raise unenforceable(place[:-1], "propertyNames", f" where it says {', '.join(map(repr, names))}")
    return {**rest, "patternProperties": {pattern: others}, "additionalProperties": False}


def _listed_names(names: Mapping[str, Any], flat: Callable[[object], Any]) -> list[str] | None:
    for keyword in ("anyOf", "oneOf"):
        if names.keys() == {keyword}:
            options = [flat(option) for option in names[keyword]]
            each = [_listed_names(option, flat) if isinstance(option, Mapping) else None for option in options]
            return None if None in each else list(dict.fromkeys(name for found in each for name in found or ()))
    names = {keyword: value for keyword, value in names.items() if keyword != "type"}
    if names.keys() == {"const"}:
        return [names["const"]] if isinstance(names["const"], str) else []
    if names.keys() == {"enum"}:
        return [name for name in names["enum"] if isinstance(name, str)]
    return None


def _pattern_of(names: Mapping[str, Any]) -> str | None:
    if names.keys() == {"pattern"}:
        return str(names["pattern"])
    if names.keys() <= {"minLength", "maxLength"}:
        return rf"^[^]{{{int(names.get('minLength', 0))},{int(names['maxLength']) if 'maxLength' in names else ''}}}$"
    return None


def sized(made: dict[str, Any], said: Mapping[str, Any], place: Place) -> None:
    """Add ``minProperties`` and ``maxProperties`` to an object whose other keywords are ``made``."""
    limits = counts(said, ("minProperties", "maxProperties"), place)
    required, properties = dict.fromkeys(made.get("required", ())), made.get("properties", {})
    least, most = limits.get("minProperties", 0), limits.get("maxProperties")
    is_finite = made.get("additionalProperties") is False and not made.get("patternProperties")
    optional = [name for name, schema in properties.items() if schema is not False and name not in required]
    if is_finite and most is not None and most >= len(required) + len(optional):
        most = None
    if least <= len(required):
        least = 0
    if is_finite and optional and (least > 1 or most is not None):
        made["allOf"] = [*made.get("allOf", []), {"anyOf": _combinations(list(required), optional, least, most, place)}]
        return
    # A grammar does not remember free keys, so two required ones could be the same.
    if least > len(required) + 1 and not (is_finite and not optional):
        raise unenforceable(place, "minProperties", f" beyond one key more than the {len(required)} required")
    made |= {"minProperties": least} if least else {}
    made |= {} if most is None else {"maxProperties": most}


def _combinations(
    required: list[str], optional: list[str], least: int, most: int | None, place: Place
) -> list[dict[str, Any]]:
    """Return the sets of keys that may occur together; if ``most`` is None, an object may have more keys."""
    first = max(least - len(required), 0)
    last = first if most is None else min(most - len(required), len(optional))
    if first > len(optional) or last < first:
        raise unsupported(place, f"no object has {least} to {most} of the {len(required) + len(optional)} keys")
    if sum(comb(len(optional), n) for n in range(first, last + 1)) > MAX_CHOICES:
        raise unenforceable(
            place, "maxProperties" if most is not None else "minProperties", " for so many optional keys"
        )
    return [
        {
            "required": [*required, *chosen],
            "properties": {name: False for name in optional if name not in chosen} if most is not None else {},
        }
        for n in range(first, last + 1)
        for chosen in combinations(optional, n)
    ]
