"""``%`` and ``str.format`` that track what the template wrote.

Each field is formatted separately.  If the joined pieces differ from the whole, the result counts as a user's.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from quire.chat.budget import tick
from quire.chat.provenance import TemplateText, concatenated, is_own, lifted, own

__all__ = ["braces", "percent"]

PERCENT_FIELD = re.compile(r"%(?:\((?P<name>[^)]*)\))?(?P<spec>[-#0 +]*\d*(?:\.\d*)?[hlL]?[a-zA-Z%])")
FIELD_BYTES = 64


def percent(text: str, values: Any) -> str:
    """Return ``text % values``."""
    made = str.__mod__(text, values)
    given = values if isinstance(values, tuple) else values.values() if isinstance(values, dict) else (values,)
    if not _knows(text, given):
        return made
    return _checked(made, list(_percent_pieces(text, values)))


def braces(text: str, args: Sequence[Any], kwargs: Mapping[str, Any], made: str) -> str:
    """Return ``text.format(*args, **kwargs)``, whose plain result is ``made``."""
    if not _knows(text, [*args, *kwargs.values()]):
        return made
    return _checked(made, list(_brace_pieces(text, args, kwargs)))


def _knows(text: str, values: Iterable[Any]) -> bool:
    return isinstance(text, TemplateText) or any(isinstance(value, TemplateText) for value in values)


def _checked(made: str, pieces: list[str]) -> str:
    found = concatenated(pieces)
    return found if found == made else str.__str__(made)


def _percent_pieces(text: str, values: Any) -> Iterator[str]:
    known = lifted(text)
    in_turn = iter(values if isinstance(values, tuple) else (values,))
    at = 0
    for field in PERCENT_FIELD.finditer(text):
        tick(FIELD_BYTES)
        yield known[at : field.start()]
        at = field.end()
        if field["spec"].endswith("%"):
            yield known[at - 1 : at]
            continue
        value = values[field["name"]] if field["name"] is not None else next(in_turn, "")
        yield value if field["spec"] == "s" and _is_text(value) else str.__mod__(f"%{field['spec']}", (value,))
    yield known[at:]


def _brace_pieces(text: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    n_before = 0
    for literal, field, spec, conversion in string.Formatter().parse(text):
        tick(FIELD_BYTES)
        yield own(literal) if is_own(text) else literal
        if field is None:
            continue
        if not field:
            value, n_before = args[n_before], n_before + 1
        else:
            value = args[int(field)] if field.isdigit() else kwargs[field]
        if not spec and not conversion and _is_text(value):
            yield value
        else:
            yield f"{{{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}".format(value)


def _is_text(value: Any) -> bool:
    return type(value) in (str, TemplateText)
