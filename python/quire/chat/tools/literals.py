"""Values and calls in the notation of Python and of its relatives, read without evaluating anything."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.chat.tools.scanner import Malformed

__all__ = ["Beginning", "CallReader", "LiteralReader", "beginning", "python_calls", "python_value"]

MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_SCRAP = re.compile(r"[-+\w.]*")
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
    begun: tuple[str, int] | None = None
    """The key, and the place, of the outermost value that is being read."""

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
        scrap = _SCRAP.match(self.text, self.at)
        assert scrap is not None
        if scrap.end() == len(self.text):  # a number or a word that is cut
            self.at = scrap.end()
        word = scrap[0]
        if word not in _WORDS:
            raise Malformed
        self.at = scrap.end()
        return _WORDS[word]

    def mapping(self, depth: int = 0) -> dict[str, object]:
        """``{key: value, ...}``."""
        found: dict[str, object] = {}
        self.must("{")
        self.members(found, ":", "}", depth + 1)
        return found

    def members(self, found: dict[str, object], separator: str, end: str, depth: int = 0) -> None:
        """Take ``key separator value, ...`` and ``end`` into ``found``.

        Arguments of a call (``=``) have words for keys, each once; an object has the last of two values of a key.
        """
        is_call = separator == "="
        while not self.comes(end):
            if found:
                self.must(",")
                if self.comes(end):
                    break
            self.space()
            is_word = is_call or (self.bare_keys and not self._at_string())
            key = self.word() if is_word else self.string()
            if is_call and key in found:
                raise Malformed
            self.must(separator)
            self.space()
            if depth == 0:
                self.begun = (key, self.at)
            found[key] = self.value(depth)
            if depth == 0:
                if self.at >= len(self.text):
                    del found[key]  # it may go on, as a number does
                    raise Malformed
                self.begun = None

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
            self.at = len(self.text)
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
        if len(digits) < n_digits:
            self.at = len(self.text)
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
    calls = CallReader(text)
    calls.read()
    return calls.found


class CallReader:
    """Reads calls in Python's notation."""

    def __init__(self, text: str) -> None:
        self.found: list[tuple[str, dict[str, object]]] = []
        self._reader = LiteralReader(text)
        self._open: tuple[str, dict[str, object]] | None = None

    def read(self) -> None:
        """Read all, which must be whole."""
        reader = self._reader
        is_list = reader.comes("[")
        self._call()
        while reader.comes(","):
            self._call()
        if is_list:
            reader.must("]")
        reader.space()
        if reader.at != len(reader.text):
            raise Malformed

    def read_beginning(self) -> Beginning | None:
        """Read what may go on; the call that it ends in.  Raises Malformed for what no call begins like."""
        try:
            self.read()
        except Malformed:
            _check_end(self._reader)
            return None if self._open is None else beginning(self._reader, *self._open)
        return None

    def _call(self) -> None:
        reader = self._reader
        name = reader.word()
        reader.must("(")
        arguments: dict[str, object] = {}
        self._open = (name, arguments)
        reader.members(arguments, "=", ")")
        self._open = None
        self.found.append((name, arguments))


@dataclass(frozen=True)
class Beginning:
    """A call that is not whole: its whole arguments, and of the next one, if that is a text, key and beginning."""

    name: str
    arguments: dict[str, object]
    begun: tuple[str, str] | None


def beginning(reader: LiteralReader, name: str, arguments: dict[str, object]) -> Beginning:
    """The call that a reader was in at the end of its text.  Raises Malformed where the text goes on."""
    _check_end(reader)
    if reader.begun is None:
        return Beginning(name, arguments, None)
    key, at = reader.begun
    return Beginning(name, arguments, None if (text := _begun_string(reader, at)) is None else (key, text))


def _check_end(reader: LiteralReader) -> None:
    reader.space()
    if reader.at < len(reader.text):
        raise Malformed


def _begun_string(reader: LiteralReader, at: int) -> str | None:
    """The beginning of the string at a place; an escape at its end may be cut."""
    text = reader.text[at:]
    if reader.string_mark is not None:
        parts = text.split(reader.string_mark)
        return parts[1] if len(parts) > 1 and not parts[0] else None
    for n in range(len(text), max(0, len(text) - 12), -1):
        try:
            return LiteralReader(text[:n] + text[0]).string()
        except Malformed:
            continue
    return None
