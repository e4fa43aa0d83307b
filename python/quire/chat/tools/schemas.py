"""JSON Schemas of arguments, as far as they determine how a text is parsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

__all__ = ["ANY", "PYTHON_TYPES", "ValueSchema"]

PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
_MAX_DEPTH = 16
_MAX_PARTS = 256
_MAX_VISITED = 10_000
# They do not restrict other types, but are only written for these.
_OF_TEXTS = frozenset({"pattern", "minLength", "maxLength", "format", "contentEncoding", "contentMediaType"})


@dataclass(frozen=True)
class ValueSchema:
    """A schema.  Its references are looked up in ``roots``, one document after the other."""

    said: object = None
    roots: tuple[object, ...] = ()

    @classmethod
    def of(cls, schema: object) -> ValueSchema:
        """Wrap a schema.  References of a plain one are resolved in itself."""
        return schema if isinstance(schema, ValueSchema) else cls(schema, (schema,))

    @cached_property
    def types(self) -> frozenset[str] | None:
        """The names of the types that the schema allows; None for any.  ``number`` implies ``integer``."""
        return self._types_of(self.said, {}, 0)

    @property
    def is_text(self) -> bool:
        """Return whether only strings are allowed."""
        return self.types == frozenset({"string"})

    def allows(self, kind: str) -> bool:
        """Return whether the type of this name is allowed."""
        return self.types is None or kind in self.types

    @cached_property
    def choices(self) -> list[object] | None:
        """The values of ``enum`` or ``const``, or None."""
        for part in self._parts():
            values = part.get("enum", [part["const"]] if "const" in part else None)
            if isinstance(values, list):
                return values
        return None

    @cached_property
    def members(self) -> dict[str, ValueSchema]:
        """The schemas of the members that an object lists."""
        found: dict[str, ValueSchema] = {}
        for part in self._parts():
            properties = part.get("properties")
            for name, schema in properties.items() if isinstance(properties, Mapping) else ():
                if isinstance(name, str):
                    found.setdefault(name, ValueSchema(schema, self.roots))
        return found

    def member(self, name: str) -> ValueSchema:
        """Return the schema of a member, listed or not."""
        listed = self.members.get(name)
        if listed is not None:
            return listed
        patterns = self._first("patternProperties").said
        if isinstance(patterns, Mapping) and len(patterns) == 1:  # the only allowed values
            return ValueSchema(next(iter(patterns.values())), self.roots)
        return self._first("additionalProperties")

    @property
    def item(self) -> ValueSchema:
        """The schema of a list's items."""
        return self._first("items")

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of members at any depth."""
        found: set[str] = set()
        left: list[object] = [self.said, *self.roots]
        for _ in range(_MAX_VISITED):
            if not left:
                break
            current = left.pop()
            if isinstance(current, Mapping):
                properties = current.get("properties")
                found.update(name for name in (properties if isinstance(properties, Mapping) else ()))
                left += current.values()
            elif isinstance(current, list):
                left += current
        return frozenset(name for name in found if isinstance(name, str))

    def _first(self, keyword: str) -> ValueSchema:
        for part in self._parts():
            if isinstance(part.get(keyword), Mapping):
                return ValueSchema(part[keyword], self.roots)
        return ANY

    def _parts(self) -> Iterator[Mapping[str, object]]:
        """Yield the schema, and those that it refers to or is composed of."""
        left: list[tuple[object, int]] = [(self.said, 0)]
        for _ in range(_MAX_PARTS):
            if not left:
                return
            current, depth = left.pop(0)
            if not isinstance(current, Mapping) or depth > _MAX_DEPTH:
                continue
            yield current
            inner = [self._referred(current)]
            for keyword in ("allOf", "anyOf", "oneOf"):
                listed = current.get(keyword)
                inner += listed if isinstance(listed, list) else []
            left += [(schema, depth + 1) for schema in inner]

    def _referred(self, schema: Mapping[str, object]) -> object:
        """Return the schema that ``$ref`` points to, or None."""
        reference = schema.get("$ref", schema.get("$dynamicRef"))
        if not isinstance(reference, str):
            return None
        _, hash_sign, pointer = reference.partition("#")
        steps = [step.replace("~1", "/").replace("~0", "~") for step in unquote(pointer).split("/")]
        for root in self.roots if hash_sign else ():
            found = _anchored(root, steps[0]) if steps[0] else root
            for step in steps[1:]:
                found = _step(found, step)
            if found is not None:
                return found
        return None

    def _types_of(self, schema: object, known: dict[int, frozenset[str] | None], depth: int) -> frozenset[str] | None:
        """Return the types of a schema.  ``known`` has those of visited schemas by identity."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return None
        if id(schema) not in known:
            known[id(schema)] = None  # for a schema that contains itself
            known[id(schema)] = self._combined(schema, known, depth + 1)
        return known[id(schema)]

    def _combined(
        self, schema: Mapping[str, object], seen: dict[int, frozenset[str] | None], depth: int
    ) -> frozenset[str] | None:
        all_of = schema.get("allOf")
        said = [_own_types(schema), self._types_of(self._referred(schema), seen, depth)]
        said += [self._types_of(part, seen, depth) for part in (all_of if isinstance(all_of, list) else [])]
        for keyword in ("anyOf", "oneOf"):
            options = schema.get(keyword)
            if isinstance(options, list):
                found = [self._types_of(option, seen, depth) for option in options]
                known = [types for types in found if types is not None]
                said.append(frozenset().union(*known) if len(known) == len(found) else None)
        known = [types for types in said if types is not None]
        if not known:
            return frozenset({"string"}) if schema.keys() & _OF_TEXTS else None
        both = frozenset.intersection(*known)
        if schema.get("nullable") is True:  # OpenAPI 3.0
            both |= {"null"}
        return both or None


ANY = ValueSchema()
"""A schema that allows every value."""


def _own_types(schema: Mapping[str, object]) -> frozenset[str] | None:
    kind = schema.get("type")
    if isinstance(kind, str | list):
        names = {kind} if isinstance(kind, str) else {name for name in kind if isinstance(name, str)}
        return frozenset(names | {"integer"} if "number" in names else names)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return frozenset(map(_type_of, values))
    return None


def _type_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = [name for name, kind in PYTHON_TYPES.items() if isinstance(value, kind)]
    return names[0] if names else "string"


def _step(schema: object, step: str) -> object:
    if isinstance(schema, Mapping):
        return schema.get(step)
    if isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
        return schema[int(step)]
    return None


def _anchored(root: object, name: str) -> object:
    """Return the definition with an ``$anchor``."""
    for keyword in ("$defs", "definitions"):
        definitions = root.get(keyword) if isinstance(root, Mapping) else None
        for schema in definitions.values() if isinstance(definitions, Mapping) else ():
            if isinstance(schema, Mapping) and name in (schema.get("$anchor"), schema.get("$dynamicAnchor")):
                return schema
    return None
