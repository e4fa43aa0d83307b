"""Regular expressions that files and users give, matched in a bounded number of steps.

Python's ``re`` backtracks: on ``(a+)+$`` it takes twice as long for every further letter of a name.  Here an
expression has the same syntax and matches the same texts, but all places that it may have reached in a text are
followed at once, as the bits of one number (Thompson 1968; the repetition of one character by a carry is Navarro and
Raffinot's).  Back-references and possessive repetitions are refused: they are not regular.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

from .errors import LoadError, QuireError, UnsupportedError

__all__ = ["Expression", "Steps"]

MAX_CHARACTERS = 1 << 14
MAX_STEPS = 1 << 26  # some seconds; 70 000 names with five expressions, as the largest models have, take a tenth
_MAX_DEPTH = 50
_NUMBERS = itertools.count()  # of nodes that match one character
_parser: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


class Steps:
    """How many steps expressions may take: all together where they have one of these in common."""

    def __init__(self, most: int = MAX_STEPS) -> None:
        self.most = self.left = most
        self._read: _Text | None = None

    def read(self, text: str) -> _Text:
        """A text with the places of its characters; the last one is kept for the next expression."""
        if self._read is None or self._read.text != text:
            self._read = _Text(text, self)
        return self._read


class _TooManySteps(Exception):
    pass


class _Text:
    """A text, with the places of its characters as bits: bit i is before character i."""

    def __init__(self, text: str, steps: Steps) -> None:
        self.text, self.n = text, len(text)
        self.places: dict[str, int] = {}
        for i, character in enumerate(text):
            self.places[character] = self.places.get(character, 0) | 1 << i
        self.masks: dict[int, int] = {}  # by the number of a node that matches one character
        self._steps = steps
        self._weight = 1 + self.n // 1024
        self.spend(self.n)

    def spend(self, n: int) -> None:
        self._steps.left -= n * self._weight
        if self._steps.left < 0:
            raise _TooManySteps


# From all places where a match may be to all places where it may be behind a part of the expression.
_Node: TypeAlias = "Callable[[_Text, int], int]"
_Test: TypeAlias = "Callable[[str], bool]"


class Expression:
    """An expression in Python's syntax.

    ``what`` begins its errors, such as ``[convert] 'ignore'``; ``error`` is the class of them.  ``steps`` is what may
    be spent on this and others, by default this alone.  Raises ``error`` for what is no expression, or takes too many
    steps, and UnsupportedError for what is not regular.
    """

    def __init__(self, text: str, what: str, error: type[QuireError] = LoadError, steps: Steps | None = None) -> None:
        self.text, self._what, self._error = text, what, error
        self._steps = steps or Steps()
        if len(text) > MAX_CHARACTERS:
            raise error(f"{what} must be an expression of {MAX_CHARACTERS} characters at most but has {len(text)}")
        try:
            tree = _parser.parse(text)
            self._node = _Reading(what, text).sequence(tree, tree.state.flags, 0)
        except (re.error, OverflowError, RecursionError) as cause:
            raise error(f"{what} must be an expression but {text!r:.80} is none: {cause}") from None

    def match(self, text: str) -> bool:
        """Whether it describes how the text begins."""
        return self._ends(text, lambda _: 1) != 0

    def fullmatch(self, text: str) -> bool:
        """Whether it describes all of the text."""
        return self._ends(text, lambda _: 1) >> len(text) & 1 == 1

    def search(self, text: str) -> bool:
        """Whether it describes a part of the text."""
        return self._ends(text, lambda read: (2 << read.n) - 1) != 0

    def _ends(self, text: str, starts: Callable[[_Text], int]) -> int:
        try:
            read = self._steps.read(text)
            return self._node(read, starts(read))
        except _TooManySteps:
            raise self._error(
                f"{self._what} must match in {self._steps.most} steps but {self.text!r:.80} takes more"
            ) from None


class _Reading:
    """Makes nodes of what Python's parser found."""

    def __init__(self, what: str, text: str) -> None:
        self._what, self._text = what, text

    def sequence(self, tree: Any, flags: int, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise UnsupportedError(
                f"{self._what} must be nested {_MAX_DEPTH} deep at most but {self._text!r:.80} is deeper"
            )
        nodes = [self._node(str(kind), value, flags, depth) for kind, value in tree]
        n = len(nodes) + 1

        def run(text: _Text, starts: int) -> int:
            text.spend(n)
            for node in nodes:
                starts = node(text, starts)
                if not starts:
                    break
            return starts

        return run

    def _node(self, kind: str, value: Any, flags: int, depth: int) -> _Node:
        if (mask := self._mask(kind, value, flags)) is not None:
            return lambda text, starts: (starts & mask(text)) << 1
        made = getattr(self, f"_{kind.lower()}", None)
        if made is None:
            raise UnsupportedError(
                f"{self._what} must have no back-references and possessive repetitions but {self._text!r:.80} has"
            )
        node: _Node = made(value, flags, depth + 1)
        return node

    def _max_repeat(self, value: Any, flags: int, depth: int) -> _Node:
        least, most, tree = value
        if len(tree) == 1 and (mask := self._mask(str(tree[0][0]), tree[0][1], flags)) is not None:
            return _repeated_character(mask, least, most)
        return _repeated(self.sequence(tree, flags, depth), least, most)

    _min_repeat = _max_repeat  # which of several matches is found makes no difference

    def _subpattern(self, value: Any, flags: int, depth: int) -> _Node:
        _, added, removed, tree = value
        return self.sequence(tree, (flags | added) & ~removed, depth)

    def _branch(self, value: Any, flags: int, depth: int) -> _Node:
        return _branch([self.sequence(tree, flags, depth) for tree in value[1]])

    def _assert(self, value: Any, flags: int, depth: int, *, is_negated: bool = False) -> _Node:
        direction, tree = value
        least, most = tree.getwidth() if direction < 0 else (0, 0)
        if least != most:
            raise re.error("look-behind requires fixed-width pattern")
        return _assertion(self.sequence(tree, flags, depth), least, is_negated=is_negated)

    def _assert_not(self, value: Any, flags: int, depth: int) -> _Node:
        return self._assert(value, flags, depth, is_negated=True)

    def _at(self, value: Any, flags: int, depth: int) -> _Node:
        place = _PLACES[str(value)]
        return lambda text, starts: starts & place(text, flags)

    def _failure(self, value: Any, flags: int, depth: int) -> _Node:
        return lambda text, starts: 0

    def _mask(self, kind: str, value: Any, flags: int) -> Callable[[_Text], int] | None:
        """Of what matches one character: the places of those that it does."""
        if kind in ("LITERAL", "NOT_LITERAL") and not flags & re.IGNORECASE:
            return _of_character(chr(value), is_negated=kind == "NOT_LITERAL")
        if kind == "ANY":
            return _of_character("" if flags & re.DOTALL else "\n", is_negated=True)
        found = _test(kind, value, flags)
        if found is None:
            return None
        test, n_tests = found
        number = next(_NUMBERS)

        def mask(text: _Text) -> int:
            if (known := text.masks.get(number)) is None:
                text.spend(n_tests * len(text.places))
                known = sum(places for character, places in text.places.items() if test(character))
                text.masks[number] = known
            return known

        return mask


def _of_character(character: str, *, is_negated: bool) -> Callable[[_Text], int]:
    """The places of a character, or of all others."""
    if is_negated:
        return lambda text: (1 << text.n) - 1 & ~text.places.get(character, 0)
    return lambda text: text.places.get(character, 0)


def _repeated_character(mask: Callable[[_Text], int], least: int, most: int) -> _Node:
    is_endless = most == _parser.MAXREPEAT

    def run(text: _Text, starts: int) -> int:
        places = mask(text)
        for _ in range(least):
            if not starts:
                return 0
            text.spend(1)
            starts = (starts & places) << 1
        if is_endless:  # a carry runs from each start to the end of the characters that match
            return starts | ((places + (starts & places)) ^ places)
        for _ in range(min(most - least, text.n)):
            text.spend(1)
            reached = starts | (starts & places) << 1
            if reached == starts:
                break
            starts = reached
        return starts

    return run


def _repeated(body: _Node, least: int, most: int) -> _Node:
    is_endless = most == _parser.MAXREPEAT

    def run(text: _Text, starts: int) -> int:
        # Behind as many rounds as there are places only those are left from which a round may be empty.
        for _ in range(min(least, text.n + 2)):
            ends = body(text, starts)
            if ends == starts:
                break
            starts = ends
        reached = new = starts
        left = text.n + 2 if is_endless else most - least
        while new and left:
            new = body(text, new) & ~reached
            reached |= new
            left -= 1
        return reached

    return run


def _branch(nodes: list[_Node]) -> _Node:
    def run(text: _Text, starts: int) -> int:
        ends = 0
        for node in nodes:
            ends |= node(text, starts)
        return ends

    return run


def _assertion(body: _Node, width: int, *, is_negated: bool) -> _Node:
    """``width``: how far behind a place the body begins; it ends there then."""

    def holds(text: _Text, place: int) -> bool:
        if not width:
            return body(text, 1 << place) != 0
        return place >= width and body(text, 1 << place - width) >> place & 1 == 1

    def run(text: _Text, starts: int) -> int:
        kept, left = 0, starts
        while left:
            bit = left & -left
            if holds(text, bit.bit_length() - 1) != is_negated:
                kept |= bit
            left ^= bit
        return kept

    return run


def _test(kind: str, value: Any, flags: int) -> tuple[_Test, int] | None:
    """Whether a character matches, and about how many comparisons tell; None for what is no single character."""
    if kind in ("LITERAL", "NOT_LITERAL"):
        items, is_negated = [("LITERAL", value)], kind == "NOT_LITERAL"
    elif kind == "IN":
        items = [(str(name), item) for name, item in value]
        is_negated = items[0][0] == "NEGATE"
        items = items[is_negated:]
    else:
        return None
    tests = [_item(name, item, flags) for name, item in items]
    return (lambda character: any(test(character) for test in tests) != is_negated), 1 + len(tests)


def _item(kind: str, value: Any, flags: int) -> _Test:
    """A part of a set of characters."""
    if kind == "CATEGORY":
        name = str(value).removeprefix("CATEGORY_")
        category, is_ascii = _CATEGORIES[name.removeprefix("NOT_")], bool(flags & re.ASCII)
        is_negated = name.startswith("NOT_")
        return lambda character: (category(character) and (not is_ascii or character.isascii())) != is_negated
    low, high = (value, value) if kind == "LITERAL" else value
    if not flags & re.IGNORECASE:
        return lambda character: low <= ord(character) <= high
    is_ascii = bool(flags & re.ASCII)
    return lambda character: any(low <= ord(one) <= high for one in _cases(character, is_ascii))


def _cases(character: str, is_ascii: bool) -> set[str]:
    if is_ascii and not character.isascii():
        return {character}
    found = {character, character.lower(), character.upper(), character.upper().lower()}
    return {one for one in found if len(one) == 1 and (one.isascii() or not is_ascii)}


_CATEGORIES: dict[str, _Test] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda character: character.isalnum() or character == "_",
}


def _starts(text: _Text, flags: int) -> int:
    return 1 | text.places.get("\n", 0) << 1 if flags & re.MULTILINE else 1


def _ends(text: _Text, flags: int) -> int:
    breaks = text.places.get("\n", 0)
    return 1 << text.n | (breaks if flags & re.MULTILINE else breaks & 1 << text.n >> 1)


def _boundaries(text: _Text, flags: int) -> int:
    is_word = _item("CATEGORY", "CATEGORY_WORD", flags)
    text.spend(len(text.places))
    words = sum(places for character, places in text.places.items() if is_word(character))
    return words ^ words << 1


_PLACES: dict[str, Callable[[_Text, int], int]] = {
    "AT_BEGINNING": _starts,
    "AT_BEGINNING_STRING": lambda text, flags: 1,
    "AT_END": _ends,
    "AT_END_STRING": lambda text, flags: 1 << text.n,
    "AT_BOUNDARY": _boundaries,
    "AT_NON_BOUNDARY": lambda text, flags: ~_boundaries(text, flags) & (2 << text.n) - 1,
}
