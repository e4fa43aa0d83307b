"""JSON Schemas with every keyword that can be enforced, from a seeded generator, and their oracle.

The oracle of answers is the ``jsonschema`` package, and the standard library for formats.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema

Schema = dict[str, Any]

PATTERNS = [r"^[a-c]{1,4}$", r"[0-9]+", r"^(red|green|blue)$", r"^[A-Z][a-z]{0,6}$", r"^x|y$", r"^[^a-z]{1,3}$"]
KEYS = ["name", "age", "a b", "x", "é", "to", "id", 'q"t', "list"]
FREE_KEYS = ["^k[0-9]$", "^[a-b]{1,2}$"]
FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -7,
    3.5,
    "",
    "a",
    "é\n",
    [],
    [1, "x"],
    {},
    {"a": None},
    2**53,
    0.1,
    1e-7,
    1.5e300,
]

# Returns a schema that uses a keyword, given a random generator and a function that returns inner schemas.
Maker = Callable[[random.Random, Callable[[], Schema]], Schema]


def _bounds(r: random.Random) -> tuple[int, int]:
    low = r.randrange(-50, 50)
    return low, low + r.randrange(0, 60)


def _integer(r: random.Random, _: Callable[[], Schema]) -> Schema:
    low, high = _bounds(r)
    limits = r.choice(
        [
            {},
            {"minimum": low},
            {"maximum": high},
            {"minimum": low, "maximum": high},
            {"exclusiveMinimum": low, "exclusiveMaximum": high + 2},
            {"multipleOf": r.randrange(1, 9)},
            {"minimum": 0, "maximum": 1000, "multipleOf": r.randrange(1, 9)},
        ]
    )
    return {"type": "integer", **limits}


def _number(r: random.Random, _: Callable[[], Schema]) -> Schema:
    low, high = _bounds(r)
    limits = r.choice(
        [
            {},
            {"minimum": low + 0.5},
            {"maximum": high - 0.25},
            {"minimum": low, "maximum": high + 1},
            {"exclusiveMinimum": low, "exclusiveMaximum": high + 1},
            {"minimum": 0, "maximum": 8, "multipleOf": r.choice([0.5, 0.25, 2])},
        ]
    )
    return {"type": "number", **limits}


def _string(r: random.Random, _: Callable[[], Schema]) -> Schema:
    low = r.randrange(0, 5)
    limits = r.choice(
        [{}, {"minLength": low}, {"maxLength": low + 3}, {"minLength": low, "maxLength": low + r.randrange(0, 6)}]
    )
    return {"type": "string", **limits}


def _array(r: random.Random, inner: Callable[[], Schema]) -> Schema:
    low = r.randrange(0, 3)
    schema: Schema = {"type": "array", "items": inner()}
    if r.random() < 0.5:
        schema["minItems"] = low
    if r.random() < 0.8:
        schema["maxItems"] = low + r.randrange(0, 3)
    return schema


def _tuple(r: random.Random, inner: Callable[[], Schema]) -> Schema:
    schema: Schema = {"type": "array", "prefixItems": [inner() for _ in range(r.randrange(1, 4))]}
    schema["items"] = r.choice([False, inner()])
    return {**schema, "minItems": r.randrange(0, 2), "maxItems": 4}


def _object(r: random.Random, inner: Callable[[], Schema]) -> Schema:
    keys = r.sample(KEYS, r.randrange(1, 4))
    schema: Schema = {"type": "object", "properties": {key: inner() for key in keys}}
    if r.random() < 0.7:
        schema["required"] = r.sample(keys, r.randrange(0, len(keys) + 1))
    if r.random() < 0.7:
        schema["additionalProperties"] = r.choice([False, False, {"type": "integer", "maximum": 9}])
    return schema


def _map(r: random.Random, inner: Callable[[], Schema]) -> Schema:
    schema: Schema = {"type": "object"}
    if r.random() < 0.6:
        schema |= {"patternProperties": {r.choice(FREE_KEYS): inner()}, "additionalProperties": False}
    else:
        schema["additionalProperties"] = inner()
    if r.random() < 0.5:
        schema["minProperties"] = r.randrange(0, 2)
    if r.random() < 0.7:
        schema["maxProperties"] = r.randrange(1, 3)
    return schema


def _required_only(r: random.Random, inner: Callable[[], Schema]) -> Schema:
    keys = r.sample(KEYS, 2)
    return {
        "type": "object",
        "required": keys,
        "additionalProperties": inner(),
        "minProperties": r.randrange(0, 4),
        "maxProperties": 4,
    }


def _one_of(r: random.Random, inner: Callable[[], Schema]) -> Schema:
    """Return alternatives that a grammar can distinguish: by type, or by the value of one property."""
    if r.random() < 0.5:
        return {"oneOf": r.sample([_string(r, inner), _integer(r, inner), {"type": "null"}, {"type": "boolean"}], 2)}
    branches = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "value": inner()},
            "required": ["kind", "value"],
            "additionalProperties": False,
        }
        for kind in ("cat", "dog")
    ]
    return {"oneOf": branches}


def _all_of(r: random.Random, inner: Callable[[], Schema]) -> Schema:
    low = r.randrange(0, 10)
    return r.choice(
        [
            {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + 20}]},
            {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 5}, {"pattern": "^[a-z]*$"}]},
            {
                "allOf": [
                    {"type": "object", "properties": {"a": inner()}, "required": ["a"]},
                    {"properties": {"b": inner()}, "required": ["b"]},
                ],
                "maxProperties": 2,
            },
        ]
    )


def _ref(r: random.Random, inner: Callable[[], Schema]) -> Schema:
    name = r.choice(["$defs", "definitions"])
    if r.random() < 0.5:
        return {name: {"thing": inner()}, "type": "array", "items": {"$ref": f"#/{name}/thing"}, "maxItems": 2}
    node = {
        "type": "object",
        "properties": {
            "value": {"type": "integer", "minimum": 0, "maximum": 9},
            "next": {"anyOf": [{"$ref": f"#/{name}/node"}, {"type": "null"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {name: {"node": node}, "$ref": f"#/{name}/node"}


MAKERS: dict[str, Maker] = {
    "integer": _integer,
    "number": _number,
    "string": _string,
    "boolean": lambda r, _: {"type": "boolean"},
    "null": lambda r, _: {"type": "null"},
    "types": lambda r, _: {"type": r.sample(["string", "integer", "null", "boolean", "array", "object"], 2)},
    "enum": lambda r, _: {"enum": r.sample(VALUES, r.randrange(1, 5))},
    "enum-typed": lambda r, _: {"type": ["string", "integer"], "enum": ["a", "b", 3, 4, None]},
    "const": lambda r, _: {"const": r.choice(VALUES)},
    "pattern": lambda r, _: {"type": "string", "pattern": r.choice(PATTERNS)},
    "format": lambda r, _: {"type": "string", "format": r.choice(FORMATS)},
    "array": _array,
    "prefixItems": _tuple,
    "object": _object,
    "map": _map,
    "required-only": _required_only,
    "anyOf": lambda r, inner: {"anyOf": [inner() for _ in range(r.randrange(1, 4))]},
    "oneOf": _one_of,
    "allOf": _all_of,
    "ref": _ref,
    "annotations": lambda r, inner: {
        "title": "t",
        "description": "d",
        "default": 1,
        "examples": [1],
        "deprecated": False,
        "$comment": "c",
        **inner(),
    },
    "true": lambda r, _: {"type": "array", "items": True, "maxItems": 1},
}
LEAVES = ["integer", "number", "string", "boolean", "null", "enum", "const", "pattern", "format"]


def make_schemas(n: int, seed: int = 0) -> Iterator[Schema]:
    """Yield ``n`` schemas from each maker in turn, with leaves inside, and in every other round with any maker."""
    names = list(MAKERS)
    for i in range(n):
        r = random.Random(seed * 100_003 + i)
        pool = LEAVES if (i // len(names)) % 2 == 0 else [name for name in names if name not in ("ref", "true")]
        depth = 0

        def inner(r: random.Random = r, pool: list[str] = pool) -> Schema:
            nonlocal depth
            depth += 1
            made = MAKERS[r.choice(pool if depth < 4 else LEAVES)](r, inner)
            depth -= 1
            return made

        schema = MAKERS[names[i % len(names)]](r, inner)
        yield {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


FORMAT_CHECKER = jsonschema.FormatChecker(formats=[])


@FORMAT_CHECKER.checks("ipv4", ValueError)
def _ipv4(value: object) -> bool:
    return not isinstance(value, str) or bool(ipaddress.IPv4Address(value))


@FORMAT_CHECKER.checks("ipv6", ValueError)
def _ipv6(value: object) -> bool:
    return not isinstance(value, str) or ipaddress.IPv6Address(value) is not None


@FORMAT_CHECKER.checks("uuid", ValueError)
def _uuid(value: object) -> bool:
    return not isinstance(value, str) or str(uuid.UUID(value)) == value.lower()


@FORMAT_CHECKER.checks("date", ValueError)
def _date(value: object) -> bool:
    if not isinstance(value, str):
        return True
    found = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", value)
    if not found:
        return False
    year, month, day = found.groups()
    # RFC 3339 has the year 0000, a leap year, and Python's dates do not.
    return bool(datetime.date(int(year) or 2000, int(month), int(day)))


@FORMAT_CHECKER.checks("time", ValueError)
def _time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    found = re.fullmatch(r"(\d\d):(\d\d):(\d\d)(\.\d+)?([zZ]|[+-](\d\d):(\d\d))", value)
    if not found:
        return False
    hour, minute, second = (int(found.group(i)) for i in (1, 2, 3))
    offset = (int(found.group(6) or 0), int(found.group(7) or 0))
    return hour < 24 and minute < 60 and second < 61 and offset[0] < 24 and offset[1] < 60


@FORMAT_CHECKER.checks("date-time", ValueError)
def _date_time(value: object) -> bool:
    return not isinstance(value, str) or (value[10] in "tT" and _date(value[:10]) and _time(value[11:]))


@FORMAT_CHECKER.checks("duration")
def _duration(value: object) -> bool:
    part = r"P(?!$)(\d+Y)?(\d+M)?(\d+D)?(T(?!$)(\d+H)?(\d+M)?(\d+S)?)?|P\d+W"
    return not isinstance(value, str) or bool(re.fullmatch(part, value))


@FORMAT_CHECKER.checks("hostname")
def _hostname(value: object) -> bool:
    label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    return not isinstance(value, str) or (len(value) < 254 and bool(re.fullmatch(rf"{label}(\.{label})*", value)))


@FORMAT_CHECKER.checks("email")
def _email(value: object) -> bool:
    if not isinstance(value, str):
        return True
    local, _, domain = value.rpartition("@")
    atom = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
    is_address = domain.startswith("[") and domain.endswith("]")
    return bool(re.fullmatch(rf'{atom}(\.{atom})*|".*"', local)) and (is_address or _hostname(domain))


@FORMAT_CHECKER.checks("uri")
def _uri(value: object) -> bool:
    return not isinstance(value, str) or bool(
        re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*", value)
    )


def complaint(schema: Schema, text: str) -> str | None:
    """Return the oracle's complaint about an answer; None if it is valid."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMAT_CHECKER)
    try:
        validator.validate(value)
    except jsonschema.ValidationError as error:
        return error.message[:200]
    return None
