"""Filters and tests of the template sandbox, which charge their inputs and results to the rendering's budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from typing import Any

import jinja2
from jinja2.runtime import Context
from markupsafe import Markup

from quire.chat.budget import afford, charge, measure, size_of, tick, walk
from quire.chat.provenance import TemplateText, concatenated, lifted, same_author
from quire.chat.provenance_formats import percent
from quire.chat.provenance_markup import safe
from quire.chat.text_costs import (
    CASE_BYTES,
    CASES,
    ESCAPED,
    MAX_WIDTH,
    PIECE_BYTES,
    SCALARS,
    charge_percent,
    charge_replace,
    charge_sum,
    check_steps,
    metered,
    n_lines,
    pieces,
    text_of,
)
from quire.errors import CapacityError

__all__ = ["ALLOWED_FILTERS", "chat_filters", "chat_tests", "names"]


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


ITERATING = names(
    """
    batch dictsort groupby join list map max min reject rejectattr select selectattr sort sum unique
    """
)
# Iterating filters that compare, hash or write out everything they are given.
DEEP = names("dictsort groupby join max min sort unique")
TEXTUAL = names(
    """
    capitalize center e escape float forceescape format indent int lower replace safe string striptags title trim
    truncate upper wordcount
    """
)
ALLOWED_FILTERS = ITERATING | TEXTUAL | names("abs attr count d default first items last length reverse round")
# Slow filters, which split a text or go over it repeatedly.
SLOW = names("striptags title truncate wordcount")
MAX_SLOW_CHARACTERS = 100_000
NUMBERED = names("batch center indent round truncate")
MAX_ARGUMENT_CHARACTERS = 10_000
COMPARING_TESTS = names("in == eq equalto != ne > gt greaterthan ge >= < lt lessthan <= le")
NUMBER_TESTS = names("odd even divisibleby")
TEXT_TESTS = names("lower upper")
OTHER_TESTS = names(
    """
    defined undefined filter test none boolean false true integer float string mapping number sequence iterable callable
    sameas escaped
    """
)
# Filters that change or move the characters of a text, and add only white space and their arguments.
REARRANGING = names("capitalize center indent lower title upper")
MAX_JSON_INDENT = 16
MAX_JSON_STEPS = 4_000_000


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers does: plain ``json.dumps``, with all characters, without escapes for HTML."""
    width = indent if isinstance(indent, int) else len(indent or "")
    if width > MAX_JSON_INDENT or any(len(text) > MAX_JSON_INDENT for text in separators or ()):
        raise CapacityError(f"[chat template] tojson's indent or separators are wider than {MAX_JSON_INDENT}")
    shape = measure(value)
    if indent is not None and shape.n_parts * shape.depth > MAX_JSON_STEPS:
        raise CapacityError("[chat template] a value is too large or too deep for tojson with indent")
    charge(4 * shape.size + shape.n_parts * (shape.depth * max(width, 0) + sum(map(len, separators or ()))))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def from_json(text: str) -> Any:
    charge(64 * len(text))
    return json.loads(text)


def each(iterable: Iterable[Any]) -> Iterable[Any]:
    """Meter the values of a loop, all of which ``loop.length`` keeps."""
    return metered(iterable, PIECE_BYTES if isinstance(iterable, str) else 8)


@jinja2.pass_context  # prevents folding it into a constant
def turn(_: Context, n_bytes: int) -> None:
    """Charge a turn of a loop whose body has ``n_bytes`` of text."""
    tick(n_bytes)


def concat(parts: list[Any]) -> str:
    texts = [text_of(part) for part in parts]
    charge_sum(texts)
    return concatenated(texts)


def operand(value: Any) -> Any:
    """Check that a value can be compared or hashed in reasonable time."""
    if not isinstance(value, SCALARS):
        walk(value)
    return value


def container(value: Any) -> Any:
    """Check a value that ``in`` searches.  Texts and dicts are searched fast, others part by part."""
    return value if isinstance(value, dict) else operand(value)


def sliced(value: Any) -> Any:
    """Charge for a slice of a value."""
    charge(size_of(value) if isinstance(value, str) else 8 * len(value) if isinstance(value, Sized) else 0)
    return value


def spread(values: Any) -> list[Any]:
    """Charge for arguments behind a star."""
    return pieces(values)


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter to charge its inputs and result."""
    # Jinja passes a context or the environment before the value to functions that are marked for it.
    n_before = int(hasattr(function, "jinja_pass_arg"))

    def run(*args: Any, **kwargs: Any) -> Any:
        tick()
        before, value, rest = args[:n_before], args[n_before : n_before + 1], args[n_before + 1 :]
        _check_arguments(name, [*rest, *kwargs.values()])
        if value and name in ITERATING:
            value = (_iterated(name, value[0]),)
            if name == "join":
                value = (_charged_join(value[0], rest, kwargs),)
            elif name == "sum" and not isinstance(kwargs.get("start", rest[1] if len(rest) > 1 else 0), (int, float)):
                raise CapacityError("[chat template] the start of sum is not a number")
        elif value and name in TEXTUAL:
            _charge_textual(name, value[0], rest, kwargs)
        made = _keeping_authors(name, partial(function, *before), value, rest, kwargs)
        if isinstance(made, str):
            charge(size_of(made))
        elif isinstance(made, (list, tuple, dict)):
            charge(16 * len(made))
        return made

    run.__dict__.update(getattr(function, "__dict__", {}))
    return run


def _keeping_authors(
    name: str, function: Callable[..., Any], value: tuple[Any, ...], rest: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a filter so that its result knows which of its characters the template wrote."""
    if value and name == "replace":
        value = (lifted(text_of(value[0])),)
    elif value and name == "join":
        if rest:
            rest = (lifted(text_of(rest[0])), *rest[1:])
        else:
            kwargs = {**kwargs, "d": lifted(text_of(kwargs.get("d", "")))}
    elif value and name == "indent" and isinstance(value[0], list):  # Jinja would append to it, then fail
        raise TypeError("indent: unsupported list, expected a text")
    elif value and name == "safe":
        return safe(value[0]) if isinstance(value[0], TemplateText) else function(*value)
    elif value and name == "format" and not isinstance(value[0], Markup) and not (rest and kwargs):
        return percent(text_of(value[0]), kwargs or rest)
    made = function(*value, *rest, **kwargs)
    return same_author(value[0], [*rest, *kwargs.values()], made) if value and name in REARRANGING else made


def _check_arguments(name: str, args: Iterable[Any]) -> None:
    for arg in args:
        if isinstance(arg, (int, float)) and name in NUMBERED and abs(arg) > MAX_WIDTH:
            raise CapacityError(f"[chat template] a number for {name} is above {MAX_WIDTH}")
        if isinstance(arg, str):
            charge(size_of(arg))
            if name in ITERATING or name in NUMBERED:
                _check_width(name, len(arg))
        else:
            operand(arg)


def _check_width(name: str, width: int) -> None:
    if width > MAX_ARGUMENT_CHARACTERS:
        raise CapacityError(f"[chat template] a text for {name} has more than {MAX_ARGUMENT_CHARACTERS} characters")


def _iterated(name: str, value: Any) -> Any:
    """Charge for the value that a filter iterates over, and return it."""
    if isinstance(value, str):
        afford(PIECE_BYTES * len(value))
        return value
    if name in DEEP:
        value = value if isinstance(value, (dict, list, tuple)) else pieces(value)
        charge(2 * walk(value))
        return value
    if isinstance(value, Sized):
        afford(PIECE_BYTES * len(value))
    if name == "map" or name.startswith(("select", "reject")):
        return value  # lazy: charged by their consumer
    return value if isinstance(value, Sized) else metered(value, PIECE_BYTES if name == "batch" else 8)


def _charged_join(value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    separator = rest[0] if rest else kwargs.get("d", "")
    parts = list(value)
    if len(rest) > 1 or kwargs.get("attribute") is not None:
        charge((64 + 4 * len(text_of(separator))) * len(parts))  # the attributes were charged with the value
    else:
        parts = [part if isinstance(part, str) else text_of(part) for part in parts]
        charge_sum([text_of(separator), *parts], len(parts) * len(text_of(separator)))
    return parts


def _charge_textual(name: str, value: Any, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for a filter of a text, into which Jinja converts any value."""
    text = value if isinstance(value, str) else text_of(value)
    charge(size_of(text))
    if name in SLOW and len(text) > MAX_SLOW_CHARACTERS:
        raise CapacityError(f"[chat template] a text for {name} has more than {MAX_SLOW_CHARACTERS} characters")
    if name == "indent":
        width = rest[0] if rest else kwargs.get("width", 4)
        charge(n_lines(text) * (PIECE_BYTES + 4 * (len(width) if isinstance(width, str) else abs(width))))
    elif name == "replace":
        charge_replace(text, [*map(text_of, rest[:2]), *map(text_of, kwargs.values())])
    elif name == "format":
        charge_percent(text, kwargs or rest)
    elif name == "trim":
        check_steps(text, [*rest, *kwargs.values()])
    elif name in ("e", "escape", "forceescape"):
        charge(ESCAPED * size_of(text))
    elif name in CASES:
        afford(CASE_BYTES * len(text))


def guarded_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a test to charge its operands."""

    def run(*args: Any) -> Any:
        tick()
        if name in COMPARING_TESTS:
            for arg in args:
                operand(arg)
        elif name in NUMBER_TESTS and isinstance(args[0], str):
            raise jinja2.exceptions.SecurityError(f"{name} is only for numbers")
        elif name in TEXT_TESTS:
            text_of(args[0])
        return function(*args)

    run.__dict__.update(getattr(function, "__dict__", {}))
    return run if name in COMPARING_TESTS | NUMBER_TESTS | TEXT_TESTS else function


def chat_filters(known: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the filters for chat templates, from Jinja's ``known`` ones.  The sandbox uses names with a space."""
    filters = {name: guarded(name, known[name]) for name in ALLOWED_FILTERS}
    own: dict[str, Callable[..., Any]] = {"tojson": tojson, "from_json": from_json}
    metering = (each, turn, concat, operand, container, sliced, spread)
    return {**filters, **own, **{f"quire {function.__name__}": function for function in metering}}


def chat_tests(known: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the tests for chat templates, from Jinja's ``known`` ones."""
    allowed = COMPARING_TESTS | NUMBER_TESTS | TEXT_TESTS | OTHER_TESTS
    return {name: guarded_test(name, known[name]) for name in allowed}
