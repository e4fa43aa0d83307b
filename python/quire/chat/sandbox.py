"""The one place that makes a Jinja environment: an immutable sandbox with the helpers chat templates use.

On top of Jinja's own sandbox: only known methods of plain data can be called, filters are those of a list, and whatever
can make a big value is charged to the rendering's budget (``budget.py``) before it is made.  Nothing gives access to
files, the environment or other templates.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
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

from quire.chat.budget import charge, charge_output, size_of, tick, walk
from quire.errors import CapacityError

__all__ = ["ALLOWED_FILTERS", "TemplateRefusal", "make_environment", "text_of"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


STRING_METHODS = _names(
    """
    capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit
    islower isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix
    replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
    zfill
    """
)
LOOP_NAMES = _names("index index0 revindex revindex0 first last length previtem nextitem depth depth0 cycle changed")
ALLOWED_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, STRING_METHODS),
    (dict, _names("get items keys values")),
    ((list, tuple), _names("count index")),
    (LoopContext, LOOP_NAMES),
    (Macro, _names("name arguments catch_kwargs catch_varargs caller")),
)
ALLOWED_FILTERS = _names(
    """
    abs attr batch capitalize center count d default dictsort e escape first float forceescape format groupby
    indent int items join last length list lower map max min reject rejectattr replace reverse round safe select
    selectattr sort string striptags title tojson trim truncate unique upper wordcount
    """
)
# Filters that write out or compare what they are given.
DEEP_FILTERS = _names(
    """
    string join sort unique min max dictsort groupby format e escape forceescape
    """
)
MAX_INTEGER_BITS = 4096
MAX_WIDTH = 10_000
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


# ---- filters ----


def _tojson(
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


def _from_json(text: str) -> Any:
    charge(64 * len(text))
    return json.loads(text)


def _each(iterable: Iterable[Any], body_bytes: int) -> Iterator[Any]:
    for item in iterable:
        tick(body_bytes)
        yield item


def _concat(parts: list[Any]) -> str:
    texts = [text_of(part) for part in parts]
    charge(sum(map(size_of, texts)))
    return "".join(texts)


def text_of(value: Any) -> str:
    """``str(value)``, charged for.  Raises CapacityError."""
    if isinstance(value, (list, tuple, dict)):
        charge(2 * walk(value))
    return str(value)


def _operand(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        tick(0 if walk(value) < 1 << 16 else 1 << 16)
    return value


def _finalize(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        charge(2 * walk(value))
    elif isinstance(value, str):
        charge_output(len(value))
    return value


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
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
            _charge_replace(texts[:3])
        if name == "format":
            _check_percent(next((arg for arg in args if isinstance(arg, str)), ""))
        made = function(*args, **kwargs)
        if isinstance(made, str):
            charge(size_of(made))
        elif isinstance(made, (list, tuple, dict)):
            charge(16 * len(made))
        return made

    # Jinja passes context, evaluation context or environment to filters by these marks.
    run.__dict__.update(getattr(function, "__dict__", {}))
    return run


def _charge_replace(texts: list[str]) -> None:
    if len(texts) >= 3:
        text, old, new = texts[:3]
        charge(size_of(text) + text.count(old) * size_of(new))


def _check_percent(text: str) -> None:
    """Refuse widths that make a short format long."""
    if re.search(r"%[^%a-zA-Z]*(\*|\d{5})", text):
        raise CapacityError("[chat template] a format's width must be below 10000")


def _check_format(text: str) -> None:
    for _, field, spec, _ in string.Formatter().parse(text):
        if spec and ("{" in spec or re.search(r"\d{5}", spec)):
            raise CapacityError("[chat template] a format's width must be below 10000")
        if field and re.search(r"[.\[]", field):
            raise jinja2.exceptions.SecurityError("a format must not look into its arguments")


# ---- the tree ----


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
            _check_format(value.__self__)
            made = call(*map(_text_or_number, args), **{key: _text_or_number(arg) for key, arg in kwargs.items()})
            charge(size_of(made))
            return made

        return format

    def call_binop(self, context: Context, operator_name: str, left: Any, right: Any) -> Any:
        tick()
        if operator_name == "%" and isinstance(left, str):
            _check_percent(left)
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
        _charge_replace([text, args[0], args[1]])
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
        finalize=_finalize,
        loader=None,
        cache_size=0,
    )
    filters: Mapping[str, Callable[..., Any]] = environment.filters
    environment.filters = {name: _guarded(name, filters[name]) for name in ALLOWED_FILTERS}
    environment.filters.update(
        {
            "tojson": _tojson,
            "from_json": _from_json,
            "quire each": _each,
            "quire concat": _concat,
            "quire operand": _operand,
        }
    )
    environment.globals = {
        "range": _range,
        "dict": _Dict(),
        "namespace": _SafeNamespace,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return environment
