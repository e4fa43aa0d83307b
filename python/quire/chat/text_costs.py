"""Charge for operations on text before they run: for their results, and for memory that they need meanwhile."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2.runtime import Undefined
from markupsafe import Markup

from quire.chat.budget import afford, charge, charge_output, size_of, tick, walk
from quire.errors import CapacityError

__all__ = ["charge_percent", "charge_sum", "checked_string_call", "finalize", "format_method", "metered", "text_of"]

SCALARS = (str, int, float, type(None), Undefined)
MAX_FIELDS = 10_000
MAX_WIDTH = 9999
# Text times needle: the steps that searching from the right and stripping characters may take.
MAX_STEPS = 100_000_000
# Bytes for each character of a text that is split into a list of small ones.
PIECE_BYTES = 100
SEARCHES_FROM_RIGHT = frozenset({"rfind", "rindex", "rsplit", "rpartition"})
STRIPS = frozenset({"strip", "lstrip", "rstrip"})
CASES = frozenset({"upper", "lower", "title", "capitalize", "casefold", "swapcase"})
# Bytes for changing the case of a character: up to three characters of four bytes, before they are narrowed.
CASE_BYTES = 16
# Markup escapes the text that it is joined with: "&" becomes "&amp;".
ESCAPED = 5
PERCENT_FIELD = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")


def text_of(value: Any) -> str:
    """Charge for and return ``str(value)``.  Raises CapacityError."""
    if not isinstance(value, SCALARS):
        charge(2 * walk(value))
    return str(value)


def finalize(value: Any) -> Any:
    """Charge for a value that a template puts out."""
    if isinstance(value, str):
        charge(64)  # the text was charged for when it was made
        charge_output(len(value))
    elif not isinstance(value, SCALARS):
        charge(2 * walk(value))
    else:
        charge(64)
    return value


def metered(values: Iterable[Any], n_bytes: int) -> Iterable[Any]:
    """Yield values, charging ``n_bytes`` for each."""
    for value in values:
        tick(n_bytes)
        yield value


def charge_sum(texts: Sequence[str], n_more: int = 0) -> None:
    """Charge for joined texts and ``n_more`` characters as wide as the widest of them."""
    n = sum(map(len, texts)) + n_more
    if any(isinstance(text, Markup) for text in texts):
        n *= ESCAPED
    charge(64 + (n if all(text.isascii() for text in texts) else 4 * n))


def charge_percent(text: str, values: Any) -> None:
    """Charge for ``text % values``."""
    if "(" in text and re.search(r"%\([^)]*\(", text):
        raise CapacityError("[chat template] a % format has a name with parentheses")
    n_fields = width = 0
    for field in PERCENT_FIELD.finditer(text):
        n_fields += 1
        if n_fields > MAX_FIELDS:
            raise CapacityError(f"[chat template] a format has more than {MAX_FIELDS} fields")
        width = max(width, _width(field[1]), _width(field[2]))
    charge(size_of(text) + n_fields * (2 * _written(values, text) + 4 * width))


def _width(digits: str | None) -> int:
    if digits is None:
        return 0
    if digits == "*" or len(digits) > 4:
        raise CapacityError(f"[chat template] a width in a format is not a number up to {MAX_WIDTH}")
    return int(digits)


def _written(values: Any, text: str) -> int:
    return walk(values) * (ESCAPED if isinstance(text, Markup) else 1)


def format_method(
    text: str,
    call: Callable[..., str],
    known: Callable[[str, Sequence[Any], Mapping[str, Any], str], str] = lambda _text, _args, _kwargs, made: made,
) -> Callable[..., str]:
    """Wrap ``text.format`` (``call``) to charge for it.

    ``known`` computes the final value from the text, the arguments and the result.
    """

    def format(*args: Any, **kwargs: Any) -> str:
        given = [_text_or_number(arg) for arg in args]
        named = {key: _text_or_number(arg) for key, arg in kwargs.items()}
        n_fields, width = _fields(text)
        charge(size_of(text) + n_fields * (_written([*given, *named.values()], text) + 4 * width))
        return known(text, given, named, call(*given, **named))

    return format


def _text_or_number(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) else text_of(value)


def _fields(text: str) -> tuple[int, int]:
    """Return the number of fields in a format and their greatest width.  Only plain fields are allowed."""
    n_fields = width = 0
    for _, field, spec, _ in string.Formatter().parse(text):
        n_fields += field is not None
        if n_fields > MAX_FIELDS:
            raise CapacityError(f"[chat template] a format has more than {MAX_FIELDS} fields")
        if spec and "{" in spec:
            raise CapacityError(f"[chat template] a width in a format is not a number up to {MAX_WIDTH}")
        width = max([width, *map(_width, re.findall(r"\d+", spec or ""))])
        if field and re.search(r"[.\[]", field):
            raise jinja2.exceptions.SecurityError("attributes and items of arguments are not allowed in a format")
    return n_fields, width


def check_steps(text: str, needles: Iterable[Any]) -> None:
    """Refuse a search whose time is the product of two big lengths."""
    for needle in needles:
        if isinstance(needle, str) and len(text) * len(needle) > MAX_STEPS:
            raise CapacityError(f"[chat template] a search takes more than {MAX_STEPS} steps")


def checked_string_call(text: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Charge for the result of a string's method; return its arguments."""
    charge(size_of(text))
    if name in ("center", "ljust", "rjust", "zfill") and args and isinstance(args[0], int):
        charge(4 * max(args[0], 0))
    elif name == "replace":
        charge_replace(text, args)
    elif name in SEARCHES_FROM_RIGHT or name in STRIPS:
        check_steps(text, args)
    elif name in CASES:
        afford(CASE_BYTES * len(text))
    elif name in ("startswith", "endswith"):
        afford(walk(args))
    if name in ("split", "rsplit"):
        separator = args[0] if args and isinstance(args[0], str) else None
        charge(PIECE_BYTES * ((text.count(separator) if separator else len(text) // 2) + 1))
    elif name == "splitlines":
        charge(PIECE_BYTES * n_lines(text))
    elif name == "join" and args:
        parts = pieces(args[0])
        charge_sum([text, *(part for part in parts if isinstance(part, str))], len(parts) * len(text))
        return (parts,)
    return args


def n_lines(text: str) -> int:
    """Return at least the number of lines that ``splitlines`` finds."""
    return 1 + sum(map(text.count, "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))


def charge_replace(text: str, args: Sequence[Any]) -> None:
    """Charge for ``text.replace(*args)``."""
    texts = [arg for arg in args if isinstance(arg, str)]
    if len(texts) >= 2:
        charge_sum([text, texts[1]], text.count(texts[0]) * len(texts[1]))


def pieces(value: Any) -> list[Any]:
    """Return the parts of an iterable, charging most for those of a text."""
    return list(metered(value, PIECE_BYTES if isinstance(value, str) else 8))
