"""Parse values in Python's notation and similar ones, without evaluating anything."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from quire.chat.tools.scanner import Malformed

__all__ = ["LiteralReader", "python_value"]

MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_PYTHON_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.])")
_ZEROS = re.compile(r"-?0[0-9]+(?![\w.])")
_FUNCTION = re.compile(r"[^\s()\[\]{}<>\"'`=,:;|\\]+")
# Keys that the tool does not list: without characters of the notation.
_KEYS = {
    "=": re.compile(r"[^\s=,()\[\]{}<>\"'`][^\n=,()\[\]{}<>\"'`]*"),
    ":": re.compile(r"[^\s:,{}<>\"'`][^\n:,{}<>\"'`]*"),
}
_BARE_TEXT = re.compile(r"[^\s,:{}\[\]<>\"'`][^\n,{}\[\]<>\"'`]*")
_SCRAP = re.compile(r"[-+\w.]*")
_WORDS: dict[str, object] = {
    "True": True, "true": True, "False": False, "false": False, "None": None, "null": None,
}  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
# A quote that neither an argument nor the end of a call follows was not escaped.
_RAW_END = {
    quote: re.compile(rf"{quote}(?=\s*(?:,\s*[^\s=,()'\"]+\s*=|\)\s*(?:,\s*[^\s()'\"]+\(|\]?\s*$)))") for quote in "'\""
}
_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}


@dataclass
class LiteralReader:
    """Parses values from ``text`` at ``at``.  Every method raises Malformed if the expected syntax is absent.

    Attributes:
        string_mark: Stands on both sides of a string; None for Python's quotes.  With a mark, the keys of objects are
            bare, and plain quotes and texts without quotes are accepted, too.
        names: The tool's keys, which may contain any characters.
        in_call: Whether the values are arguments of a call rather than a whole text.
        raw: Whether strings are verbatim, without escapes.
    """

    text: str
    at: int = 0
    string_mark: str | None = None
    names: Collection[str] = ()
    in_call: bool = False
    raw: bool = False
    n_raw: int = 0
    """The number of texts with unescaped quotes, which a reader of escapes would not have read."""
    begun: tuple[str, int] | None = None
    """The key, and the place, of the outermost value that is being read."""

    def space(self) -> None:
        self.at = self._behind_space()

    @property
    def is_at_end(self) -> bool:
        """Return whether only white space is left."""
        return self._behind_space() >= len(self.text)

    def comes(self, sign: str) -> bool:
        """Take a character, and white space before it, if it comes next."""
        self.space()
        found = self.text.startswith(sign, self.at)
        self.at += len(sign) if found else 0
        return found

    def must(self, sign: str) -> None:
        if not self.comes(sign):
            raise Malformed

    def function(self) -> str:
        """Take the name of a function."""
        return self._match(_FUNCTION)

    def key(self, sign: str) -> str:
        """Take a bare key and the ``sign`` after it, preferring the longest key that the tool lists."""
        listed = self._listed(sign)
        if listed is not None:
            name, self.at = listed
            return name
        self.space()
        if self.string_mark is not None and self._at_string():
            name = self.string()
        else:
            name = self._match(_KEYS[sign]).rstrip()
        self.must(sign)
        return name

    def _listed(self, sign: str) -> tuple[str, int] | None:
        """Return the tool's key that comes next before ``sign``, and the place after both."""
        for place in dict.fromkeys((self.at, self._behind_space())):
            listed = [name for name in self.names if self.text.startswith(name + sign, place)]
            if listed:
                name = max(listed, key=len)
                return name, place + len(name + sign)
        return None

    def _match(self, pattern: re.Pattern[str]) -> str:
        self.space()
        match = pattern.match(self.text, self.at)
        if match is None:
            raise Malformed
        self.at = match.end()
        return match[0]

    def _behind_space(self) -> int:
        match = _SPACE.match(self.text, self.at)
        return self.at if match is None else match.end()

    def value(self, depth: int = 0) -> object:
        """Take a string, number, word, list, tuple or object."""
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
        match = (_PYTHON_NUMBER if self.in_call else _NUMBER).match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return _number(match[0])
        return self._word()

    def _word(self) -> object:
        """Take true, false, none or, in a call, a text without quotes."""
        scrap = _SCRAP.match(self.text, self.at)
        assert scrap is not None
        if scrap.end() == len(self.text):  # a number or word may be cut
            self.at = scrap.end()
        if scrap[0] in _WORDS:
            self.at = scrap.end()
            return _WORDS[scrap[0]]
        if self.string_mark is not None:
            return self._match(_BARE_TEXT).rstrip()
        if self.in_call:
            return self._match(_ZEROS)  # the whole might be another number, or none
        raise Malformed

    def mapping(self, depth: int = 0) -> dict[str, object]:
        """Take ``{key: value, ...}``."""
        found: dict[str, object] = {}
        self.must("{")
        self.members(found, ":", "}", depth + 1)
        return found

    def members(self, found: dict[str, object], separator: str, end: str, depth: int = 0) -> None:
        """Take ``key separator value, ...`` and ``end`` into ``found``.

        Arguments of a call (``=``) have words as keys, each once; in an object, the last value of a key counts.
        """
        is_call = separator == "="
        is_bare = is_call or self.string_mark is not None
        while True:
            if found and not self.comes(","):
                return self.must(end)
            # A key of the tool may begin with the end.
            if not (is_bare and self._listed(separator)) and self.comes(end):
                return None
            if is_bare:
                key = self.key(separator)
            else:
                key = self.string()
                self.must(separator)
            if is_call and key in found:
                raise Malformed
            self.space()
            if depth == 0:
                self.begun = (key, self.at)
            found[key] = self._raw_string() if self.raw and depth == 0 and self._at_string() else self.value(depth)
            if depth == 0:
                if self.at >= len(self.text):
                    del found[key]  # it may continue, like a number
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
        return self.text.startswith(("'", '"', self.string_mark or "'"), self.at)

    def string(self) -> str:
        self.space()
        if not self._at_string():
            raise Malformed
        mark = self.string_mark
        if mark is None or not self.text.startswith(mark, self.at):
            return self._quoted(self.text[self.at])
        start = self.at + len(mark)
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
                return _paired("".join(parts))
            if not sign:
                raise Malformed
            parts.append(self._escape())

    def _raw_string(self) -> str:
        quote, start = self.text[self.at], self.at + 1
        end = _RAW_END[quote].search(self.text, start)
        if end is None:
            raise Malformed
        self.at = end.end()
        self.n_raw += self.text.find(quote, start, end.start()) >= 0
        return self.text[start : end.start()]

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


def _paired(text: str) -> str:
    """Combine pairs of surrogate escapes into characters, as in JSON."""
    if not any("\ud800" <= sign <= "\udfff" for sign in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _number(text: str) -> int | float:
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:  # more digits than Python converts
        raise Malformed from None


def python_value(text: str) -> object:
    """Return the value of a Python literal.  Raises Malformed."""
    reader = LiteralReader(text)
    value = reader.value()
    reader.space()
    if reader.at != len(text):
        raise Malformed
    return value
