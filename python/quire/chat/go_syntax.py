"""Parse the templates of Ollama's Modelfiles, which are written in Go's template language."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from quire.errors import UnsupportedError

__all__ = [
    "Action",
    "Assign",
    "Branch",
    "Call",
    "Expression",
    "Field",
    "Literal",
    "Node",
    "Text",
    "Variable",
    "parsed",
    "refusal",
]

MAX_LENGTH, MAX_DEPTH = 1 << 17, 64

_TAG = re.compile(r"\{\{(-\s)?((?:[^\"`}]|\"(?:[^\"\\\n]|\\.)*\"|`[^`]*`|\}(?!\}))*?)(\s-)?\}\}", re.S)
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\\n]|\\.)*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)|(?P<set>:?=)|(?P<mark>[()|,])
    |(?P<variable>\$\w*(?:\.\w+)*)|(?P<field>(?:\.\w+)+)|(?P<dot>\.)|(?P<word>[A-Za-z_]\w*))""",
    re.X,
)


@dataclass(frozen=True)
class Literal:
    """A text, a number, a boolean or nil."""

    value: str | int | float | bool | None


@dataclass(frozen=True)
class Field:
    """Fields of an expression; None: of the dot."""

    names: tuple[str, ...]
    of: Expression | None = None


@dataclass(frozen=True)
class Variable:
    """``$name`` and fields of it; without a name it is the root."""

    name: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """A function with arguments."""

    name: str
    arguments: tuple[Expression, ...]


Expression: TypeAlias = "Literal | Field | Variable | Call"


@dataclass
class Text:
    text: str


@dataclass
class Action:
    """An expression that is written out."""

    value: Expression


@dataclass
class Assign:
    """``$name := value`` or ``$name = value``."""

    name: str
    value: Expression


@dataclass
class Branch:
    """``if``, ``range`` or ``with``.

    ``names``: the variables that it declares.  ``is_chained``: it follows ``else``, and ends with the outer branch.
    """

    kind: str
    value: Expression
    names: tuple[str, ...] = ()
    body: list[Node] = field(default_factory=list)
    other: list[Node] = field(default_factory=list)
    is_chained: bool = False


Node: TypeAlias = "Text | Action | Assign | Branch"


def refusal(what: str) -> UnsupportedError:
    return UnsupportedError(f"[template] unsupported in a template of a Modelfile: {what:.80}")


def parsed(source: str) -> list[Node]:
    """Parse a template.  UnsupportedError names what is not understood."""
    if len(source) > MAX_LENGTH:
        raise refusal(f"more than {MAX_LENGTH} characters")
    root: list[Node] = []
    stack: list[tuple[Branch | None, list[Node]]] = [(None, root)]
    for text, tag in _pieces(source):
        if text:
            stack[-1][1].append(Text(text))
        if tag is not None:
            _add(tag, stack)
    if len(stack) > 1:
        raise refusal(f"'{stack[-1][0].kind if stack[-1][0] else ''}' without 'end'")
    return root


def _pieces(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield texts, trimmed as the tags around them ask, each with the tag that follows it."""
    at, trims = 0, False
    for match in _TAG.finditer(source):
        text = source[at : match.start()]
        text = text.lstrip(" \t\r\n") if trims else text
        yield text if match[1] is None else text.rstrip(" \t\r\n"), match[2].strip()
        at, trims = match.end(), match[3] is not None
    rest = source[at:]
    if "{{" in rest:
        raise refusal(rest[rest.index("{{") :])
    yield rest.lstrip(" \t\r\n") if trims else rest, None


def _add(tag: str, stack: list[tuple[Branch | None, list[Node]]]) -> None:
    """Add the node of a tag to the open branch, open one or close one."""
    if tag.startswith("/*"):
        return
    word, _, rest = tag.partition(" ")
    branch, nodes = stack[-1]
    if word == "end" and not rest:
        # "else if" opens a branch within the other, which the same "end" closes.
        while branch is not None:
            stack.pop()
            outer, _ = stack[-1]
            if outer is None or not (
                outer.other and outer.other[-1] is branch and getattr(branch, "is_chained", False)
            ):
                return
            branch = outer
        raise refusal("'end' without a branch")
    if word == "else":
        if branch is None:
            raise refusal("'else' without a branch")
        stack[-1] = branch, branch.other
        if rest:
            _open(rest, stack, is_chained=True)
        return
    if word in ("if", "range", "with"):
        _open(tag, stack)
        return
    if word in ("define", "template", "block", "break", "continue"):
        raise refusal(f"'{word}'")
    names, value = _assignment(tag)
    if len(names) > 1:
        raise refusal(tag)
    nodes.append(Assign(names[0], value) if names else Action(value))


def _open(tag: str, stack: list[tuple[Branch | None, list[Node]]], *, is_chained: bool = False) -> None:
    kind, _, rest = tag.partition(" ")
    if kind not in ("if", "range", "with") or len(stack) > MAX_DEPTH:
        raise refusal(tag)
    names, value = _assignment(rest)
    if len(names) > (2 if kind == "range" else 1):
        raise refusal(tag)
    branch = Branch(kind, value, names, is_chained=is_chained)
    stack[-1][1].append(branch)
    stack.append((branch, branch.body))


def _assignment(text: str) -> tuple[tuple[str, ...], Expression]:
    """Return the variables that are set, and the expression."""
    tokens = _tokens(text)
    names: list[str] = []
    if any(kind == "set" for kind, _ in tokens):
        at = [kind for kind, _ in tokens].index("set")
        for kind, value in tokens[:at]:
            if kind == "variable" and "." not in value:
                names.append(value[1:])
            elif (kind, value) != ("mark", ","):
                raise refusal(text)
        tokens = tokens[at + 1 :]
    expression, left = _pipeline(tokens)
    if left:
        raise refusal(text)
    return tuple(names), expression


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise refusal(text[at:])
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def _pipeline(tokens: list[tuple[str, str]], depth: int = 0) -> tuple[Expression, list[tuple[str, str]]]:
    value: Expression | None = None
    while True:
        arguments, tokens = _operands(tokens, depth)
        if value is not None:
            arguments.append(value)
        head = arguments[0] if arguments else None
        if isinstance(head, Call) and head.name and not head.arguments:
            value = Call(head.name, tuple(arguments[1:]))
        elif len(arguments) == 1:
            value = arguments[0]
        else:
            raise refusal("a command without a function" if arguments else "an empty command")
        if not tokens or tokens[0] != ("mark", "|"):
            return value, tokens
        tokens = tokens[1:]


def _operands(tokens: list[tuple[str, str]], depth: int) -> tuple[list[Expression], list[tuple[str, str]]]:
    found: list[Expression] = []
    while tokens:
        kind, text = tokens[0]
        if (kind, text) == ("mark", "("):
            if depth > MAX_DEPTH:
                raise refusal("deeply nested parentheses")
            value, tokens = _pipeline(tokens[1:], depth + 1)
            if not tokens or tokens[0] != ("mark", ")"):
                raise refusal("an unclosed parenthesis")
            if isinstance(value, Call) and not value.arguments:
                raise refusal(f"function '{value.name}' without arguments")
            tokens = tokens[1:]
            if tokens and tokens[0][0] == "field":
                value, tokens = Field(tuple(tokens[0][1][1:].split(".")), value), tokens[1:]
            found.append(value)
            continue
        if kind in ("mark", "set"):
            break
        found.append(_operand(kind, text))
        tokens = tokens[1:]
    return found, tokens


def _operand(kind: str, text: str) -> Expression:
    if kind == "text":
        try:
            return Literal(text[1:-1] if text[0] == "`" else json.loads(text))
        except ValueError:
            raise refusal(text) from None
    if kind == "number":
        return Literal(float(text) if "." in text else int(text))
    if kind == "variable":
        name, *names = text[1:].split(".")
        return Variable(name, tuple(names))
    if kind == "field":
        return Field(tuple(text[1:].split(".")))
    if kind == "dot":
        return Field(())
    constants = {"true": True, "false": False, "nil": None}
    return Literal(constants[text]) if text in constants else Call(text, ())
