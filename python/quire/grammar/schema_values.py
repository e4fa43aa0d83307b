"""Translate keywords about single values for llguidance: bounds, counts, formats and sets."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice, permutations
from typing import Any

from ..errors import UnsupportedError
from .ecma import whole_text_pattern
from .ecma_lookaheads import conjuncts
from .schema_keywords import FORMATS, LOWER_BOUNDS, MAX_INTEGER, UPPER_BOUNDS
from .schema_places import Notes, Place, malformed, pointer, unsupported

__all__ = ["MAX_MULTIPLE", "bounds", "counts", "ordered_subsets", "step_of", "texts"]

MAX_MULTIPLE = 20_000  # a grammar counts up to it
MAX_COUNT = 2**31 - 1  # no answer is longer
MAX_ORDERS, MAX_ORDERED_SIZE = 400, 1000
# llguidance's ranges have 64 bits and fail next to their ends.  Leaving out the last 1024 numbers keeps answers valid.
_MOST, _MOST_INTEGER = 2**63 - 1024, 2**63 - 1

_ATOM, _LABEL = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}", "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# RFC 5321, with its limits of 64 characters before the sign, 255 behind it, 63 in a label.
EMAIL = rf"^{_ATOM}(\.{_ATOM}){{0,2}}@{_LABEL}(\.{_LABEL}){{0,3}}$"


def bounds(schema: Mapping[str, Any], place: Place) -> dict[str, int | float]:
    """Return the bounds of numbers, none wider than the schema's.  UnsupportedError if one is out of range."""
    found: dict[str, int | float] = {}
    kinds = schema.get("type")
    only_integers = kinds == "integer" or (isinstance(kinds, list) and "number" not in kinds)
    for keyword in ("minimum", "maximum"):
        exclusive = f"exclusive{keyword.capitalize()}"
        # Draft-04 and OpenAPI 3.0 say with a bool whether the bound itself is excluded.
        own = exclusive if schema.get(exclusive) is True else keyword
        if keyword in schema:
            found[own] = schema[keyword]
        if exclusive in schema and not isinstance(schema[exclusive], bool):
            found[exclusive] = schema[exclusive]
    for keyword, value in found.items():
        if keyword in UPPER_BOUNDS:
            found[keyword] = _upper(value, only_integers)
        else:
            found[keyword] = -_upper(-value, False)
        end = found[keyword]
        if abs(end) >= _MOST and (keyword in LOWER_BOUNDS) == (end > 0):
            raise unsupported((*place, keyword), f"bound {value} is out of range: expected less than 2^63 in magnitude")
    return found


def _upper(value: int | float, only_integers: bool) -> int | float:
    """Return the greatest bound up to this one that llguidance keeps."""
    if value >= _MOST:
        return _MOST_INTEGER if only_integers and value >= _MOST_INTEGER else _MOST
    if value <= -_MOST:
        return -_MOST
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        near = float(value)
        return int(near if near <= value else math.nextafter(near, -math.inf))
    return value


def counts(schema: Mapping[str, Any], names: tuple[str, ...], place: Place) -> dict[str, int]:
    """Return counts, without those that no answer can exceed."""
    found: dict[str, int] = {}
    for name in names:
        if name in schema:
            value = int(schema[name])
            if value <= MAX_COUNT:
                found[name] = value
            elif name.startswith("min"):
                raise unsupported((*place, name), f"{value} is more than an answer can have")
    return found


def step_of(place: Place, step: int | float) -> int:
    """Return how far a grammar counts to enforce multiples of a step: the step without its decimal point."""
    if step <= 0:
        raise malformed(place, f"expected a number above 0, not {step!r:.40}")
    if not 1e-9 <= step <= MAX_INTEGER:
        raise unsupported(place, f"'multipleOf' {step!r:.40} is out of range: expected 1e-9 to 2^53")
    return Fraction(repr(step)).numerator


def texts(schema: Mapping[str, Any], place: Place, notes: Notes) -> dict[str, Any]:
    """Translate ``pattern`` and ``format``.  Formats that llguidance does not enforce are annotations, and noted."""
    made: dict[str, Any] = {}
    name = schema.get("format")
    if name is not None and name not in FORMATS:
        notes.add(f"format {name!r:.40}", (*place, "format"))
    elif name is not None:
        made = {"allOf": [{"pattern": EMAIL}]} if name == "email" else {"format": name}
    if "pattern" not in schema:
        return made
    here = (*place, "pattern")
    try:
        first, *more = (whole_text_pattern(part, pointer(here)) for part in conjuncts(schema["pattern"]))
    except UnsupportedError:
        if not made:
            raise
        # Schema generators write the format as a pattern, too.
        notes.add(f"a pattern beside the format {name!r}", here)
        return made
    made["pattern"] = first
    if more:
        made["allOf"] = [*made.get("allOf", []), *({"pattern": part} for part in more)]
    return made


def ordered_subsets(schema: Mapping[str, Any], item: object) -> list[list[Any]] | None:
    """Return all arrays of distinct items if the items are a few values, otherwise None."""
    values = _few_values(item)
    if values is None or len(json.dumps(values)) > MAX_ORDERED_SIZE:
        return None
    least, most = int(schema.get("minItems", 0)), min(int(schema.get("maxItems", len(values))), len(values))
    found = list(islice(_orders(values, least, most), MAX_ORDERS + 1))
    return found if len(found) <= MAX_ORDERS else None


def _orders(values: list[Any], least: int, most: int) -> Iterator[list[Any]]:
    for n in range(least, most + 1):
        yield from map(list, permutations(values, n))


def _few_values(schema: object) -> list[Any] | None:
    """Return the values, each once, that a schema with a list of values allows, otherwise None."""
    if not isinstance(schema, Mapping):
        return None
    kinds = schema.get("type")
    if schema.keys() == {"type"} and kinds in ("boolean", "null"):
        return [None] if kinds == "null" else [True, False]
    if schema.keys() - {"type", "enum", "const"} or schema.keys() >= {"enum", "const"}:
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list) or (kinds is not None and not all(_is_of(value, kinds) for value in values)):
        return None
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def _is_of(value: object, kinds: object) -> bool:
    return kinds == "string" and isinstance(value, str)
