"""Values and calls in the notation of Python and of its relatives, read without evaluating anything."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.chat.tools.scanner import Malformed

__all__ = ["LiteralReader", "python_calls", "python_value"]

MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_WORDS: dict[str, object] = {
    "True": True, "true": True, "False": False, "false": False, "None": None, "null": None,
}  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}


@dataclass
class LiteralReader:
    """Reads values from ``text`` at ``at``.  Every method raises Malformed for what is not there.

    ``string_mark``: what stands on both sides of a string; None for Python's quotes.  ``bare_keys``: whether keys of
    objects are words.
    """

    text: str
    at: int = 0
    string_mark: str | None = None
    string_end: str | None = None
    bare_keys: bool = False

    def space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = self.at if match is None else match.end()

    def comes(self, sign: str) -> bool:
        """Take a sign, and white space before it, if it comes next."""
        self.space()
        found = self.text.startswith(sign, self.at)
        self.at += len(sign) if found else 0
        return found

    def must(self, sign: str) -> None:
        if not self.comes(sign):
            raise Malformed

    def word(self) -> str:
        self.space()
        match = _WORD.match(self.text, self.at)
        if match is None:
            raise Malformed
        self.at = match.end()
        return match[0]

    def value(self, depth: int = 0) -> object:
        """A string, number, word, list, tuple or object."""
        if depth > MAX_DEPTH:
            raise Malformed
        self.space()
        sign = self.text[self.at : self.at + 1]
        if sign == "{":
            return self.mapping(depth)
        if sign in ("[", "(") and sign:
            return self._list("]" if sign == "[" else ")", depth)
        if self._at_string():
            return self.string()
        match = _NUMBER.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return _number(match[0])
        word = self.word()
        if word not in _WORDS:
            raise Malformed
        return _WORDS[word]

    def mapping(self, depth: int = 0) -> dict[str, object]:
        """``{key: value, ...}``."""
        found: dict[str, object] = {}
        self.must("{")
        while not self.comes("}"):
            if found:
                self.must(",")
                if self.comes("}"):
                    break
            self.space()
            key = self.string() if self._at_string() or not self.bare_keys else self.word()
            self.must(":")
            found[key] = self.value(depth + 1)
        return found

    def _list(self, end: str, depth: int) -> list[object]:
        found: list[object] = []
        self.at += 1
        while not self.comes(end):
            if found:
                self.must(",")
                if self.comes(end):
                    break
            found.append(self.value(depth + 1))
        return found

    def _at_string(self) -> bool:
        marks = ("'", '"') if self.string_mark is None else (self.string_mark,)
        return self.text.startswith(marks, self.at)

    def string(self) -> str:
        self.space()
        if not self._at_string():
            raise Malformed
        if self.string_mark is None:
            return self._quoted(self.text[self.at])
        start = self.at + len(self.string_mark)
        mark = self.string_end or self.string_mark
        end = self.text.find(mark, start)
        if end < 0:
            raise Malformed
        self.at = end + len(mark)
        return self.text[start:end]

    def _quoted(self, quote: str) -> str:
        parts = []
        self.at += 1
        while True:
            match = _PLAIN[quote].match(self.text, self.at)
            assert match is not None
            parts.append(match[0])
            self.at = match.end() + 1
            sign = self.text[self.at - 1 : self.at]
            if sign == quote:
                return "".join(parts)
            if not sign:
                raise Malformed
            parts.append(self._escape())

    def _escape(self) -> str:
        sign = self.text[self.at : self.at + 1]
        self.at += 1
        n_digits = {"x": 2, "u": 4, "U": 8}.get(sign)
        if n_digits is None:
            return _ESCAPES.get(sign, sign if sign in "'\"\\/" else "\\" + sign)
        digits = self.text[self.at : self.at + n_digits]
        if re.fullmatch("[0-9a-fA-F]+", digits) is None or len(digits) != n_digits or int(digits, 16) > 0x10FFFF:
            raise Malformed
        self.at += n_digits
        return chr(int(digits, 16))


def _number(text: str) -> int | float:
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:  # more digits than Python converts
        raise Malformed from None


def python_value(text: str) -> object:
    """The value of a Python literal.  Raises Malformed."""
    reader = LiteralReader(text)
    value = reader.value()
    reader.space()
    if reader.at != len(text):
        raise Malformed
    return value


def python_calls(text: str) -> list[tuple[str, dict[str, object]]]:
    """The (name, arguments) pairs of ``[f(a=1), g()]``, or of one call.  Raises Malformed."""
    reader = LiteralReader(text)
    is_list = reader.comes("[")
    found = [_python_call(reader)]
    while reader.comes(","):
        found.append(_python_call(reader))
    if is_list:
        reader.must("]")
    reader.space()
    if reader.at != len(text):
        raise Malformed
    return found


def _python_call(reader: LiteralReader) -> tuple[str, dict[str, object]]:
    name = reader.word()
    reader.must("(")
    arguments: dict[str, object] = {}
    while not reader.comes(")"):
        if arguments:
            reader.must(",")
            if reader.comes(")"):
                break
        key = reader.word()
        if key in arguments:
            raise Malformed
        reader.must("=")
        arguments[key] = reader.value()
    return name, arguments
