"""The keywords of JSON Schema, draft-04 to 2020-12, and what their values must be like.

https://json-schema.org/draft/2020-12
"""

from __future__ import annotations

from collections.abc import Mapping

from .schema_places import Place, malformed, unsupported

__all__ = [
    "ANNOTATIONS",
    "DATA",
    "FORMATS",
    "LISTS_OF_SCHEMAS",
    "LOWER_BOUNDS",
    "MAPS_OF_SCHEMAS",
    "MAX_INTEGER",
    "REFERENCES",
    "UPPER_BOUNDS",
    "check_keyword",
    "is_known",
    "patterns_of",
]

MAX_STRING_BYTES = 16 * 1024
MAX_INTEGER = 2**53

MAPS_OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
SCHEMAS = {
    "items", "additionalProperties", "additionalItems", "unevaluatedItems", "unevaluatedProperties", "propertyNames",
    "not", "if", "then", "else", "contains",
}  # fmt: skip
LISTS_OF_SCHEMAS = {"prefixItems", "anyOf", "oneOf", "allOf"}
LOWER_BOUNDS, UPPER_BOUNDS = {"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}
_NUMBERS = LOWER_BOUNDS | UPPER_BOUNDS | {"multipleOf"}
_COUNTS = {
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains",
}  # fmt: skip
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_TEXTS = {"pattern", "format", *REFERENCES}
DATA = {"const", "enum", "default", "examples", "example", "required", "type"}
# These say nothing about validity.  The last two lines are OpenAPI's.
ANNOTATIONS = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
    "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary",
    "contentEncoding", "contentMediaType", "contentSchema",
    "components", "discriminator", "example", "externalDocs", "xml",
}  # fmt: skip
_ASSERTED = {"const", "enum", "type", "required", "uniqueItems", "dependentRequired", "nullable"}
_KNOWN = MAPS_OF_SCHEMAS | SCHEMAS | LISTS_OF_SCHEMAS | _NUMBERS | _COUNTS | _TEXTS | ANNOTATIONS | _ASSERTED
_TYPES = {"null", "boolean", "object", "array", "number", "integer", "string"}
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})


def is_known(keyword: str) -> bool:
    """Return whether a keyword belongs to JSON Schema or OpenAPI, or is an ``x-`` extension."""
    return keyword in _KNOWN or keyword.startswith("x-")


def patterns_of(schema: Mapping[str, object]) -> list[str]:
    """Return the regular expressions of a schema, without those of inner schemas."""
    own, keys = schema.get("pattern"), schema.get("patternProperties")
    return [*([own] if isinstance(own, str) else []), *(keys if isinstance(keys, Mapping) else ())]


def check_keyword(place: Place, keyword: str, value: object) -> None:
    """Check the value of a keyword of the schema at a place, but not the schemas in it.

    Raises RequestError for what is malformed, UnsupportedError for values that a grammar cannot hold exactly.
    """
    here = (*place, keyword)
    if keyword in _NUMBERS:
        _check_number(here, keyword, value)
    if keyword in _COUNTS and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1):
        raise malformed(here, f"expected a count, not {value!r:.80}")
    if keyword in _TEXTS and not isinstance(value, str):
        raise malformed(here, f"expected a string, not {value!r:.80}")
    if keyword == "type":
        _check_type(here, value)
    if keyword in ("const", "enum"):
        _check_exact(here, value)
    if keyword == "enum" and (not isinstance(value, list) or not value):
        raise malformed(here, "expected a list of values")
    if keyword == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise malformed(here, "expected a list of names")
    if keyword in MAPS_OF_SCHEMAS and not isinstance(value, Mapping):
        raise malformed(here, "expected an object of schemas")
    if keyword in LISTS_OF_SCHEMAS and (not isinstance(value, list) or not value):
        raise malformed(here, "expected a list of schemas")
    if keyword in ("uniqueItems", "nullable") and not isinstance(value, bool):
        raise malformed(here, f"expected true or false, not {value!r:.80}")


def _check_number(place: Place, keyword: str, value: object) -> None:
    if isinstance(value, bool) and keyword.startswith("exclusive"):
        return  # as draft-04 and OpenAPI 3.0 have it
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise malformed(place, f"expected a number, not {value!r:.80}")


def _check_exact(place: Place, value: object) -> None:
    """Refuse integers that change in double precision, which grammars use, and strings that slow down masks."""
    left = [value]
    while left:
        current = left.pop()
        if isinstance(current, Mapping):
            left += current.values()
        elif isinstance(current, list):
            left += current
        elif isinstance(current, str) and len(current.encode("utf-8", "replace")) > MAX_STRING_BYTES:
            raise unsupported(place, f"a string of more than {MAX_STRING_BYTES} bytes")
        elif isinstance(current, int) and abs(current) > MAX_INTEGER:
            raise unsupported(place, f"integer {current} beyond {MAX_INTEGER} cannot be enforced exactly")


def _check_type(place: Place, value: object) -> None:
    names = value if isinstance(value, list) and value else [value]
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise malformed(place, f"unknown type {name!r:.80}: expected one of {', '.join(sorted(_TYPES))}")
