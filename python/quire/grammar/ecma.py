"""Translate the patterns of JSON Schema, regular expressions of ECMA-262, for llguidance.

A pattern is read as with JavaScript's flag ``u``.  If that would be an error, escaped punctuation and lone brackets
stand for themselves, as without the flag.  The translation matches a whole text and consists of character sets, groups
and counts only.  https://tc39.es/ecma262/#sec-patterns
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import RequestError, UnsupportedError
from .ecma_characters import (
    ALL,
    ANY_BUT_LINE_ENDS,
    BINARY_PROPERTIES,
    CATEGORIES,
    ESCAPED_SETS,
    LAST,
    SURROGATES,
    CharacterSet,
)
from .ecma_matches import EMPTY, Found, Part, after, either, joined, one, one_of, repeated

__all__ = ["whole_text_pattern"]

MAX_DEPTH = 50
MAX_COUNT = 100_000
MAX_ANCHORED = 32
_COUNTS = re.compile(r"\{(\d+)(,(\d*))?\}")
_GROUP_NAME = re.compile(r"\(\?<([\w$]+)>")
_PROPERTY = re.compile(r"[pP]\{(?:(\w+)=)?(\w+)\}")
_CONTROLS = {"t": 0x9, "n": 0xA, "v": 0xB, "f": 0xC, "r": 0xD}
_ESCAPABLE = frozenset("^$\\.*+?()[]{}|/")
_REFUSED_GROUPS = {
    "(?=": "a lookahead", "(?!": "a negative lookahead", "(?<=": "a lookbehind", "(?<!": "a negative lookbehind",
}  # fmt: skip


def whole_text_pattern(pattern: str, place: str) -> str:
    """Return a pattern that matches, as a whole, the texts in which ``pattern`` is found.

    Raises:
        UnsupportedError: The pattern cannot be enforced; the message names the reason and ``place``.
        RequestError: The pattern is not a regular expression of ECMA-262.
    """
    return _Reader(pattern, place).whole()


_SIMPLE: Mapping[str, Found] = {
    "^": {(True, False): Part("", True)},
    "$": {(False, True): Part("", True)},
    ".": one_of(ANY_BUT_LINE_ENDS),
}


class _Reader:
    """Translates a pattern from left to right."""

    def __init__(self, pattern: str, place: str) -> None:
        self._pattern, self._place = pattern, place
        self._at = self._depth = 0
        self._names: set[str] = set()
        # Set by syntax that needs the flag, and by syntax that needs its absence.  Both in one pattern have no meaning.
        self._flagged = self._unflagged = False

    def whole(self) -> str:
        """Translate the whole pattern."""
        found = self._alternatives()
        if self._at < len(self._pattern):
            raise self._malformed("has a ) without its (")
        if self._flagged and self._unflagged:
            raise self._refused("syntax that needs JavaScript's flag u beside syntax that the flag u forbids")
        around = f"{ALL.written()}*"
        texts = [
            f"{'' if first else around}{part.text}{'' if last else around}" for (first, last), part in found.items()
        ]
        if not texts:
            raise self._refused("an empty set of characters, which matches nothing,")
        return f"^(?:{'|'.join(texts)})$"

    def _malformed(self, reason: str) -> RequestError:
        return RequestError(f"[json_schema] the pattern {self._pattern!r:.80} at {self._place} {reason} (ECMA-262)")

    def _refused(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"[json_schema] the pattern {self._pattern!r:.80} at {self._place} cannot be enforced: {what} is not "
            "supported"
        )

    def _takes(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        if found:
            self._at += len(text)
        return found

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise self._malformed("ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    # Parts

    def _alternatives(self) -> Found:
        found = [self._sequence()]
        while self._takes("|"):
            found.append(self._sequence())
        return either(found)

    def _sequence(self) -> Found:
        """Read parts in a row.  Joining parts without anchors all at once keeps the time linear in the pattern."""
        found, n_anchored, plain = EMPTY, 0, list[Part]()
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            part = self._counted(self._pattern[self._at])
            if part.keys() == EMPTY.keys():
                plain.append(part[False, False])
                continue
            found = after(after(found, joined(plain)), part)
            plain, n_anchored = [], n_anchored + 1
            if n_anchored > MAX_ANCHORED:
                raise self._refused(f"a row of more than {MAX_ANCHORED} parts with anchors")
        return after(found, joined(plain))

    def _counted(self, start: str) -> Found:
        """Read an atom with its count."""
        atom = self._atom()
        least, most = self._count()
        if (least, most) == (1, 1):
            return atom
        if start in "^$":
            raise self._malformed("repeats an anchor")
        self._takes("?")  # laziness changes only which match is found
        if self._at < len(self._pattern) and (self._pattern[self._at] in "*+?" or self._counts_follow()):
            raise self._malformed("repeats a count")
        if most is not None and least > most:
            raise self._malformed("counts from more to less")
        if max(least, most or 0) > MAX_COUNT:
            raise self._refused(f"a count above {MAX_COUNT}")
        found = repeated(atom, least, most)
        if found is None:
            raise self._refused("an anchor that is repeated")
        return found

    def _counts_follow(self) -> re.Match[str] | None:
        return _COUNTS.match(self._pattern, self._at)

    def _count(self) -> tuple[int, int | None]:
        if self._takes("*"):
            return 0, None
        if self._takes("+"):
            return 1, None
        if self._takes("?"):
            return 0, 1
        counts = self._counts_follow()
        if counts is None:
            return 1, 1
        if max(len(counts[1]), len(counts[3] or "")) > 9:
            raise self._refused(f"a count above {MAX_COUNT}")
        self._at = counts.end()
        least = int(counts[1])
        most = least if counts[2] is None else int(counts[3]) if counts[3] else None
        if (least, most) == (1, 1):
            self._takes("?")
        return least, most

    def _atom(self) -> Found:
        if self._counts_follow() is not None:
            raise self._malformed("has nothing to repeat")
        character = self._next()
        if character in "*+?":
            raise self._malformed("has nothing to repeat")
        if character in _SIMPLE:
            return _SIMPLE[character]
        self._unflagged |= character in "{}]"
        self._flagged |= character > "\uffff"
        read = {"(": self._group, "[": self._set, "\\": self._escape}.get(character)
        return one(ord(character)) if read is None else read()

    def _group(self) -> Found:
        self._at -= 1
        for mark, what in _REFUSED_GROUPS.items():
            if self._takes(mark):
                raise self._refused(what)
        name = _GROUP_NAME.match(self._pattern, self._at)
        if name is not None:
            if name[1] in self._names or name[1][0].isdigit():
                raise self._malformed(f"has the group name {name[1]!r:.40} twice or beginning with a digit")
            self._names.add(name[1])
            self._at = name.end()
        elif not self._takes("(?:"):
            self._at += 1
            if self._takes("?"):
                raise self._refused("a group that begins with (?")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refused(f"nesting deeper than {MAX_DEPTH}")
        found = self._alternatives()
        self._depth -= 1
        if not self._takes(")"):
            raise self._malformed("has a ( without its )")
        return {anchors: Part(f"(?:{part.text})", part.nullable) for anchors, part in found.items()}

    # Characters

    def _escape(self) -> Found:
        character = self._next()
        if character in "bB":
            raise self._refused(f"the word boundary \\{character}")
        if character in "123456789" or character == "k":
            raise self._refused("a back reference")
        self._at -= 1
        return self._escaped_set()

    def _escaped_set(self) -> Found:
        found = self._escaped()
        return one(found) if isinstance(found, int) else one_of(found)

    def _escaped(self) -> int | CharacterSet:
        """Read an escape after its backslash, inside or outside of a set."""
        property_ = _PROPERTY.match(self._pattern, self._at)
        if property_ is not None:
            self._at, self._flagged = property_.end(), True
            return self._property(property_)
        character = self._next()
        if character in ESCAPED_SETS:
            return ESCAPED_SETS[character]
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character in "cxu0":
            return self._numbered(character)
        if character.isalnum() or not character.isascii():
            raise self._malformed(f"has the unknown escape \\{character}")
        self._unflagged |= character not in _ESCAPABLE
        return ord(character)

    def _numbered(self, kind: str) -> int:
        """Read an escape that contains a character's number."""
        if kind == "x":
            return self._hexadecimal(2)
        if kind == "u":
            return self._code_point()
        if kind == "0":
            if self._pattern[self._at : self._at + 1].isdecimal():
                raise self._refused("an octal escape")
            return 0
        control = self._next()
        if not (control.isascii() and control.isalpha()):
            raise self._malformed("has \\c before a character that is not a letter")
        return ord(control) % 32

    def _property(self, found: re.Match[str]) -> CharacterSet:
        negated, key, name = found[0][0] == "P", found[1], found[2]
        if key is None and name in ("Any", "ASCII"):
            known = ALL if name == "Any" else CharacterSet(((0, 0x7F),))
            return known.without() if negated else known
        if key in (None, "General_Category", "gc") and name in CATEGORIES:
            said = f"gc={name}"
        elif key in ("Script", "sc", "Script_Extensions", "scx"):
            said = f"{'scx' if key in ('Script_Extensions', 'scx') else 'sc'}={name}"
        elif key is None and name in BINARY_PROPERTIES:
            said = name
        else:
            raise self._refused(f"the property \\{found[0]:.60}")
        return CharacterSet((), (f"\\{'P' if negated else 'p'}{{{said}}}",))

    def _hexadecimal(self, n_digits: int) -> int:
        digits = self._pattern[self._at : self._at + n_digits]
        if not re.fullmatch(rf"[0-9A-Fa-f]{{{n_digits}}}", digits):
            raise self._malformed(f"has an escape without its {n_digits} hexadecimal digits")
        self._at += n_digits
        return int(digits, 16)

    def _code_point(self) -> int:
        braced = re.compile(r"\{([0-9A-Fa-f]{1,9})\}").match(self._pattern, self._at)
        if braced is not None:
            self._at, self._flagged = braced.end(), True
            code = int(braced[1], 16)
        else:
            code = self._hexadecimal(4)
            if 0xD800 <= code < 0xDC00 and self._takes("\\u"):
                low = self._hexadecimal(4)
                if not 0xDC00 <= low <= 0xDFFF:
                    raise self._refused("half a surrogate pair")
                self._flagged = True
                code = 0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00
        if code > LAST:
            raise self._malformed("has a code point above 10FFFF")
        if SURROGATES[0] <= code <= SURROGATES[1]:
            raise self._refused("half a surrogate pair")
        return code

    def _set(self) -> Found:
        negated = self._takes("^")
        spans: list[tuple[int, int]] = []
        properties: list[str] = []
        while not self._takes("]"):
            first = self._member()
            last: int | CharacterSet = first
            if self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at):
                self._at += 1
                last = self._member()
                if not isinstance(first, int) or not isinstance(last, int):
                    spans.append((0x2D, 0x2D))  # not a range: a hyphen, as without the flag
                    self._unflagged = True
            if isinstance(first, int) and isinstance(last, int):
                if first > last:
                    raise self._malformed("has a range from more to less")
                spans.append((first, last))
                continue
            for member in (first, last):
                spans += [(member, member)] if isinstance(member, int) else member.spans
                properties += () if isinstance(member, int) else member.properties
        found = CharacterSet.of(spans, properties)
        if found.properties:
            return {(False, False): Part(found.written(negated), False)}
        return one_of(found.without() if negated else found)

    def _member(self) -> int | CharacterSet:
        character = self._next()
        self._flagged |= character > "\uffff"
        if character != "\\":
            return ord(character)
        if self._takes("b"):
            return 0x8
        if self._takes("-"):
            return 0x2D
        if self._pattern[self._at : self._at + 1] in set("B123456789k"):
            raise self._malformed("has an escape in a set that is not a character")
        return self._escaped()
