"""Filters and checks of the template sandbox: each charges the rendering's budget for what it makes."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2

from quire.chat.budget import charge, charge_output, size_of, tick, walk
from quire.errors import CapacityError

__all__ = ["ALLOWED_FILTERS", "charge_replace", "chat_filters", "check_format", "check_percent", "finalize", "text_of"]


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


ALLOWED_FILTERS = names(
    """
    abs attr batch capitalize center count d default dictsort e escape first float forceescape format groupby
    indent int items join last length list lower map max min reject rejectattr replace reverse round safe select
    selectattr sort string striptags title tojson trim truncate unique upper wordcount
    """
)
# Filters that write out or compare what they are given.
DEEP_FILTERS = names(
    """
    string join sort unique min max dictsort groupby format e escape forceescape
    """
)
MAX_WIDTH = 10_000


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: plain ``json.dumps``, characters kept, nothing escaped for HTML."""
    if isinstance(indent, int) and indent > 16:
        raise CapacityError(f"[chat template] tojson's indent must be at most 16 but is {indent}")
    charge(4 * walk(value))
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:
        # Private-use characters may stand for marked ones (provenance.py), which must stay to be seen.
        text = re.sub(r"\\u(e[0-9a-f]{3}|f[0-8][0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
    return text


def from_json(text: str) -> Any:
    charge(64 * len(text))
    return json.loads(text)


def each(iterable: Iterable[Any], body_bytes: int) -> Iterator[Any]:
    for item in iterable:
        tick(body_bytes)
        yield item


def concat(parts: list[Any]) -> str:
    texts = [text_of(part) for part in parts]
    charge(sum(map(size_of, texts)))
    return "".join(texts)


def text_of(value: Any) -> str:
    """``str(value)``, charged for.  Raises CapacityError."""
    if isinstance(value, (list, tuple, dict)):
        charge(2 * walk(value))
    return str(value)


def operand(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        tick(0 if walk(value) < 1 << 16 else 1 << 16)
    return value


def finalize(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        charge(2 * walk(value))
    elif isinstance(value, str):
        charge_output(len(value))
    return value


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that charges what it takes and makes."""

    def run(*args: Any, **kwargs: Any) -> Any:
        tick()
        numbers = [arg for arg in (*args[1:], *kwargs.values()) if isinstance(arg, (int, float))]
        if name in ("center", "indent", "batch", "truncate", "round") and any(abs(n) > MAX_WIDTH for n in numbers):
            raise CapacityError(f"[chat template] {name}'s numbers must be at most {MAX_WIDTH}")
        for arg in args:
            if isinstance(arg, str):
                charge(size_of(arg))
            elif name in DEEP_FILTERS and isinstance(arg, (list, tuple, dict)):
                charge(2 * walk(arg))
        if name in ("list", "indent"):
            charge(sum(64 * len(arg) for arg in args if isinstance(arg, str)))
        if name == "replace":
            texts = [str(arg) for arg in args if isinstance(arg, str)]
            charge_replace(texts[:3])
        if name == "format":
            check_percent(next((arg for arg in args if isinstance(arg, str)), ""))
        made = function(*args, **kwargs)
        if isinstance(made, str):
            charge(size_of(made))
        elif isinstance(made, (list, tuple, dict)):
            charge(16 * len(made))
        return made

    # Jinja passes context, evaluation context or environment to filters by these marks.
    run.__dict__.update(getattr(function, "__dict__", {}))
    return run


def charge_replace(texts: list[str]) -> None:
    if len(texts) >= 3:
        text, old, new = texts[:3]
        charge(size_of(text) + text.count(old) * size_of(new))


def check_percent(text: str) -> None:
    """Refuse widths that make a short format long."""
    if re.search(r"%[^%a-zA-Z]*(\*|\d{5})", text):
        raise CapacityError("[chat template] a format's width must be below 10000")


def check_format(text: str) -> None:
    for _, field, spec, _ in string.Formatter().parse(text):
        if spec and ("{" in spec or re.search(r"\d{5}", spec)):
            raise CapacityError("[chat template] a format's width must be below 10000")
        if field and re.search(r"[.\[]", field):
            raise jinja2.exceptions.SecurityError("a format must not look into its arguments")


def chat_filters(known: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The filters of chat templates, of Jinja's ``known`` ones; the names with a space are the sandbox's own."""
    filters = {name: guarded(name, known[name]) for name in ALLOWED_FILTERS}
    own: dict[str, Callable[..., Any]] = {"tojson": tojson, "from_json": from_json}
    return {**filters, **own, "quire each": each, "quire concat": concat, "quire operand": operand}
