"""The one place that makes a Jinja environment: an immutable sandbox with the helpers chat templates use.

On top of Jinja's own sandbox: only known methods of plain data can be called, filters are those of a list, and whatever
can make a big value is charged to the rendering's budget (``budget.py``) before it is made.  Nothing gives access to
files, the environment or other templates.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from quire.chat.budget import charge, size_of, tick, walk
from quire.chat.filters import charge_replace, chat_filters, check_format, check_percent, finalize, names, text_of
from quire.errors import CapacityError

__all__ = ["TemplateRefusal", "make_environment"]


STRING_METHODS = names(
    """
    capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit
    islower isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix
    replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
    zfill
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
MAX_INTEGER_BITS = 4096
MAX_RANGE = 100_000


class TemplateRefusal(jinja2.TemplateError):
    """The template itself refuses the conversation (``raise_exception``)."""


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(format: str) -> str:
    charge(64 * len(format))
    return datetime.now().strftime(format)


class _Dict:
    """``dict(...)`` without the type's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        made = dict(*args, **kwargs)
        charge(100 * len(made))
        return made


class _SafeNamespace(Namespace):
    """``namespace(...)`` that takes no underscored names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace must not hold the name {name!r}")


def _range(*args: int) -> range:
    made = range(*args)
    if len(made) > MAX_RANGE:
        raise CapacityError(f"[chat template] range must have at most {MAX_RANGE} numbers but has {len(made)}")
    charge(8 * len(made))
    return made


class _Meter(NodeTransformer):
    """Puts the budget into a parsed template: loops, joined strings and comparisons of nested values."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        body_bytes = sum(len(data.data) for child in node.body for data in child.find_all(nodes.TemplateData))
        node.iter = self._filter(node.iter, "quire each", [nodes.Const(body_bytes)])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(nodes.List(node.nodes, lineno=node.lineno), "quire concat", [])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.expr, nodes.Const):
            node.expr = self._filter(node.expr, "quire operand", [])
        for operand in node.ops:
            if operand.op not in ("in", "notin") and not isinstance(operand.expr, nodes.Const):
                operand.expr = self._filter(operand.expr, "quire operand", [])
        return node

    @staticmethod
    def _filter(node: nodes.Node, name: str, args: list[nodes.Expr]) -> nodes.Filter:
        assert isinstance(node, nodes.Expr)
        return nodes.Filter(node, name, args, [], None, None, lineno=node.lineno)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``: marks what the assistant says; rendered like any other text."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Meter().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_"):
            return False
        if isinstance(obj, (Undefined, Namespace)):
            return super().is_safe_attribute(obj, attr, value)
        return any(isinstance(obj, types) and attr in names for types, names in ALLOWED_METHODS)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        call = wrapped  # for mypy: not None in the closure

        def format(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__)
            made = call(*map(_text_or_number, args), **{key: _text_or_number(arg) for key, arg in kwargs.items()})
            charge(size_of(made))
            return made

        return format

    def call_binop(self, context: Context, operator_name: str, left: Any, right: Any) -> Any:
        tick()
        if operator_name == "%" and isinstance(left, str):
            check_percent(left)
            charge(2 * walk(right) + size_of(left))
        elif operator_name == "*":
            _charge_product(left, right)
        elif operator_name == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_INTEGER_BITS:
                raise CapacityError("[chat template] numbers must be below 4096 bits")
        elif isinstance(left, str) and isinstance(right, str):
            charge(size_of(left) + size_of(right))
        elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            charge(8 * (len(left) + len(right)))
        return self.binop_table[operator_name](left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = _checked_string_call(owner, __obj.__name__, args)
        made = super().call(__context, __obj, *args, **kwargs)
        if isinstance(made, str):
            charge(size_of(made))
        return made


def _text_or_number(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) else text_of(value)


def _charge_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INTEGER_BITS:
            raise CapacityError("[chat template] numbers must be below 4096 bits")
        return
    for many, times in ((left, right), (right, left)):
        if isinstance(many, (str, list, tuple)) and isinstance(times, int):
            each = size_of(many) if isinstance(many, str) else 8 * len(many)
            charge(each * max(times, 0))


def _checked_string_call(text: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Charge a string's method for what it will make; returns the arguments to call it with."""
    charge(size_of(text))
    if name in ("center", "ljust", "rjust", "zfill") and args and isinstance(args[0], int):
        charge(4 * max(args[0], 0))
    elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        charge_replace([text, args[0], args[1]])
    elif name in ("split", "rsplit"):
        separator = args[0] if args and isinstance(args[0], str) else None
        pieces = text.count(separator) if separator else len(text) // 2
        charge(64 * (pieces + 1))
    elif name == "splitlines":
        charge(64 * len(text))
    elif name == "join" and args:
        parts = list(args[0])
        charge(8 * len(parts) + sum(size_of(part) + size_of(text) for part in parts if isinstance(part, str)))
        return (parts,)
    return args


def make_environment() -> jinja2.Environment:
    """An environment as published chat templates expect it (``trim_blocks``, ``lstrip_blocks``, loop controls,
    ``generation`` blocks, ``tojson`` without HTML escapes, ``raise_exception``, ``strftime_now``)."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
        finalize=finalize,
        loader=None,
        cache_size=0,
    )
    environment.filters = chat_filters(environment.filters)
    environment.globals = {
        "range": _range,
        "dict": _Dict(),
        "namespace": _SafeNamespace,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return environment
