"""Find the keys of objects that several schemas describe together, and alternatives that exclude each other.

An object that lists properties has no others unless its schema says so.  If ``allOf``, ``anyOf``, ``oneOf`` and
references describe the same object, this applies to all of them together, as with ``unevaluatedProperties``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeAlias

from .schema_keywords import REFERENCES

__all__ = ["ALL_KEYS", "Group", "Groups", "Keys"]

Keys: TypeAlias = "tuple[str, ...] | None"
"""Keys, in order, that an object may have in addition to those that its schema lists; None: any."""
ALL_KEYS: Keys = None
MAX_DEPTH = 4
MAX_COMPARED = 20_000  # pairs of alternatives in one schema

_OTHERS = ("additionalProperties", "unevaluatedProperties")
_ALTERNATIVES = ("anyOf", "oneOf")


@dataclass
class Group:
    """The keys that are allowed in each place.

    Attributes:
        branches: In the alternatives of each keyword.
        parts: In each schema that applies together with this one.
        others: In the object itself; None if it is open.
    """

    branches: dict[str, Keys] = field(default_factory=dict)
    parts: list[Keys] = field(default_factory=list)
    others: Keys = None


class Groups:
    """Compares schemas as they are written, except for references."""

    def __init__(self, flat: Callable[[object], dict[str, Any] | bool]) -> None:
        """``flat`` returns the keywords of a schema, with its references merged if one schema can say the same."""
        self._flat = flat
        self._named: dict[int, tuple[object, tuple[str, ...]]] = {}
        self._n_compared = 0

    def of(self, said: Mapping[str, Any], together: Sequence[object], keys: Keys) -> Group:
        """Return the group of a schema and those that apply ``together`` with it; ``keys`` are allowed from outside."""
        free = said.get("additionalProperties", said.get("unevaluatedProperties", False))
        listed = (*said.get("properties", ()), *said.get("required", ()))
        parts = [self._keys(part) for part in together]
        options = {keyword: self._keys_of_all(said.get(keyword, ())) for keyword in _ALTERNATIVES}
        is_open = keys is None or "additionalProperties" in said or free is not False
        if is_open or any(self._says(part) for part in together):
            is_partly = isinstance(free, Mapping) and "additionalProperties" not in said
            others = _union(keys or (), listed, *parts, *options.values()) if is_partly else None
            return Group(dict.fromkeys(_ALTERNATIVES), [None] * len(together), others)
        assert keys is not None
        branches: dict[str, Keys] = {
            keyword: _union(keys, listed, *parts, *(options[other] for other in _ALTERNATIVES if other != keyword))
            for keyword in _ALTERNATIVES
        }
        if any(self._opens(option) for keyword in _ALTERNATIVES for option in said.get(keyword, ())):
            return Group(branches, [None] * len(together), None)
        everything = _union(keys, listed, *parts, *options.values())
        lists = "properties" in said or said.get("patternProperties") or "unevaluatedProperties" in said
        return Group(branches, [everything] * len(together), everything if lists else None)

    def _keys(self, schema: object) -> tuple[str, ...]:
        """Return the keys that a schema names for the object itself."""
        if id(schema) in self._named:
            return self._named[id(schema)][1]
        self._named[id(schema)] = schema, ()  # in case it contains itself
        said = self._flat(schema)
        if isinstance(said, bool):
            return ()
        inner = [option for keyword in (*_ALTERNATIVES, "allOf") for option in said.get(keyword, ())]
        found = _union(said.get("properties", ()), said.get("required", ()), *map(self._keys, inner))
        self._named[id(schema)] = schema, found
        return found

    def _keys_of_all(self, schemas: Sequence[object]) -> tuple[str, ...]:
        return _union(*map(self._keys, schemas))

    def _says(self, schema: object) -> bool:
        said = self._flat(schema)
        return not isinstance(said, bool) and any(keyword in said for keyword in _OTHERS)

    def _opens(self, schema: object) -> bool:
        said = self._flat(schema)
        return not isinstance(said, bool) and any(said.get(keyword, False) is not False for keyword in _OTHERS)

    # Alternatives

    def exclude_each_other(self, options: Sequence[object]) -> bool:
        """Return whether no answer generated for one alternative can be valid in another.  False if in doubt."""
        return all(self._exclude(one, other, MAX_DEPTH) for one, other in combinations(options, 2))

    def _exclude(self, one: object, other: object, depth: int) -> bool:
        self._n_compared += 1
        if self._n_compared > MAX_COMPARED:
            return False
        first, second = self._flat(one), self._flat(other)
        if isinstance(first, bool) or isinstance(second, bool) or not depth:
            return first is False or second is False
        if any(keyword in said for said in (first, second) for keyword in REFERENCES):
            return False
        for said, partner in ((first, other), (second, one)):
            for keyword in _ALTERNATIVES:
                if keyword in said and all(self._exclude(inner, partner, depth - 1) for inner in said[keyword]):
                    return True
        kinds = _kinds(first) & _kinds(second)
        values, other_values = _values(first), _values(second)
        if not kinds or (values is not None and other_values is not None and not values & other_values):
            return True
        return kinds == {"object"} and self._exclude_as_objects(first, second, depth)

    def _exclude_as_objects(self, first: Mapping[str, Any], second: Mapping[str, Any], depth: int) -> bool:
        needed = [set(said.get("required", ())) for said in (first, second)]
        properties = [said.get("properties", {}) for said in (first, second)]
        if any(
            name in properties[0] and name in properties[1]
            and self._exclude(properties[0][name], properties[1][name], depth - 1)
            for name in needed[0] & needed[1]
        ):  # fmt: skip
            return True
        return all(
            _is_closed(said) and bool(wanted - set(own) - mine)
            for said, own, mine, wanted in zip((first, second), properties, needed, reversed(needed), strict=True)
        )


def _is_closed(said: Mapping[str, Any]) -> bool:
    open_ = any(said.get(keyword, False) is not False for keyword in _OTHERS)
    return "properties" in said and not open_ and not said.keys() & {"patternProperties", *_ALTERNATIVES, "allOf"}


def _union(*names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in names for name in each))


_ALL_KINDS = {"null", "boolean", "object", "array", "integer", "fraction", "string"}
_KIND_OF = {type(None): "null", bool: "boolean", dict: "object", list: "array", str: "string"}


def _kinds(said: Mapping[str, Any]) -> set[str]:
    """Return the types of values; ``fraction`` is a number that is not an integer."""
    found = set(_ALL_KINDS)
    if "type" in said:
        names = {said["type"]} if isinstance(said["type"], str) else set(said["type"])
        found = names - {"number"} | ({"integer", "fraction"} if "number" in names else set())
    elif said.get("properties") and "items" not in said and "prefixItems" not in said:
        found = {"object"}
    values = said.get("enum", [said["const"]] if "const" in said else None)
    if values is not None:
        found &= {_kind_of(value) for value in values}
    return found


def _kind_of(value: object) -> str:
    if isinstance(value, float):
        return "fraction" if value % 1 else "integer"
    return _KIND_OF.get(type(value), "integer")


def _values(said: Mapping[str, Any]) -> set[str] | None:
    values = said.get("enum", [said["const"]] if "const" in said else None)
    return None if values is None else {json.dumps(value, sort_keys=True) for value in values}
