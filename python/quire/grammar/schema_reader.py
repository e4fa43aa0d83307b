"""Translate a JSON Schema as publishers write it to one that llguidance enforces completely.

The result has only keywords that llguidance knows, and references to ``#/$defs/NAME`` only.  If it differs in meaning,
it allows less: objects have no unlisted keys, and tuples no further items, unless ``additionalProperties`` or a
similar keyword says otherwise.  Exceptions are noted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RequestError, UnsupportedError
from .schema_document import MAX_ENTRIES, Document
from .schema_groups import ALL_KEYS, Groups, Keys
from .schema_keywords import ANNOTATIONS, REFERENCES, check_keyword, is_known, patterns_of
from .schema_merging import merged
from .schema_objects import named_keys, one_key_each, patterned, sized
from .schema_output import or_null, with_definitions
from .schema_places import Notes, Place, malformed, unenforceable, unsupported
from .schema_values import MAX_MULTIPLE, bounds, counts, ordered_subsets, step_of, texts

__all__ = ["Reader"]

MAX_DEPTH = 64
MAX_PATTERN_BYTES = 32 * 1024  # all together

_DEFINITIONS = ("$defs", "definitions")
_REFUSED = ("contains", "dependentRequired", "dependentSchemas", "dependencies", "not", "if")
_JSON_SCHEMA = "json-schema.org"


class Reader:
    """Reads one schema."""

    def __init__(self, root: object, *, is_loose: bool = False) -> None:
        """``is_loose``: note what cannot be enforced instead of refusing it."""
        self.notes = Notes()
        self._is_loose = is_loose
        self._document = Document(root)
        self._groups = Groups(self._flat)
        self._definitions: dict[str, object] = {}
        self._names: dict[tuple[int, Keys], str] = {}
        self._left: list[tuple[str, object, Place, Keys]] = []
        self._checked: dict[int, object] = {}  # the values keep the keys from being used again
        self._flattened: dict[int, tuple[object, dict[str, Any] | bool]] = {}
        self._n_entries = self._n_pattern_bytes = 0
        self._multiple = 1
        dialect = root.get("$schema") if isinstance(root, Mapping) else None
        # A schema that names a draft of JSON Schema has no `nullable`, which is OpenAPI 3.0's.
        self._has_nullable = not (isinstance(dialect, str) and _JSON_SCHEMA in dialect)

    def read(self) -> object:
        """Return the whole schema for llguidance."""
        schema, place = self._followed(self._document.root, ())
        made = self._read(schema, place, ())
        while self._left:
            name, target, place, keys = self._left.pop()
            self._definitions[name] = self._read(target, place, keys)
        return with_definitions(made, self._definitions)

    def _followed(self, schema: object, place: Place) -> tuple[object, Place]:
        """Return a schema and its place, or its target's if it is only a reference."""
        for _ in range(MAX_DEPTH):
            reference = self._only_reference(self._said(schema, place))
            if reference is None:
                return schema, place
            assert isinstance(schema, Mapping)
            schema, place = self._document.follow(schema, reference, place)
        raise malformed(place, "the schema refers to itself")

    def schema(self, schema: object, place: Place, keys: Keys) -> object:
        """Return a schema for llguidance.  ``keys``: see ``Groups``."""
        target, there = self._followed(schema, place)
        said = self._said(target, there)
        # A schema with references or allOf may contain itself, so it becomes a definition.
        if isinstance(said, bool) or (target is schema and not said.keys() & {*REFERENCES, "allOf"}):
            return self._read(target, there, keys)
        return {"$ref": f"#/$defs/{self._name(target, there, keys)}"}

    def _read(self, schema: object, place: Place, keys: Keys) -> object:
        said = self._said(schema, place)
        if isinstance(said, bool):
            return said
        if said.keys() == {"allOf"} and len(said["allOf"]) == 1:
            return self.schema(said["allOf"][0], (*place, "allOf", "0"), keys)
        is_nullable = said.pop("nullable", False) and self._has_nullable
        try:
            made = self._asserted(schema, said, place, keys)
        except UnsupportedError as error:
            self._refuse(error, place)
            made = True
        return or_null(made) if is_nullable else made

    def _only_reference(self, said: Mapping[str, Any] | bool) -> str | None:
        """Return the keyword of a schema that is only a reference."""
        if isinstance(said, bool) or len(said) != 1:
            return None
        return next((keyword for keyword in REFERENCES if keyword in said), None)

    def _name(self, target: object, place: Place, keys: Keys) -> str:
        """Return the name of a definition, which is read later."""
        key = id(target), keys
        if key not in self._names:
            plain = re.sub(r"[^A-Za-z0-9_.-]", "_", place[-1] if place else "root")[:64]
            name, number = plain, 1
            while name in self._definitions:
                number += 1
                name = f"{plain}-{number}"
            self._names[key] = name
            self._definitions[name] = True
            self._left.append((name, target, place, keys))
        return self._names[key]

    # Reading keywords

    def _said(self, schema: object, place: Place) -> dict[str, Any] | bool:
        """Return the checked keywords of a schema that affect validity."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise malformed(place, f"expected a schema, not {schema!r:.80}")
        self._count(1 + len(schema))
        if len(place) > MAX_DEPTH:
            raise malformed(place, f"nested more than {MAX_DEPTH} deep")
        if id(schema) not in self._checked:
            self._checked[id(schema)] = schema
            self._check(schema, place)
        return {
            keyword: value
            for keyword, value in schema.items()
            if keyword not in ANNOTATIONS and keyword not in _DEFINITIONS and is_known(keyword) and keyword[:2] != "x-"
        }

    def _count(self, n: int) -> None:
        self._n_entries += n
        if self._n_entries > MAX_ENTRIES:
            raise RequestError(f"[json_schema] the schema has more than {MAX_ENTRIES} entries")

    def _check(self, schema: Mapping[str, Any], place: Place) -> None:
        self._n_pattern_bytes += sum(len(pattern.encode("utf-8", "replace")) for pattern in patterns_of(schema))
        if self._n_pattern_bytes > MAX_PATTERN_BYTES:
            raise unsupported(place, f"patterns of more than {MAX_PATTERN_BYTES} bytes together")
        for keyword, value in schema.items():
            check_keyword(place, keyword, value)
            if not is_known(keyword):
                self.notes.add(f"keyword {keyword!r:.40}", (*place, keyword))
        if "multipleOf" in schema:
            # Schemas that meet in one place would be counted by their least common multiple.
            self._multiple = math.lcm(self._multiple, step_of((*place, "multipleOf"), schema["multipleOf"]))
            if self._multiple > MAX_MULTIPLE:
                raise unsupported(place, f"'multipleOf' with a least common multiple above {MAX_MULTIPLE}")

    def _flat(self, schema: object) -> dict[str, Any] | bool:
        """Return the keywords of a schema, with its references and ``allOf`` merged if one schema can say the same."""
        if id(schema) not in self._flattened:
            said = self._said(schema, place := self._document.place(schema, ()))
            parts = None if isinstance(said, bool) else self._parts(schema, said, place, ())
            one = None if parts is None else merged(parts)
            self._flattened[id(schema)] = schema, said if one is None else one
        return self._flattened[id(schema)][1]

    def _parts(
        self, schema: object, said: Mapping[str, Any], place: Place, above: tuple[int, ...]
    ) -> list[Mapping[str, Any]] | None:
        """Return the schemas that apply together, without references, or None if one of them allows nothing."""
        if id(schema) in above:
            raise malformed(place, "the schema refers to itself")
        if len(above) > MAX_DEPTH:
            raise malformed(place, f"references more than {MAX_DEPTH} deep")
        assert isinstance(schema, Mapping)
        own: dict[str, Any] = {}
        before: list[Mapping[str, Any]] = []
        behind: list[Mapping[str, Any]] = []
        for keyword, value in said.items():
            if keyword in REFERENCES:
                inner = [self._document.follow(schema, keyword, place)]
            elif keyword == "allOf":
                inner = [(item, (*place, keyword, str(i))) for i, item in enumerate(value)]
            else:
                own[keyword] = value
                continue
            for target, there in inner:
                more = self._said(target, there)
                if more is True:
                    continue
                found = None if more is False else self._parts(target, more, there, (*above, id(schema)))
                if found is None:
                    return None
                (behind if "properties" in own else before).extend(found)
        return _distinct([*before, own, *behind])

    # Building the result

    def _asserted(self, schema: object, said: dict[str, Any], place: Place, keys: Keys) -> object:
        together: list[object] = []
        if any(keyword in said for keyword in (*REFERENCES, "allOf")):
            parts = self._parts(schema, said, place, ())
            one = None if parts is None else merged(parts)
            if one is None:
                together = self._together(schema, said, place)
                said = {keyword: value for keyword, value in said.items() if keyword not in (*REFERENCES, "allOf")}
            else:
                said = one
        if said.get("not") is not None and _allows_all(said["not"]) and place:
            return False
        said = self._without_idle(said, place)
        if "propertyNames" in said:
            said = named_keys(said, said["propertyNames"], (*place, "propertyNames"), self.notes, self._flat)
        said = self._typed(said)
        group = self._groups.of(said, together, keys)
        made = self._values(said, place)
        self._alternatives(made, said, place, group.branches)
        if together:
            each = [
                self.schema(part, self._document.place(part, place), group.parts[i]) for i, part in enumerate(together)
            ]
            made["allOf"] = [*made.get("allOf", []), *each]
        self._array(made, said, place, is_closed=keys is not ALL_KEYS)
        self._object(made, said, place, group.others)
        return self._as_set(made, said, place)

    def _together(self, schema: object, said: Mapping[str, Any], place: Place) -> list[object]:
        """Return the schemas of references and ``allOf`` that cannot be merged."""
        assert isinstance(schema, Mapping)
        found: list[object] = []
        for keyword in REFERENCES:
            if keyword in said:
                found.append(self._document.follow(schema, keyword, place)[0])
        return [*found, *said.get("allOf", [])]

    def _without_idle(self, said: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Drop keywords without effect.  Keywords that cannot be enforced are refused."""
        idle = {"uniqueItems"} if said.get("uniqueItems") is False else set()
        idle |= {"minContains", "maxContains"} if "contains" not in said else set()
        idle |= {"contains", "minContains"} if said.get("minContains") == 0 and "maxContains" not in said else set()
        idle |= {"then", "else"} if "if" not in said else set()
        idle |= {"if"} if not said.keys() & {"then", "else"} else set()
        idle |= {"not"} if said.get("not") is False else set()
        idle |= {name for name in ("dependentRequired", "dependentSchemas", "dependencies") if said.get(name) == {}}
        kept = {keyword: value for keyword, value in said.items() if keyword not in idle}
        for keyword in _REFUSED:
            if keyword in kept:
                self._refuse(unenforceable(place, keyword), (*place, keyword))
                del kept[keyword]
        return kept

    def _refuse(self, error: UnsupportedError, place: Place) -> None:
        """Raise the error, or only note the place if the reader is loose."""
        if not self._is_loose:
            raise error
        self.notes.add(f"keyword {place[-1]!r:.40}" if place else "a schema", place)

    def _typed(self, said: dict[str, Any]) -> dict[str, Any]:
        """Add the type that is meant if there are only keywords of a single type."""
        if said.keys() & {"type", "enum", "const", "anyOf", "oneOf"}:
            return said
        kinds = ["object"] if said.get("properties") else []
        kinds += ["array"] if said.keys() & {"items", "prefixItems"} else []
        return {"type": kinds[0], **said} if len(kinds) == 1 else said

    def _values(self, said: Mapping[str, Any], place: Place) -> dict[str, Any]:
        made = {keyword: said[keyword] for keyword in ("type", "enum", "const", "multipleOf") if keyword in said}
        made |= bounds(said, place)
        made |= counts(said, ("minLength", "maxLength"), place)
        return made | texts(said, place, self.notes)

    def _alternatives(
        self, made: dict[str, Any], said: Mapping[str, Any], place: Place, keys: Mapping[str, Keys]
    ) -> None:
        for keyword in ("anyOf", "oneOf"):
            if keyword not in said:
                continue
            options = said[keyword]
            keyed = one_key_each(options) if keyword == "oneOf" else None
            if keyed is not None:
                made["allOf"] = [*made.get("allOf", []), {"anyOf": keyed}]
                continue
            each = [self.schema(option, (*place, keyword, str(i)), keys[keyword]) for i, option in enumerate(options)]
            if keyword == "oneOf" and not self._groups.exclude_each_other(options):
                self.notes.add("oneOf, taken as anyOf,", (*place, keyword))
            if "anyOf" in made:
                made["allOf"] = [*made.get("allOf", []), {"anyOf": each}]
            else:
                made["anyOf"] = each

    def _array(self, made: dict[str, Any], said: Mapping[str, Any], place: Place, *, is_closed: bool) -> None:
        items, first = said.get("items"), said.get("prefixItems")
        if isinstance(items, list):  # as drafts before 2020-12 have it
            if first is not None:
                raise malformed((*place, "items"), "a list of schemas beside 'prefixItems'")
            first, items = items, said.get("additionalItems")
            first_place, items_place = (*place, "items"), (*place, "additionalItems")
        else:
            first_place, items_place = (*place, "prefixItems"), (*place, "items")
        if items is None and "unevaluatedItems" in said:
            if said["unevaluatedItems"] is not True and made.keys() & {"allOf", "anyOf"}:
                raise unenforceable(place, "unevaluatedItems", " beside alternatives")
            items, items_place = said["unevaluatedItems"], (*place, "unevaluatedItems")
        made |= counts(said, ("minItems", "maxItems"), place)
        if first is not None:
            made["prefixItems"] = [self.schema(item, (*first_place, str(i)), ()) for i, item in enumerate(first)]
            least, most = made.get("minItems", 0), made.get("maxItems", 0)
            if items is None and is_closed and max(least, most) <= len(first):
                items = False
                made |= {"minItems": len(first)} if not made.keys() & {"minItems", "maxItems"} else {}
        if items is not None:
            made["items"] = self.schema(items, items_place, ())

    def _object(self, made: dict[str, Any], said: Mapping[str, Any], place: Place, others: Keys) -> None:
        """``others``: keys beside the properties that the object may have where it is closed; None: it is open."""
        for keyword in ("properties", "patternProperties"):
            if said.get(keyword):
                each = {name: self.schema(inner, (*place, keyword, name), ()) for name, inner in said[keyword].items()}
                made[keyword] = patterned(each, (*place, keyword)) if keyword == "patternProperties" else each
        if "required" in said:
            made["required"] = list(dict.fromkeys(said["required"]))
        free = said.get("additionalProperties", said.get("unevaluatedProperties"))
        keyword = "additionalProperties" if "additionalProperties" in said else "unevaluatedProperties"
        if others is not None:
            self._count(len(others))
            listed = made.get("properties", {})
            made["properties"] = {name: listed.get(name, True) for name in others}
            free = False if free is None else free
        if free is not None:
            made["additionalProperties"] = self.schema(free, (*place, keyword), ())
        if said.keys() & {"minProperties", "maxProperties"}:
            sized(made, said, place)

    def _as_set(self, made: dict[str, Any], said: Mapping[str, Any], place: Place) -> object:
        if not said.get("uniqueItems") or made.get("maxItems", 2) < 2:
            return made
        kinds = said.get("type")
        items = self._flat(said.get("items", True))
        arrays = ordered_subsets(said, items) if kinds == "array" and "prefixItems" not in said else None
        if arrays is None or made.keys() - {"type", "items", "minItems", "maxItems"}:
            error = unenforceable(place, "uniqueItems", " for more than a few values (remove it, or set it to false)")
            self._refuse(error, (*place, "uniqueItems"))
            return made
        return {"enum": arrays} if arrays else False


def _distinct(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return each part once, by identity, without empty ones."""
    return list({id(part): part for part in parts if part}.values())


def _allows_all(schema: object) -> bool:
    return schema is True or (isinstance(schema, Mapping) and not schema.keys() - ANNOTATIONS)
