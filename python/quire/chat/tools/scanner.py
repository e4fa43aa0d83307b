"""Scan a text that arrives in pieces.

A wire format is a generator over a ``Scanner``.  The scanner's methods are generators, too: each yields None while it
needs more text, takes the text that it recognizes, and raises ``Malformed`` for any other.  The result does not depend
on where the text was cut, and the work is linear in its length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from functools import lru_cache
from typing import TypeVar

__all__ = ["MAX_DEPTH", "CutOff", "Malformed", "Scanner", "TrailingSpace", "Wait", "held_back", "strict_json"]

T = TypeVar("T")
Wait = Generator[None, None, T]
"""A step that yields None for each time it needs more text, and returns what it found."""

MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_IN_STRING = re.compile(r'[^"\\\x00-\x1f]*')
_OUTSIDE_STRINGS = re.compile(r"[ \t\r\n0-9eE+\-.,:truefalsn]*")
_CLOSERS = {"{": "}", "[": "]"}


class Malformed(Exception):
    """The text does not follow the format, so it is content."""


class CutOff(Exception):
    """Thrown into a waiting reader when the answer was cut by its length: a partial call counts.

    ``text`` is the text that the scanner's step had taken, as far as it is part of a value.
    """

    text = ""


def held_back(text: str, marks: tuple[str, ...]) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    for n in range(min(len(text), max(map(len, marks), default=1) - 1), 0, -1):
        tail = text[-n:]
        if any(mark.startswith(tail) for mark in marks):
            return n
    return 0


@lru_cache(maxsize=256)
def _finder(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds the first of the texts, preferring the longest, in one pass."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


class TrailingSpace:
    """Holds back white space, and marks that may be superfluous, until the next text arrives."""

    def __init__(self) -> None:
        self._held: list[str] = []

    def push(self, text: str) -> str:
        """Add text; return what can be shown so far."""
        shown = text.rstrip()
        if not shown:
            if text:
                self._held.append(text)
            return ""
        whole = self.pop() + shown
        if len(shown) < len(text):
            self._held.append(text[len(shown) :])
        return whole

    def hold(self, text: str) -> None:
        """Hold more text."""
        self._held.append(text)

    def pop(self) -> str:
        """Return the held text and stop holding it."""
        held = "".join(self._held)
        self._held.clear()
        return held


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def strict_json(raw: str) -> object:
    """Return the value of a JSON text.  Malformed if it is not JSON (RFC 8259)."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Malformed from None


class Scanner:
    """The text that arrived and was not taken, and the text taken since the last ``commit``."""

    def __init__(self) -> None:
        self._rest = ""
        self._at = 0
        self._taken: list[str] = []
        self.taken = 0
        """Characters that were taken since the last ``commit``: a place to ``rewind`` to."""
        self.closed = False
        self.rereads = 16
        """How often text may still be read again from an earlier place: it keeps the work linear."""

    def feed(self, text: str) -> None:
        """Add text."""
        self._rest = self._rest[self._at :] + text
        self._at = 0

    def close(self) -> None:
        """Mark the end of the text."""
        self.closed = True

    @property
    def at_end(self) -> bool:
        """True if all arrived text was taken."""
        return self._at == len(self._rest)

    @property
    def n_left(self) -> int:
        """The number of characters that arrived and were not taken."""
        return len(self._rest) - self._at

    def peek(self) -> str:
        """The next character, if it has arrived."""
        return self._rest[self._at : self._at + 1]

    def drop(self) -> str:
        """Skip all arrived text that was not taken; return it."""
        dropped = self._rest[self._at :]
        self._rest, self._at = "", 0
        return dropped

    def commit(self, but: str = "") -> str:
        """Return the text taken since the last time and forget it, except for ``but``, the text at its end."""
        taken = "".join(self._taken)
        self._taken.clear()
        self.taken = 0
        self.keep(but)
        return taken

    def keep(self, text: str) -> None:
        """Restore a committed text as taken."""
        if text:
            self._taken.append(text)
            self.taken += len(text)

    def take(self, n: int) -> str:
        """Take the next ``n`` characters, as far as they have arrived."""
        part = self._rest[self._at : self._at + n]
        self._at += len(part)
        if part:
            self._taken.append(part)
            self.taken += len(part)
        return part

    def take_all(self) -> str:
        """Take all text that has arrived."""
        return self.take(len(self._rest) - self._at)

    def rewind(self, place: int) -> None:
        """Give back the text taken after a place, an earlier value of ``taken``."""
        n = self.taken - place
        given: list[str] = []
        while n > 0:
            part = self._taken.pop()
            keep = max(0, len(part) - n)
            if keep:
                self._taken.append(part[:keep])
            given.append(part[keep:])
            n -= len(part) - keep
        back = "".join(reversed(given))
        self.taken = place
        if len(back) <= self._at:
            self._at -= len(back)
        else:
            self._rest = back + self._rest[self._at :]
            self._at = 0

    def next_of(self, *texts: str) -> Wait[str | None]:
        """Return the longest of the texts that comes next, or None.  Takes nothing."""
        longest = max(map(len, texts))
        while True:
            head = self._rest[self._at : self._at + longest]
            if self.closed or not any(len(text) > len(head) and text.startswith(head) for text in texts):
                return max((text for text in texts if head.startswith(text)), key=len, default=None)
            yield

    def optional(self, *texts: str) -> Wait[str | None]:
        """Take one of the texts if it comes next."""
        found = yield from self.next_of(*texts)
        if found is not None:
            self.take(len(found))
        return found

    def literal(self, *texts: str) -> Wait[str]:
        """Take one of the texts, which must come next."""
        found = yield from self.optional(*texts)
        if found is None:
            raise Malformed
        return found

    def end(self, text: str) -> Wait[None]:
        """Take an end text, or the end of the answer, because stop strings and stop tokens are not shown."""
        found = yield from self.optional(text)
        if found is None:
            rest = self._rest[self._at :]
            if not self.closed or not text.startswith(rest):
                raise Malformed
            self.take(len(rest))

    def ended(self) -> Wait[bool]:
        """Return whether no more text comes."""
        while self.at_end and not self.closed:
            yield
        return self.at_end

    def run(self, pattern: re.Pattern[str]) -> Wait[str]:
        """Take the text that matches a pattern of the form ``[...]*``."""
        parts = []
        while True:
            match = pattern.match(self._rest, self._at)
            parts.append(self.take(0 if match is None else match.end() - self._at))
            if self.closed or not self.at_end:
                return "".join(parts)
            try:
                yield
            except CutOff as cut:
                cut.text = "".join(parts)
                raise

    def space(self) -> Wait[str]:
        """Take white space."""
        return self.run(_SPACE)

    def until(self, *ends: str) -> Wait[tuple[str, str]]:
        """Take the text before the nearest of ``ends`` and the end; return both.

        The end is empty if the whole text ended first.
        """
        parts: list[str] = []
        while True:
            part, end = self.piece(ends)
            parts.append(part)
            if end is not None:
                return "".join(parts), end
            try:
                yield
            except CutOff as cut:
                cut.text = "".join(parts)
                raise

    def piece(self, ends: tuple[str, ...]) -> tuple[str, str | None]:
        """Take the arrived text before the nearest of ``ends``, and the end, or None if it has not arrived."""
        found = _finder(ends).search(self._rest, self._at) if ends else None
        if found is not None:
            part = self.take(found.start() - self._at)
            return part, self.take(len(found[0]))
        rest = self._rest[self._at :] if len(self._rest) - self._at < 64 else self._rest[-64:]
        held = 0 if self.closed else held_back(rest, ends)
        part = self.take(len(self._rest) - self._at - held)
        return part, "" if self.closed else None

    def json(self) -> Wait[str]:
        """Take a JSON object or array and white space before it; return its text, which is valid JSON."""
        start = len(self._taken)
        try:
            yield from self.space()
            return (yield from self._json())
        except CutOff as cut:
            cut.text = "".join(self._taken[start:]).lstrip()
            raise

    def _json(self) -> Wait[str]:
        parts = [(yield from self.literal("{", "["))]
        closers = [_CLOSERS[parts[0]]]
        while closers:
            parts.append((yield from self.run(_OUTSIDE_STRINGS)))
            sign = yield from self.literal('"', "{", "[", "}", "]")
            parts.append(sign)
            if sign == '"':
                parts += yield from self._string()
            elif sign in _CLOSERS:
                closers.append(_CLOSERS[sign])
            elif sign != closers.pop():
                raise Malformed
            if len(closers) > MAX_DEPTH:
                raise Malformed
        raw = "".join(parts)
        strict_json(raw)
        return raw

    def _string(self) -> Wait[list[str]]:
        """Take the rest of a JSON string."""
        parts = []
        while True:
            parts.append((yield from self.run(_IN_STRING)))
            sign = yield from self.literal('"', "\\")
            parts.append(sign)
            if sign == '"':
                return parts
            while self.at_end and not self.closed:
                yield
            parts.append(self.take(1))
