"""Arguments that a wire format writes one by one: plain text where the tool's schema has strings, JSON elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import RequestError, UnsupportedError
from .source import DEFAULT_WHITESPACE, json_body

__all__ = [
    "ANY_VALUE",
    "BOUND",
    "Argument",
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

# What readers of every wire format find again, given the tool: any name on one line.
_KEY = re.compile(r"[^\x00-\x1f\x7f\u2028\u2029\ud800-\udfff]{0,256}")
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
_OTHER_REFERENCE = re.compile(r'"\$ref": "#(?!/(\$defs|definitions)/)')
_DEFINITIONS = ("$defs", "definitions")
_OBJECT = {"type", "properties", "required", "additionalProperties", "$schema", "$id", *_DEFINITIONS, *_ANNOTATIONS}
_LENGTHS = {"minLength", "maxLength"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}


@dataclass(frozen=True)
class Argument:
    """One argument.  At most one of the others says what its text is: ``schema`` (JSON), ``choices``, ``pattern`` (a
    regex); with none it is free."""

    key: str
    required: bool
    schema: Mapping[str, object] | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None

    @property
    def is_text(self) -> bool:
        """Whether the value is a string as it stands."""
        return self.schema is None


def arguments_of(parameters: Mapping[str, object], *, strict: bool, end: str = "<") -> list[Argument]:
    """The arguments that the schema of an object lists, in its order; others are never written.

    Not ``strict``: each may be any text, or absent.  ``end``: what follows a value.

    Raises UnsupportedError naming the keyword that text cannot keep.
    """
    if not strict:
        properties = parameters.get("properties", {})
        names = properties if isinstance(properties, Mapping) else {}
        return [Argument(key, False) for key in names if is_key(key)]
    listed, definitions = listed_arguments(parameters)
    signs = "".join(sorted({"<", *end.lstrip()[:1]}))
    return [_argument(key, schema, required, definitions, signs) for key, schema, required in listed]


def is_key(name: str) -> bool:
    """Whether an argument of this name can be written without quotes."""
    return _KEY.fullmatch(name) is not None


def check_key(name: str) -> None:
    """Refuse the name of an argument that cannot be written without quotes."""
    if not is_key(name):
        raise UnsupportedError(
            f"[json_schema] the argument name {name!r:.80} cannot be enforced in this format of tool calls: rename it, "
            "without line ends and control characters, in at most 256 characters"
        )


def listed_arguments(
    parameters: Mapping[str, object],
) -> tuple[list[tuple[str, object, bool]], dict[str, object]]:
    """Of the schema of an object: (name, schema, whether required) of each member that it lists; its definitions."""
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise RequestError("[json_schema] properties must be an object and required a list but one is not")
    for keyword in parameters.keys() - _OBJECT:
        raise UnsupportedError(f"[json_schema] {keyword!r:.80} cannot be enforced on arguments written one by one")
    for key in required:
        if key not in properties:
            raise UnsupportedError(f"[json_schema] a required argument must be among properties but {key!r:.80} is not")
    definitions = {name: parameters[name] for name in _DEFINITIONS if name in parameters}
    return [(key, schema, key in required) for key, schema in properties.items()], definitions


def check_references(key: str, schema: Mapping[str, object]) -> None:
    """Refuse references in a member's schema, which stands alone with the definitions, to anything but those."""
    if _OTHER_REFERENCE.search(json.dumps(schema)):
        raise UnsupportedError(f"[json_schema] '$ref' in the argument {key!r} must lead to $defs")


def without_annotations(schema: Mapping[str, object]) -> dict[str, Any]:
    """A schema without what only describes."""
    return {name: value for name, value in schema.items() if name not in _ANNOTATIONS}


def json_lark(schema: object) -> str:
    """JSON of a schema, in a rule."""
    return "%json " + json.dumps(json_body(schema, DEFAULT_WHITESPACE)["json_schema"])


def _argument(key: str, schema: object, required: bool, definitions: Mapping[str, object], signs: str) -> Argument:
    check_key(key)
    schema = followed(schema, definitions)
    if schema is True or (isinstance(schema, Mapping) and schema.keys() <= _ANNOTATIONS):
        return Argument(key, required)
    if not isinstance(schema, Mapping):
        raise UnsupportedError(f"[json_schema] the argument {key!r} must allow a value but allows none")
    said = without_annotations(schema)
    kinds = _kinds(said)
    if kinds is not None and "string" not in kinds:
        whole = {**said, **definitions}
        check_references(key, whole)
        return Argument(key, required, without_marks(key, whole))
    values = said.get("enum", [said["const"]] if "const" in said else None)
    if isinstance(values, list) and said.keys() <= {"type", "enum", "const"} and not said.keys() >= {"enum", "const"}:
        texts = tuple(value for value in values if isinstance(value, str))
        if len(texts) == len(values) and all(text == text.strip() and "<" not in text for text in texts):
            return Argument(key, required, choices=texts)
    if said.get("type") == "string" and said.keys() <= {"type", *_LENGTHS}:
        most = said.get("maxLength", "")
        # A line of text: no beginning of a mark, which might count.
        if said.keys() & _LENGTHS:
            return Argument(key, required, pattern=rf"[^{re.escape(signs)}\n]{{{said.get('minLength', 0)},{most}}}")
        return Argument(key, required)
    if kinds is not None and _is_plain(said):
        return Argument(key, required)  # whatever a text is read as is allowed
    names = ", ".join(sorted(said)) or "nothing"
    raise UnsupportedError(f"[json_schema] the argument {key!r}, a text, cannot be held to {names}")


_NO_MARK = "^[^<]*$"  # what a reader takes for the end of a value begins so
_SCALARS = ["null", "boolean", "number", "string"]
BOUND: Mapping[str, object] = {"minimum": -(10**15), "maximum": 10**15}
"""Of numbers that have no bounds: of many digits, or with an exponent, one might be none that JSON has."""
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
"""Any value without ``<`` in strings and keys."""


def without_marks(key: str, schema: object) -> dict[str, object]:
    """A schema of JSON that allows no ``<`` in strings and keys: of what the other one allows a part."""
    if schema is True or schema == {}:
        return {"type": _SCALARS, "pattern": _NO_MARK, **BOUND}
    if not isinstance(schema, Mapping):
        raise UnsupportedError(f"[json_schema] a schema in the argument {key!r} must allow a value but allows none")
    found = without_annotations(schema)
    for keyword in ("allOf", "patternProperties"):
        if keyword in found:
            raise UnsupportedError(
                f"[json_schema] {keyword!r} in the argument {key!r} cannot be enforced in its format"
            )
    names = [*found.get("properties", {}), *found.get("required", [])]
    if "<" in json.dumps([names, found.get("enum"), found.get("const")]):
        raise UnsupportedError(f"[json_schema] names and values in the argument {key!r} must not contain '<'")
    for keyword in ("properties", *_DEFINITIONS):
        if keyword in found:
            found[keyword] = {name: without_marks(key, inner) for name, inner in found[keyword].items()}
    for keyword in ("anyOf", "oneOf", "prefixItems"):
        if keyword in found:
            found[keyword] = [without_marks(key, inner) for inner in found[keyword]]
    kinds = {found["type"]} if isinstance(found.get("type"), str) else set(found.get("type", ()))
    if not kinds and not found.keys() & {"$ref", "anyOf", "oneOf", "enum", "const", *_DEFINITIONS}:
        kinds, found["type"] = {"string"}, ["object"] if "properties" in found else _SCALARS
    _narrow(key, found, kinds)
    return found


def _narrow(key: str, found: dict[str, Any], kinds: set[str]) -> None:
    """Close what a schema leaves open: free keys, items, strings."""
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
        found["allOf"] = [{"pattern": _NO_MARK}]


def followed(schema: object, definitions: Mapping[str, object]) -> object:
    """What a reference to a definition leads to."""
    for _ in range(8):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        if schema.keys() - {"$ref", *_ANNOTATIONS}:
            return schema
        parts = str(schema["$ref"]).split("/")
        named = definitions.get(parts[1]) if len(parts) == 3 else None
        if not isinstance(named, Mapping) or parts[2] not in named:
            return schema
        schema = named[parts[2]]
    return schema


def _kinds(schema: Mapping[str, object]) -> set[str] | None:
    """The types of values that a schema allows; None where it does not say."""
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
    found = [_kinds(option) if isinstance(option, Mapping) else None for option in options]
    return None if None in found else {name for kinds in found if kinds is not None for name in kinds}


def _is_plain(schema: Mapping[str, object]) -> bool:
    """Whether types, and nothing about their values, are said."""
    options = schema.get("anyOf")
    if schema.keys() == {"anyOf"} and isinstance(options, list):
        return all(isinstance(option, Mapping) and option.keys() <= {"type", *_ANNOTATIONS} for option in options)
    return schema.keys() == {"type"}
