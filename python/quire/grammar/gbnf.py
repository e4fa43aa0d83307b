"""Translate GBNF, the grammar notation of llama.cpp, to Lark.

Notation: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md

A rule that does not lead back to itself describes a regular language.  It becomes one terminal, which matches as
exactly as a regular expression; so does a rule that leads back to itself only at the end of its alternatives.
Other rules become rules of a context-free grammar over such terminals, and between these the longest match counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from ..errors import RequestError, UnsupportedError

__all__ = ["gbnf_to_lark", "is_gbnf"]

MAX_DEPTH = 64
MAX_REPETITIONS = 10_000

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_RULE = re.compile(r"[A-Za-z0-9_-]+[ \t]*::=")
_BOUNDS = re.compile(r"\{[ \t]*(\d+)[ \t]*(?:(,)[ \t]*(\d*)[ \t]*)?\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^", "/": "/"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class _Terminal:
    """Lark for a string or a class of characters, for use in a terminal."""

    lark: str


@dataclass(frozen=True)
class _Reference:
    name: str
    position: int


@dataclass(frozen=True)
class _Repeat:
    node: _Node
    least: int
    most: int | None


@dataclass(frozen=True)
class _Sequence:
    nodes: tuple[_Node, ...]


@dataclass(frozen=True)
class _Choice:
    nodes: tuple[_Node, ...]


_Node: TypeAlias = "_Terminal | _Reference | _Repeat | _Sequence | _Choice"
_EMPTY = _Sequence(())


def is_gbnf(grammar: str) -> bool:
    """Return whether a grammar is written in GBNF: its first rule has ``::=``."""
    start = _SPACE_AND_LINES.match(grammar)
    return start is not None and _RULE.match(grammar, start.end()) is not None


def gbnf_to_lark(grammar: str) -> str:
    """Translate a GBNF grammar to Lark.

    Raises:
        RequestError: The grammar is malformed; the message names the line.
        UnsupportedError: Lark has nothing like it.
    """
    return _Writer(_Reader(grammar).rules()).lark()


class _Reader:
    """A recursive-descent parser of GBNF."""

    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def error(self, reason: str, position: int | None = None) -> RequestError:
        line = self.text.count("\n", 0, self.position if position is None else position) + 1
        return RequestError(f"[gbnf] line {line}: {reason}")

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def skip(self, pattern: re.Pattern[str] = _SPACE) -> None:
        found = pattern.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def name(self) -> str:
        found = _NAME.match(self.text, self.position)
        if found is None:
            raise self.error(f"expected a name, not {self.text[self.position : self.position + 20]!r}")
        self.position = found.end()
        return found.group()

    def rules(self) -> dict[str, _Node]:
        rules: dict[str, _Node] = {}
        references: list[_Reference] = []
        self.skip(_SPACE_AND_LINES)
        while self.position < len(self.text):
            name = self.name()
            self.skip()
            if not self.text.startswith("::=", self.position):
                raise self.error(f"expected ::= after {name:.80}")
            self.position += 3
            self.skip(_SPACE_AND_LINES)
            if name in rules:
                raise self.error(f"second definition of {name:.80}")
            rules[name] = self.alternatives(nested=False)
            if self.peek() not in ("", "\r", "\n"):
                raise self.error(f"expected the end of a rule, not {self.text[self.position : self.position + 20]!r}")
            self.skip(_SPACE_AND_LINES)
        if "root" not in rules:
            raise RequestError("[gbnf] the grammar has no rule named root")
        for node in rules.values():
            references += _references(node)
        for reference in references:
            if reference.name not in rules:
                raise self.error(f"no rule is named {reference.name:.80}", reference.position)
        return rules

    def alternatives(self, nested: bool) -> _Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"groups are nested more than {MAX_DEPTH} deep")
        space = _SPACE_AND_LINES if nested else _SPACE
        nodes = [self.sequence(space)]
        while self.peek() == "|":
            self.position += 1
            self.skip(_SPACE_AND_LINES)
            nodes.append(self.sequence(space))
        self.depth -= 1
        return nodes[0] if len(nodes) == 1 else _Choice(tuple(nodes))

    def sequence(self, space: re.Pattern[str]) -> _Node:
        nodes: list[_Node] = []
        while (node := self.item(space)) is not None:
            self.skip(space)
            nodes.append(self.repeated(node, space))
        return nodes[0] if len(nodes) == 1 else _Sequence(tuple(nodes))

    def item(self, space: re.Pattern[str]) -> _Node | None:
        start, first = self.position, self.peek()
        if first == '"':
            return self.literal()
        if first == "[":
            return self.characters()
        if first == ".":
            self.position += 1
            return _Terminal("/(?s:.)/")
        if first == "(":
            self.position += 1
            self.skip(_SPACE_AND_LINES)
            node = self.alternatives(nested=True)
            if self.peek() != ")":
                raise self.error("a group is not closed with )")
            self.position += 1
            return node
        if first in ("<", "!"):
            raise UnsupportedError("[gbnf] tokens (<...>, !<...>) are unsupported in GBNF: use Lark")
        # A name on a new line, before ::=, begins the next rule.
        if first and _NAME.match(first) and not (space is _SPACE_AND_LINES and _RULE.match(self.text, start)):
            return _Reference(self.name(), start)
        return None

    def repeated(self, node: _Node, space: re.Pattern[str]) -> _Node:
        while (operator := self.peek()) and operator in "*+?{":
            if operator == "{":
                least, most = self.bounds()
            else:
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[operator]
                self.position += 1
            node = _Repeat(node, least, most)
            self.skip(space)
        return node

    def bounds(self) -> tuple[int, int | None]:
        found = _BOUNDS.match(self.text, self.position)
        if found is None:
            raise self.error("expected bounds like {m}, {m,} or {m,n}")
        least, comma, most = found.groups()
        if max(len(least), len(most or "")) > 6 or max(int(least), int(most or 0)) > MAX_REPETITIONS:
            raise self.error(f"{found.group():.40} repeats more than {MAX_REPETITIONS} times")
        upper = int(least) if comma is None else int(most) if most else None
        if upper is not None and upper < int(least):
            raise self.error(f"the bounds {found.group()} are not in order")
        self.position = found.end()
        return int(least), upper

    def character(self) -> str:
        """Read one character, which may be escaped."""
        first = self.peek()
        self.position += 1
        if first != "\\":
            return first
        kind = self.peek()
        self.position += 1
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        if kind not in _HEX_DIGITS:
            raise self.error(f"unknown escape \\{kind}")
        digits = self.text[self.position : self.position + _HEX_DIGITS[kind]]
        if not re.fullmatch(rf"[0-9A-Fa-f]{{{_HEX_DIGITS[kind]}}}", digits):
            raise self.error(f"expected {_HEX_DIGITS[kind]} hexadecimal digits after \\{kind}")
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self.error(f"no character has the code {code:x}")
        self.position += len(digits)
        return chr(code)

    def literal(self) -> _Node:
        self.position += 1
        characters = []
        while self.peek() != '"':
            if self.peek() in ("", "\n", "\r"):
                raise self.error('a string is not closed with "')
            characters.append(self.character())
        self.position += 1
        if not characters:
            return _EMPTY
        return _Terminal("/" + "".join(_escaped(character) for character in characters) + "/")

    def characters(self) -> _Node:
        self.position += 1
        negated = self.peek() == "^"
        self.position += negated
        parts = []
        while self.peek() != "]":
            if self.peek() in ("", "\n", "\r"):
                raise self.error("a character class is not closed with ]")
            low = high = self.character()
            if self.peek() == "-" and self.text[self.position + 1 : self.position + 2] not in ("]", ""):
                self.position += 1
                high = self.character()
            if high < low:
                raise self.error(f"the range {low!r} to {high!r} is not in order")
            parts.append(_escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}")
        self.position += 1
        if not parts:
            if negated:
                return _Terminal("/(?s:.)/")
            raise self.error("a character class is empty")
        return _Terminal(f"/[{'^' * negated}{''.join(parts)}]/")


def _escaped(character: str) -> str:
    """Escape a character for a regular expression, in a class or outside, on one line."""
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):X}}}"


def _references(node: _Node) -> Iterator[_Reference]:
    if isinstance(node, _Reference):
        yield node
    elif isinstance(node, _Repeat):
        yield from _references(node.node)
    elif isinstance(node, _Sequence | _Choice):
        for inner in node.nodes:
            yield from _references(inner)


class _Writer:
    """Writes Lark with terminals ``Tn`` and rules ``rn``.  n counts the grammar's rules, then the runs of terminals."""

    def __init__(self, rules: dict[str, _Node]) -> None:
        self.rules = {name: _without_tail_recursion(name, node) for name, node in rules.items()}
        self.numbers = {name: i for i, name in enumerate(self.rules)}
        self.runs: list[str] = []

    @cached_property
    def regular(self) -> set[str]:
        """The rules that do not lead back to themselves, found by removing rules whose references are all removed."""
        waiting = {name: {reference.name for reference in _references(node)} for name, node in self.rules.items()}
        users: dict[str, list[str]] = {}
        for name, needed in waiting.items():
            for other in needed:
                users.setdefault(other, []).append(name)
        ready = [name for name, needed in waiting.items() if not needed]
        done = set(ready)
        while ready:
            for user in users.get(done_name := ready.pop(), []):
                waiting[user].discard(done_name)
                if not waiting[user] and user not in done:
                    done.add(user)
                    ready.append(user)
        return done

    def lark(self) -> str:
        lines = ["start: " + self._name("root")]
        for name, node in self.rules.items():
            text = self._terminal(node) if name in self.regular else self._rule(node)
            lines.append(f"{self._name(name)}: {text}")
        return "\n".join([*lines, *self.runs]) + "\n"

    def _name(self, rule: str) -> str:
        return f"{'T' if rule in self.regular else 'r'}{self.numbers[rule]}"

    def _is_regular(self, node: _Node) -> bool:
        return all(reference.name in self.regular for reference in _references(node))

    def _terminal(self, node: _Node) -> str:
        """Return Lark for a node in the definition of a terminal."""
        if isinstance(node, _Terminal):
            return node.lark
        if isinstance(node, _Reference):
            return self._name(node.name)
        if isinstance(node, _Repeat):
            return f"({self._terminal(node.node)}){_bounds(node)}"
        if isinstance(node, _Sequence):
            return " ".join(f"({self._terminal(inner)})" for inner in node.nodes) or '""'
        return "(" + " | ".join(self._terminal(inner) for inner in node.nodes) + ")"

    def _rule(self, node: _Node) -> str:
        """Return Lark for a node in the definition of a rule.  Regular parts become terminals, as large as possible."""
        if node == _EMPTY:
            return '""'
        if self._is_regular(node):
            return self._run([node])
        if isinstance(node, _Reference):
            return self._name(node.name)
        if isinstance(node, _Repeat):
            return f"({self._rule(node.node)}){_bounds(node)}"
        if isinstance(node, _Sequence):
            return " ".join(f"({part})" for part in self._parts(node.nodes))
        assert isinstance(node, _Choice)
        regular = tuple(inner for inner in node.nodes if inner != _EMPTY and self._is_regular(inner))
        others = [self._rule(inner) for inner in node.nodes if inner not in regular]
        if regular:
            others.append(self._run([_Choice(regular)]))
        return "(" + " | ".join(others) + ")"

    def _parts(self, nodes: Sequence[_Node]) -> Iterator[str]:
        run: list[_Node] = []
        for node in nodes:
            if self._is_regular(node):
                run.append(node)
                continue
            if run:
                yield self._run(run)
            run = []
            yield self._rule(node)
        if run:
            yield self._run(run)

    def _run(self, nodes: Sequence[_Node]) -> str:
        if len(nodes) == 1 and isinstance(nodes[0], _Reference):
            return self._name(nodes[0].name)
        name = f"T{len(self.rules) + len(self.runs)}"
        self.runs.append(f"{name}: {self._terminal(_Sequence(tuple(nodes)))}")
        return name


def _bounds(node: _Repeat) -> str:
    if node.most is None:
        return {0: "*", 1: "+"}.get(node.least, f"{{{node.least},}}")
    return "?" if (node.least, node.most) == (0, 1) else f"{{{node.least},{node.most}}}"


def _without_tail_recursion(name: str, node: _Node) -> _Node:
    """Turn ``x ::= a | b x`` into ``b* a``; return other rules unchanged."""
    alternatives = node.nodes if isinstance(node, _Choice) else (node,)
    ends: list[_Node] = []
    loops: list[_Node] = []
    for alternative in alternatives:
        parts = alternative.nodes if isinstance(alternative, _Sequence) else (alternative,)
        if parts and isinstance(parts[-1], _Reference) and parts[-1].name == name and len(parts) > 1:
            loops.append(_Sequence(parts[:-1]))
        else:
            ends.append(alternative)
    inner = [reference.name for part in (*ends, *loops) for reference in _references(part)]
    if not loops or not ends or name in inner:
        return node
    return _Sequence((_Repeat(_Choice(tuple(loops)), 0, None), _Choice(tuple(ends))))
