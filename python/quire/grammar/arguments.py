"""Arguments that a wire format writes one by one: strings as plain text, everything else as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ..errors import RequestError, UnsupportedError
from .schema_keywords import ANNOTATIONS
from .schema_places import pointer
from .source import DEFAULT_WHITESPACE, json_body

__all__ = [
    "ANY_VALUE",
    "BOUND",
    "Argument",
    "Looseness",
    "all_patterns",
    "arguments_of",
    "check_key",
    "check_references",
    "followed",
    "is_key",
    "json_lark",
    "listed_arguments",
    "without_annotations",
    "without_marks",
]

# Argument names that the parsers of every wire format recognize: any name on one line.
_KEY = re.compile(r"[^\x00-\x1f\x7f\u2028\u2029\ud800-\udfff]{0,256}")
_OTHER_REFERENCE = re.compile(r'"\$ref": "#(?!/(\$defs|definitions)/)')
_DEFINITIONS = ("$defs", "definitions")
_OBJECT = {"type", "properties", "required", "additionalProperties", *_DEFINITIONS}
_PATTERNS = {"pattern", "allOf"}
_LENGTHS = {"minLength", "maxLength"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


@dataclass(frozen=True)
class Argument:
    """An argument and what constrains its text.

    At most one of ``schema`` (the text is JSON), ``choices`` and ``patterns`` (each a regex of the whole text) is set.
    With none, the text is free.
    """

    key: str
    required: bool
    schema: Mapping[str, object] | None = None
    choices: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        """True if the value is a plain string."""
        return self.schema is None


@dataclass
class Looseness:
    """The treatment of argument schemas that a wire format cannot enforce.

    ``is_allowed``: such an argument may have any value; otherwise UnsupportedError is raised.  ``notes``: the places
    of those schemas, and of formats, which are annotations in JSON Schema.
    """

    is_allowed: bool = False
    notes: list[str] = field(default_factory=list)

    def note(self, *place: str) -> None:
        """Note a place whose value is not held to its schema."""
        self.notes.append("json_schema" + quote(pointer(place), safe="#/$@~"))


def arguments_of(
    parameters: Mapping[str, object], *, strict: bool, end: str = "<", loose: Looseness | None = None
) -> list[Argument]:
    """Return the arguments that the schema of an object lists, in its order.  Others are never written.

    Args:
        strict: If false, each argument may be any text, or absent.
        end: The text that follows a value.
        loose: How to treat keywords that cannot be enforced.

    Raises:
        UnsupportedError: A keyword cannot be enforced on text and ``loose`` does not allow that.
    """
    loose = loose or Looseness()
    if not strict:
        properties = parameters.get("properties", {})
        names = properties if isinstance(properties, Mapping) else {}
        return [Argument(key, False) for key in names if is_key(key)]
    listed, definitions = listed_arguments(parameters, loose)
    signs = "".join(sorted({"<", *end.lstrip()[:1]}))
    found = []
    for key, schema, required in listed:
        if schema is False and not required:
            continue
        try:
            found.append(_argument(key, followed(schema, definitions), required, (definitions, signs), loose))
        except UnsupportedError:
            if not loose.is_allowed or not is_key(key):
                raise
            loose.note("properties", key)
            found.append(_free(key, schema, required, definitions))
    return found


def _free(key: str, schema: object, required: bool, definitions: Mapping[str, object]) -> Argument:
    """Return an argument that takes any value; if its schema allows no strings, the value is JSON."""
    schema = followed(schema, definitions)
    kinds = _kinds(schema, definitions) if isinstance(schema, Mapping) else None
    return Argument(key, required, None if kinds is None or "string" in kinds else ANY_VALUE)


def is_key(name: str) -> bool:
    """Return whether an argument of this name can be written without quotes."""
    return _KEY.fullmatch(name) is not None


def check_key(name: str) -> None:
    """Refuse the name of an argument that cannot be written without quotes."""
    if not is_key(name):
        raise UnsupportedError(
            f"[json_schema] the argument name {name!r:.80} cannot be enforced in this format of tool calls: use at "
            "most 256 characters without line ends and control characters"
        )


def listed_arguments(
    parameters: Mapping[str, object], loose: Looseness
) -> tuple[list[tuple[str, object, bool]], dict[str, object]]:
    """Return (name, schema, whether required) for each member of an object's schema, and the schema's definitions."""
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise RequestError("[json_schema] expected an object for 'properties' and a list for 'required'")
    for keyword in parameters.keys() - _OBJECT:
        if not loose.is_allowed:
            raise UnsupportedError(f"[json_schema] {keyword!r:.80} cannot be enforced on arguments written one by one")
        loose.note(keyword)
    properties = {**properties, **{key: True for key in required if key not in properties}}
    definitions = {name: parameters[name] for name in _DEFINITIONS if name in parameters}
    return [(key, schema, key in required) for key, schema in properties.items()], definitions


def check_references(key: str, schema: Mapping[str, object]) -> None:
    """Refuse references to anything but the definitions: a member's schema is compiled with these alone."""
    if _OTHER_REFERENCE.search(json.dumps(schema)):
        raise UnsupportedError(f"[json_schema] '$ref' in the argument {key!r} leads outside $defs")


def without_annotations(schema: Mapping[str, object]) -> dict[str, Any]:
    """Return a schema without its annotations."""
    return {name: value for name, value in schema.items() if name not in ANNOTATIONS}


def all_patterns(schema: Mapping[str, Any]) -> list[str] | None:
    """Return the patterns of a schema of strings, or None if its ``allOf`` has other keywords."""
    inner = schema.get("allOf", [])
    if not all(isinstance(part, Mapping) and part.keys() == {"pattern"} for part in inner):
        return None
    return [*([schema["pattern"]] if "pattern" in schema else []), *(part["pattern"] for part in inner)]


def json_lark(schema: object) -> str:
    """Return Lark, for use in a rule, for JSON that follows a schema."""
    return "%json " + json.dumps(json_body(schema, DEFAULT_WHITESPACE)["json_schema"])


def _argument(
    key: str, schema: object, required: bool, around: tuple[Mapping[str, object], str], loose: Looseness
) -> Argument:
    """Read one argument.  ``around``: definitions, and the characters that begin a mark."""
    definitions, signs = around
    check_key(key)
    if schema is True or (isinstance(schema, Mapping) and schema.keys() <= ANNOTATIONS):
        return Argument(key, required)
    if not isinstance(schema, Mapping):
        raise UnsupportedError(f"[json_schema] the argument {key!r} allows no value")
    said = without_annotations(schema)
    kinds = _kinds(said, definitions)
    if kinds is not None and "string" not in kinds:
        whole = {**said, **definitions}
        check_references(key, whole)
        return Argument(key, required, without_marks(key, whole))
    values = said.get("enum", [said["const"]] if "const" in said else None)
    if isinstance(values, list) and said.keys() <= {"type", "enum", "const"} and not said.keys() >= {"enum", "const"}:
        texts = tuple(value for value in values if isinstance(value, str))
        if len(texts) == len(values) and all(text == text.strip() and "<" not in text for text in texts):
            return Argument(key, required, choices=texts)
    patterns = all_patterns(said)
    is_plain = said.keys() <= {"type", "format", *_LENGTHS, *_PATTERNS}
    if said.get("type") == "string" and is_plain and patterns is not None:
        if "format" in said:
            loose.note("properties", key, "format")
        if not said.keys() & {*_LENGTHS, *_PATTERNS}:
            return Argument(key, required)
        # A line of text without the beginning of a mark, whose characters would count towards the lengths.
        line = rf"[^{re.escape(signs)}\n]{{{said.get('minLength', 0)},{said.get('maxLength', '')}}}"
        return Argument(key, required, patterns=(line, *patterns))
    if kinds is not None and _is_plain(said):
        return Argument(key, required)  # every type that a text can be parsed as is allowed
    names = ", ".join(sorted(said)) or "nothing"
    raise UnsupportedError(f"[json_schema] the argument {key!r}, a text, cannot be held to {names}")


_NO_MARK = "^[^<]*$"  # "<" begins what parsers take for the end of a value
_SCALARS = ["null", "boolean", "number", "string"]
BOUND: Mapping[str, object] = {"minimum": -(10**15), "maximum": 10**15}
"""Bounds for numbers without any: a long number, or one with an exponent, might not be valid JSON."""
_FREE_OBJECT = {
    "type": "object",
    "additionalProperties": False,
    "patternProperties": {_NO_MARK: {"$ref": "#/$defs/any"}},
}
ANY_VALUE: Mapping[str, object] = {
    "$ref": "#/$defs/any",
    "$defs": {
        "any": {
            "anyOf": [
                {"type": _SCALARS, "pattern": _NO_MARK, **BOUND},
                {"type": "array", "items": {"$ref": "#/$defs/any"}},
                _FREE_OBJECT,
            ]
        }
    },
}
"""Schema of any value without ``<`` in strings and keys."""


def without_marks(key: str, schema: object) -> dict[str, object]:
    """Return a narrower schema that allows no ``<`` in strings and keys."""
    if schema is True or schema == {}:
        return {"type": _SCALARS, "pattern": _NO_MARK, **BOUND}
    if not isinstance(schema, Mapping):
        raise UnsupportedError(f"[json_schema] a schema in the argument {key!r} allows no value")
    found = without_annotations(schema)
    patterns = all_patterns(found)
    for keyword in ("patternProperties", *(("allOf",) if patterns is None else ())):
        if keyword in found:
            raise UnsupportedError(
                f"[json_schema] {keyword!r} in the argument {key!r} cannot be enforced in its format"
            )
    names = [*found.get("properties", {}), *found.get("required", [])]
    if "<" in json.dumps([names, found.get("enum"), found.get("const")]):
        raise UnsupportedError(
            f"[json_schema] '<' in a name or value of the argument {key!r} cannot be enforced in its format"
        )
    for keyword in ("properties", *_DEFINITIONS):
        if keyword in found:
            found[keyword] = {
                name: inner if inner is False else without_marks(key, inner) for name, inner in found[keyword].items()
            }
    for keyword in ("anyOf", "oneOf", "prefixItems"):
        if keyword in found:
            found[keyword] = [without_marks(key, inner) for inner in found[keyword]]
    kinds = {found["type"]} if isinstance(found.get("type"), str) else set(found.get("type", ()))
    if not kinds and not found.keys() & {"$ref", "anyOf", "oneOf", "enum", "const", *_DEFINITIONS}:
        kinds, found["type"] = {"string"}, ["object"] if "properties" in found else _SCALARS
    _narrow(key, found, kinds)
    return found


def _narrow(key: str, found: dict[str, Any], kinds: set[str]) -> None:
    """Restrict the free keys, items and strings of a schema in place."""
    if kinds & {"object", "array"} or "properties" in found:
        others = found.get("additionalProperties", False)
        found["additionalProperties"] = False
        if isinstance(others, Mapping) and others:
            found["patternProperties"] = {_NO_MARK: without_marks(key, others)}
    if "array" in kinds and found.get("items") is not False:
        found["items"] = without_marks(key, found.get("items", True))
    if kinds & {"integer", "number"} and not found.keys() & {"enum", "const", *_BOUNDS}:
        found |= BOUND
    if "string" in kinds and not found.keys() & {"format", "enum", "const"}:
        found["allOf"] = [*found.get("allOf", []), {"pattern": _NO_MARK}]


def followed(schema: object, definitions: Mapping[str, object]) -> object:
    """Return the schema that a reference to a definition leads to."""
    for _ in range(8):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        if schema.keys() - {"$ref", *ANNOTATIONS}:
            return schema
        parts = str(schema["$ref"]).split("/")
        named = definitions.get(parts[1]) if len(parts) == 3 else None
        if not isinstance(named, Mapping) or parts[2] not in named:
            return schema
        schema = named[parts[2]]
    return schema


def _kinds(schema: Mapping[str, object], definitions: Mapping[str, object], depth: int = 8) -> set[str] | None:
    """Return the types that a schema allows, or None if it names none."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {name for name in kind if isinstance(name, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return {"string" if isinstance(value, str) else "other" for value in values}
    options = schema.get("anyOf")
    if not isinstance(options, list):
        return None
    inner = [followed(option, definitions) for option in options] if depth else [None]
    found = [_kinds(option, definitions, depth - 1) if isinstance(option, Mapping) else None for option in inner]
    return None if None in found else {name for kinds in found if kinds is not None for name in kinds}


def _is_plain(schema: Mapping[str, object]) -> bool:
    """Return whether a schema names types and nothing else."""
    options = schema.get("anyOf")
    if schema.keys() == {"anyOf"} and isinstance(options, list):
        return all(isinstance(option, Mapping) and option.keys() <= {"type", *ANNOTATIONS} for option in options)
    return schema.keys() == {"type"}
