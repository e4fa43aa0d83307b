"""The only place that creates a Jinja environment: an immutable sandbox with the helpers that chat templates use.

In addition to Jinja's sandbox, only listed methods of plain data and listed filters can be called, and every operation
that can make a big value is charged to the rendering's budget (``budget.py``) first.  Nothing gives access to files,
the environment or other templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sized
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from markupsafe import Markup

from quire.chat.budget import afford, charge, size_of, tick
from quire.chat.compiler import Generator, Meter
from quire.chat.filters import chat_filters, chat_tests, names, operand
from quire.chat.mutation import DICT_METHODS, LIST_METHODS, changing, may_change
from quire.chat.provenance import TemplateText, concatenated, lifted, same_author
from quire.chat.provenance_formats import braces, percent
from quire.chat.provenance_markup import added
from quire.chat.text_costs import (
    PIECE_BYTES,
    charge_percent,
    charge_sum,
    checked_string_call,
    finalize,
    format_method,
    pieces,
    text_of,
)
from quire.errors import CapacityError

__all__ = ["TemplateRefusal", "make_environment", "strftime_now"]


STRING_METHODS = names(
    """
    capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit isidentifier
    islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix
    replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill
    """
)
LOOP_NAMES = names("index index0 revindex revindex0 first last length previtem nextitem depth depth0 cycle changed")
ALLOWED_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, STRING_METHODS),
    (dict, names("get items keys values")),
    ((list, tuple), names("count index")),
    (LoopContext, LOOP_NAMES),
    (Macro, names("name arguments catch_kwargs catch_varargs caller")),
)
# Methods that change or move the characters of a text, and add only those of their arguments.
REARRANGING = names("capitalize casefold center ljust lower rjust swapcase title upper zfill")
MAX_INTEGER_BITS = 4096
MAX_RANGE = 100_000
MAX_TIME_FORMAT = 256


class TemplateRefusal(jinja2.TemplateError):
    """The template itself refuses the conversation (``raise_exception``)."""


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(text_of(message))


def strftime_now(format: str) -> str:
    if len(format) > MAX_TIME_FORMAT or re.search(r"%[^A-Za-z%]*\d", format):
        raise CapacityError(f"[chat template] the time format {format!r:.40} is too long or has widths")
    return datetime.now().strftime(format)


class _Dict:
    """Provides ``dict(...)`` without the type's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        given = [arg if isinstance(arg, dict) else pieces(arg) for arg in args]
        operand(given)  # keys are hashed
        made = dict(*given, **kwargs)
        charge(100 * len(made))
        return made


class _SafeNamespace(Namespace):
    """A ``namespace(...)`` that refuses names with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        attributes = _Dict()(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the name {name!r} is not allowed in a namespace")


def _range(*args: int) -> range:
    made = range(*args)
    if len(made) > MAX_RANGE:
        raise CapacityError(f"[chat template] a range has {len(made)} numbers: expected at most {MAX_RANGE}")
    charge(8 * len(made))
    return made


class _Generation(jinja2.ext.Extension):
    """Supports ``{% generation %}``, which marks the assistant's text; rendered like any other text."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox of one template."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = Generator
    concat = staticmethod(concatenated)

    def __init__(self, **options: Any) -> None:
        self.own_texts: list[str] = []
        super().__init__(**options)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Meter().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_"):
            return False
        if type(obj) is _SafeNamespace:
            return True  # it holds only what the template put there
        if isinstance(obj, Undefined):
            return super().is_safe_attribute(obj, attr, value)
        return any(isinstance(obj, types) and attr in names for types, names in ALLOWED_METHODS) or may_change(
            obj, attr
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__
        return format_method(text, wrapped) if isinstance(text, Markup) else format_method(text, wrapped, braces)

    def getitem(self, obj: Any, argument: Any) -> Any:
        tick()
        return super().getitem(obj, operand(argument))

    def call_binop(self, context: Context, operator_name: str, left: Any, right: Any) -> Any:
        tick()
        if operator_name == "%" and isinstance(left, str):
            charge_percent(left, right)
            if type(left) in (str, TemplateText):
                return percent(left, right)
        elif operator_name == "*":
            _charge_product(left, right)
        elif operator_name == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_INTEGER_BITS:
                raise CapacityError("[chat template] a number has more than 4096 bits")
        elif isinstance(left, str) and isinstance(right, str):
            charge_sum([left, right])
            if operator_name == "+":
                return added(left, right)
        elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            charge(8 * (len(left) + len(right)))
        return self.binop_table[operator_name](left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        tick()
        args = _checked_call(__obj, args)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if type(owner) is str and name in ("replace", "join"):
            __obj = getattr(lifted(owner), name)
        made = super().call(__context, __obj, *args, **kwargs)
        if isinstance(made, str):
            charge(size_of(made))
            if name in REARRANGING:
                made = same_author(owner, [*args, *kwargs.values()], made)
        return made


def _checked_call(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Charge for what a call will need; return its arguments."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, str):
        return checked_string_call(owner, function.__name__, args)
    if isinstance(owner, (list, dict)) and function.__name__ in LIST_METHODS | DICT_METHODS:
        return changing(owner, function.__name__, args)
    if isinstance(owner, (list, tuple)):
        operand([owner, args])
    elif isinstance(owner, dict):
        operand(args[:1])
    elif isinstance(owner, LoopContext):
        operand(args)
    elif isinstance(function, LoopContext) and args and isinstance(args[0], Sized):
        afford(PIECE_BYTES * len(args[0]))
    return args


def _charge_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INTEGER_BITS:
            raise CapacityError("[chat template] a number has more than 4096 bits")
        return
    for many, times in ((left, right), (right, left)):
        if isinstance(many, (str, list, tuple)) and isinstance(times, int):
            each = size_of(many) if isinstance(many, str) else 8 * len(many)
            charge(each * max(times, 0))


def make_environment() -> jinja2.Environment:
    """Return an environment as published chat templates expect it.

    It has ``trim_blocks``, ``lstrip_blocks``, loop controls, ``generation`` blocks, ``tojson`` without HTML escapes,
    ``raise_exception`` and ``strftime_now``.
    """
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
        finalize=finalize,
        loader=None,
        cache_size=0,
        optimized=False,  # unfoldable expressions are retried at each level: cubic time for a chain of filters
    )
    environment.filters = chat_filters(environment.filters)
    environment.tests = chat_tests(environment.tests)  # type: ignore[arg-type, assignment]
    environment.globals = {
        "range": _range,
        "dict": _Dict(),
        "namespace": _SafeNamespace,
        "raise_exception": _raise_exception,
        "strftime_now": strftime_now,
    }
    return environment
