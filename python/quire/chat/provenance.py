"""Track which characters of a prompt the template wrote, through everything that a template does with text.

A template's data and the constants of its expressions are ``TemplateText``: strings that know which of their characters
are the template's.  Texts of users, tools and callers are plain strings, so a template sees exactly what it was given.
Operations that join or split texts keep track.  All others return plain strings, as Python's own methods do, so text of
unknown origin counts as a user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

from markupsafe import Markup

from quire.chat.budget import charge, tick

__all__ = ["ControlTexts", "TemplateText", "concatenated", "is_own", "lifted", "own", "same_author", "segments"]

OURS, THEIRS = b"\1", b"\0"
OURS_RUN = re.compile(rb"\x01+")
# Bytes charged for each place where a text is cut or replaced, and for each run of one author.
PLACE_BYTES = 64
RUN_BYTES = 128

Run = tuple[int, int]


class TemplateText(str):
    """A string with characters of the template.  ``_mask`` has a byte for each, 1 for the template's; None: all are."""

    __slots__ = ("_mask",)
    _mask: bytes | None

    def __new__(cls, text: str = "") -> TemplateText:
        """Create a text without characters of the template; ``own`` and ``mixed`` create the others."""
        made = super().__new__(cls, text)
        made._mask = bytes(len(made))
        return made

    def __str__(self) -> TemplateText:
        return self

    def __add__(self, other: str) -> str:
        if not isinstance(other, str) or isinstance(other, Markup):
            return NotImplemented
        return concatenated([self, other])

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str) or isinstance(other, Markup):
            return NotImplemented
        return concatenated([other, self])

    def __mul__(self, times: SupportsIndex) -> str:
        text = str.__mul__(self, times)
        return own(text) if self._mask is None else mixed(text, self._mask * times)

    __rmul__ = __mul__

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        text = str.__getitem__(self, index)
        if self._mask is None:
            return own(text)
        if isinstance(index, slice):
            return mixed(text, self._mask[index])
        return own(text) if self._mask[index] else text

    def __iter__(self) -> Iterator[str]:
        if self._mask is None:
            return map(own, str.__iter__(self))
        return (own(c) if ours else c for c, ours in zip(str.__iter__(self), self._mask, strict=True))

    def _cut(self, start: int, text: str) -> str:
        """Return the part ``text`` of this text, which begins at ``start``."""
        return own(text) if self._mask is None else mixed(text, self._mask[start : start + len(text)])

    def _cut_all(self, parts: Iterable[str], step: int) -> list[str]:
        """Cut consecutive parts with ``step`` characters between them."""
        cuts = []
        start = 0
        for part in parts:
            tick(PLACE_BYTES)
            cuts.append(self._cut(start, part))
            start += len(part) + step
        return cuts

    def _cut_words(self, words: Iterable[str]) -> list[str]:
        """Cut parts with white space between them."""
        cuts = []
        start = 0
        for word in words:
            tick(PLACE_BYTES)
            start = str.find(self, word, start)
            cuts.append(self._cut(start, word))
            start += len(word)
        return cuts

    def strip(self, characters: str | None = None, /) -> str:
        return self._cut(len(self) - len(str.lstrip(self, characters)), str.strip(self, characters))

    def lstrip(self, characters: str | None = None, /) -> str:
        text = str.lstrip(self, characters)
        return self._cut(len(self) - len(text), text)

    def rstrip(self, characters: str | None = None, /) -> str:
        return self._cut(0, str.rstrip(self, characters))

    def removeprefix(self, prefix: str, /) -> str:
        text = str.removeprefix(self, prefix)
        return self._cut(len(self) - len(text), text)

    def removesuffix(self, suffix: str, /) -> str:
        return self._cut(0, str.removesuffix(self, suffix))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        parts = str.split(self, sep, maxsplit)
        return self._cut_words(parts) if sep is None else self._cut_all(parts, len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        parts = str.rsplit(self, sep, maxsplit)
        return self._cut_words(parts) if sep is None else self._cut_all(parts, len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        whole = self._cut_all(str.splitlines(self, True), 0)
        return whole if keepends else [line[: len(str.splitlines(line)[0])] for line in whole]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, after = self._cut_all(str.partition(self, sep), 0)
        return before, found, after

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, after = self._cut_all(str.rpartition(self, sep), 0)
        return before, found, after

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        text = str.replace(self, old, new, count)
        if self._mask is None and is_own(new):
            return own(text)
        if not old:  # `new` is inserted between the characters
            return text
        parts = self._cut_all(str.split(self, old, count), len(old))
        return mixed(text, mask_of(new).join(map(mask_of, parts)))

    def join(self, parts: Iterable[str], /) -> str:
        parts = list(parts)
        text = str.join(self, parts)
        if is_own(self) and all(map(is_own, parts)):
            return own(text)
        return mixed(text, mask_of(self).join(map(mask_of, parts)))


def own(text: str) -> str:
    """Return a text that is entirely the template's."""
    made = str.__new__(TemplateText, text)
    made._mask = None
    return made


def mixed(text: str, mask: bytes) -> str:
    """Return a text of several authors, or a plain one if the mask does not fit or marks nothing."""
    if len(mask) != len(text) or OURS not in mask:
        return text if type(text) is str else str.__str__(text)
    if THEIRS not in mask:
        return own(text)
    charge(len(mask))
    made = str.__new__(TemplateText, text)
    made._mask = mask
    return made


def lifted(text: str) -> str:
    """Return the text as ``TemplateText`` with an empty mask, so that its methods track their arguments."""
    return TemplateText(text) if type(text) is str else text


def is_own(text: object) -> bool:
    """Return whether a text is entirely the template's."""
    return isinstance(text, TemplateText) and text._mask is None


def mask_of(text: str) -> bytes:
    """Return a byte for each character."""
    if not isinstance(text, TemplateText):
        return bytes(len(text))
    return OURS * len(text) if text._mask is None else text._mask


def concatenated(parts: Iterable[str]) -> str:
    """Join texts."""
    parts = list(parts)
    text = "".join(parts)
    if not any(type(part) is TemplateText for part in parts):
        return text
    if all(map(is_own, parts)):
        return own(text)
    return mixed(text, b"".join(map(mask_of, parts)))


def same_author(text: Any, givens: Sequence[Any], made: Any) -> Any:
    """Mark the result of an operation that only rearranges or changes the characters of its texts.

    It is the template's if all of the texts are.
    """
    if type(made) is not str or not is_own(text):
        return made
    return own(made) if all(is_own(given) or not isinstance(given, str) for given in givens) else made


def runs(parts: Iterable[str]) -> Iterator[Run]:
    """Yield the ranges of the template's characters in the joined texts, ascending and disjoint."""
    begin = end = at = 0
    for part in parts:
        if isinstance(part, TemplateText):
            for found in [(0, len(part))] if part._mask is None else map(re.Match.span, OURS_RUN.finditer(part._mask)):
                tick(RUN_BYTES if part._mask is not None else 0)
                if at + found[0] != end:
                    if begin < end:
                        yield begin, end
                    begin = at + found[0]
                end = at + found[1]
        at += len(part)
    if begin < end:
        yield begin, end


class ControlTexts:
    """Finds the names of control tokens."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name for name in names if name)
        self._lengths = sorted({len(name) for name in self._names}, reverse=True)
        firsts = "".join(sorted({re.escape(name[0]) for name in self._names}))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def spans(self, text: str, run: Run) -> Iterator[Run]:
        """Yield the ranges of names inside a run of a text; adjacent ones are merged."""
        if self._first is None:
            return
        begin = end = run[0]
        for match in self._first.finditer(text, *run):
            at = match.start()
            stop = next((at + n for n in self._lengths if at + n <= run[1] and text[at : at + n] in self._names), at)
            if stop <= end:
                continue
            if at > end:
                if begin < end:
                    yield begin, end
                begin = at
            end = stop
        if begin < end:
            yield begin, end


def segments(parts: Sequence[str], controls: ControlTexts | None) -> list[tuple[str, bool]]:
    """Return (text, is_template) pairs for a tokenizer.

    With ``controls``, only names of control tokens are template parts, so that all other text stays in one piece.  With
    None, everything that the template wrote is.
    """
    text = "".join(parts)
    found = []
    at = 0
    for run in runs(parts):
        for begin, end in [run] if controls is None else controls.spans(text, run):
            tick(RUN_BYTES)
            if begin > at:
                found.append((text[at:begin], False))
            found.append((text[begin:end], True))
            at = end
    if at < len(text):
        found.append((text[at:], False))
    return found
