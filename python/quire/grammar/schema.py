"""Which JSON Schemas can be enforced: every keyword is known here, or refused by name.

The library behind ignores what it does not know; a keyword that is ignored would be an answer that does not hold, so
the list of what it enforces stands here.  https://json-schema.org/draft/2020-12
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeAlias
from urllib.parse import unquote

from ..errors import RequestError, UnsupportedError
from .ecma import whole_text_pattern

__all__ = ["check_schema", "enforceable"]

MAX_DEPTH = 64
MAX_STRING_BYTES = 16 * 1024
MAX_MULTIPLE = 20_000  # a grammar counts up to it
MAX_INTEGER = 2**53
MAX_PATTERN_BYTES = 32 * 1024  # all together
MAX_ENTRIES = 200_000  # schemas and members of lists, all together

_ATOM, _LABEL = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}", "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# RFC 5321, with its limits of 64 characters before the sign, 255 behind it, 63 in a label.
_EMAIL = rf"^{_ATOM}(\.{_ATOM}){{0,2}}@{_LABEL}(\.{_LABEL}){{0,3}}$"

Place: TypeAlias = "tuple[str, ...]"

_MAPS_OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions"}
_SCHEMAS = {"items", "additionalProperties"}
_LISTS_OF_SCHEMAS = {"prefixItems", "anyOf", "oneOf", "allOf"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_TEXTS = {"pattern", "format", "$ref"}
_VALUES = {"const", "enum", "type", "required"}
# They say nothing about validity.
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
_KNOWN = (
    _MAPS_OF_SCHEMAS | _SCHEMAS | _LISTS_OF_SCHEMAS | _NUMBERS | _COUNTS | _TEXTS | _VALUES | _ANNOTATIONS | {"$schema"}
)
_TYPES = {"null", "boolean", "object", "array", "number", "integer", "string"}
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
_DRAFTS = ("/draft/2020-12/schema", "/draft/2019-09/schema", "/draft-07/schema", "/draft-06/schema")


def _where(place: Place) -> str:
    path = "/".join(part.replace("~", "~0").replace("/", "~1") for part in place)
    return f"#/{path}"[:200]


def _malformed(place: Place, reason: str) -> RequestError:
    return RequestError(f"[json_schema] {_where(place)} must {reason}")


def check_schema(schema: object) -> None:
    """Refuse what a grammar cannot enforce.

    Raises UnsupportedError naming the keyword and its place, RequestError for what is no schema.
    """
    _checked(schema)


def enforceable(schema: object) -> object:
    """A schema, checked, as a grammar enforces all of it.

    The library's addresses may have labels of any length, and its patterns are of another dialect.
    """
    rewrites = _checked(schema)
    if not rewrites:
        return schema
    copy = json.loads(json.dumps(schema))
    # Those that change names, by which places are found, come last, the deepest first.
    for place, keyword in sorted(rewrites, key=lambda rewrite: (rewrite[1] == "patternProperties", -len(rewrite[0]))):
        current = copy
        for part in place:
            current = current[int(part)] if isinstance(current, list) else current[part]
        _rewrite(place, keyword, current)
    return copy


def _rewrite(place: Place, keyword: str, schema: dict[str, Any]) -> None:
    if keyword == "format":
        del schema["format"]
        schema["allOf"] = [*schema.get("allOf", []), {"pattern": _EMAIL}]
    elif keyword == "pattern":
        schema["pattern"] = whole_text_pattern(schema["pattern"], _where((*place, keyword)))
    else:
        listed = schema[keyword]
        schema[keyword] = {
            whole_text_pattern(pattern, _where((*place, keyword))): inner for pattern, inner in listed.items()
        }
        if len(schema[keyword]) != len(listed):
            raise UnsupportedError(f"[json_schema] patterns at {_where((*place, keyword))} must exclude each other")


def _checked(schema: object) -> set[tuple[Place, str]]:
    """Check a schema; the places of schemas, with the keyword, that are written otherwise for the library."""
    rewrites: set[tuple[Place, str]] = set()
    left: list[tuple[Place, object]] = [((), schema)]
    followed: set[str] = set()
    n_entries, n_pattern_bytes, multiple = 0, 0, 1
    while left:
        place, current = left.pop()
        n_entries += 1 + (len(current) if isinstance(current, Mapping) else 0)
        if n_entries > MAX_ENTRIES:
            raise RequestError(f"[json_schema] a schema must have at most {MAX_ENTRIES} entries but has more")
        if len(place) > MAX_DEPTH:
            raise RequestError(f"[json_schema] a schema must be nested at most {MAX_DEPTH} deep but is deeper")
        if isinstance(current, bool):
            continue
        if not isinstance(current, Mapping):
            raise _malformed(place, f"be a schema but is {current!r:.80}")
        n_pattern_bytes += sum(len(pattern.encode("utf-8", "replace")) for pattern in _patterns_of(current))
        if n_pattern_bytes > MAX_PATTERN_BYTES:
            raise UnsupportedError(f"[json_schema] patterns must have at most {MAX_PATTERN_BYTES} bytes together")
        for keyword, value in current.items():
            _check_keyword(place, keyword, value)
            left += _schemas_in((*place, keyword), keyword, value)
        rewrites |= {(place, keyword) for keyword in _rewritten(current)}
        reference = current.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            left.append(_follow(schema, reference, (*place, "$ref")))
        _check_distinct_keys(place, current)
        # Of all together: schemas that meet in one place would be counted by their least common multiple.
        multiple = math.lcm(multiple, _counted(place, current.get("multipleOf", 1)))
        if multiple > MAX_MULTIPLE:
            raise UnsupportedError(
                f"[json_schema] 'multipleOf' at {_where(place)} cannot be enforced beyond {MAX_MULTIPLE}, nor can "
                "several whose least common multiple is"
            )
    return rewrites


def _patterns_of(schema: Mapping[str, object]) -> list[str]:
    own, keys = schema.get("pattern"), schema.get("patternProperties")
    return [*([own] if isinstance(own, str) else []), *(keys if isinstance(keys, Mapping) else ())]


def _rewritten(schema: Mapping[str, object]) -> list[str]:
    found = [keyword for keyword in ("pattern", "patternProperties") if schema.get(keyword)]
    return [*found, "format"] if schema.get("format") == "email" else found


def _schemas_in(place: Place, keyword: str, value: object) -> list[tuple[Place, object]]:
    """The schemas inside a keyword's value, with their places."""
    if keyword in _SCHEMAS:
        return [(place, value)]
    if keyword in _LISTS_OF_SCHEMAS:
        if not isinstance(value, list) or not value:
            raise _malformed(place, "be a list of schemas but is not")
        return [((*place, str(i)), item) for i, item in enumerate(value)]
    if keyword in _MAPS_OF_SCHEMAS:
        if not isinstance(value, Mapping):
            raise _malformed(place, "be an object of schemas but is not")
        return [((*place, name), item) for name, item in value.items()]
    return []


def _counted(place: Place, step: object) -> int:
    """How far a grammar counts to enforce multiples of a step: without its decimal point."""
    assert isinstance(step, int | float)
    if not 1e-9 <= step <= MAX_INTEGER:
        raise UnsupportedError(f"[json_schema] 'multipleOf' at {_where(place)} must be from 1e-9 but is {step!r:.40}")
    fraction = Fraction(repr(step))
    return fraction.numerator


def _follow(root: object, reference: str, place: Place) -> tuple[Place, object]:
    """What a reference leads to: it may lie where schemas are not looked for otherwise."""
    parts = tuple(part.replace("~1", "/").replace("~0", "~") for part in unquote(reference).split("/")[1:])
    current = root
    for part in parts:
        if isinstance(current, Mapping) and part in current:
            current = current[part]
        elif isinstance(current, list) and part.isdecimal() and int(part) < len(current):
            current = current[int(part)]
        else:
            raise _malformed(place, f"lead to a schema of the same document but is {reference!r:.80}")
    return parts, current


def _check_keyword(place: Place, keyword: str, value: object) -> None:
    here = (*place, keyword)
    if keyword not in _KNOWN:
        if keyword == "$id" and not place:
            return  # names the schema as a whole; references to it are refused as remote ones
        raise UnsupportedError(f"[json_schema] the keyword {keyword!r:.80} at {_where(place)} cannot be enforced")
    if keyword in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _malformed(here, f"be a number but is {value!r:.80}")
    if keyword in _COUNTS and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise _malformed(here, f"be an integer of at least 0 but is {value!r:.80}")
    if keyword in _TEXTS and not isinstance(value, str):
        raise _malformed(here, f"be a string but is {value!r:.80}")
    if keyword == "type":
        _check_type(here, value)
    if keyword in _NUMBERS or keyword in ("const", "enum"):
        _check_exact(here, value)
    if keyword == "enum" and (not isinstance(value, list) or not value):
        raise _malformed(here, "be a list of values but is not")
    if keyword == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise _malformed(here, "be a list of names but is not")
    for pattern in _patterns_of({keyword: value}):
        whole_text_pattern(pattern, _where(here))
    _check_known_value(here, keyword, value)


def _check_known_value(place: Place, keyword: str, value: object) -> None:
    """Values that are well-formed but not enforced."""
    if keyword == "items" and isinstance(value, list):
        raise UnsupportedError(f"[json_schema] a list of schemas at {_where(place)} must be written as prefixItems")
    if keyword == "format" and value not in FORMATS:
        raise UnsupportedError(f"[json_schema] the format {value!r:.80} at {_where(place)} cannot be enforced")
    if keyword == "$ref" and "/patternProperties/" in str(value):
        raise UnsupportedError(f"[json_schema] '$ref' at {_where(place)} must not lead into patternProperties but does")
    if keyword == "$ref" and not (value == "#" or str(value).startswith("#/")):
        raise UnsupportedError(
            f"[json_schema] the reference {value!r:.80} at {_where(place)} must be #, or begin with #/"
        )
    if keyword == "$schema" and not (isinstance(value, str) and value.rstrip("#").endswith(_DRAFTS)):
        raise UnsupportedError(f"[json_schema] the dialect {value!r:.80} is not known")


def _check_exact(place: Place, value: object) -> None:
    """Integers pass through double precision on their way into a grammar; long strings make every mask slow."""
    left = [value]
    while left:
        current = left.pop()
        if isinstance(current, Mapping):
            left += current.values()
        elif isinstance(current, list):
            left += current
        elif isinstance(current, str) and len(current.encode("utf-8", "replace")) > MAX_STRING_BYTES:
            raise UnsupportedError(
                f"[json_schema] a string at {_where(place)} must have at most {MAX_STRING_BYTES} bytes"
            )
        elif isinstance(current, int) and abs(current) > MAX_INTEGER:
            raise UnsupportedError(
                f"[json_schema] an integer beyond {MAX_INTEGER} at {_where(place)} cannot be enforced exactly"
            )


def _check_type(place: Place, value: object) -> None:
    names = value if isinstance(value, list) and value else [value]
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise _malformed(place, f"be of {', '.join(sorted(_TYPES))} but is {name!r:.80}")


def _check_distinct_keys(place: Place, schema: Mapping[str, object]) -> None:
    """A grammar cannot know the free keys it has seen: of two that are wanted, both could be the same one."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    assert isinstance(least, int)
    assert isinstance(required, list)
    if least > len(set(required)) + 1:
        raise UnsupportedError(
            f"[json_schema] the keyword 'minProperties' at {_where(place)} cannot be enforced beyond one key more than "
            f"the {len(set(required))} required"
        )
