"""Keeping what the template wrote apart from what users wrote, through whatever a template does with text.

What the template writes, its data and the constants of its expressions, is ``TemplateText``: a string that knows which
of its characters are the template's.  What users, tools and callers wrote are plain strings, untouched, so that a
template sees exactly what it was given.  Operations that put texts together or take them apart keep the knowledge;
every other one gives a plain string, as Python's own methods do, so that what is not known to be the template's counts
as a user's.
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
# Bytes for each place of a text that is cut or exchanged, and for each run of one author.
PLACE_BYTES = 64
RUN_BYTES = 128

Run = tuple[int, int]


class TemplateText(str):
    """A string of which some characters are the template's.  ``_mask``: a byte for each, 1 where it is; None: all."""

    __slots__ = ("_mask",)
    _mask: bytes | None

    def __new__(cls, text: str = "") -> TemplateText:
        """A text of which nothing is the template's; ``own`` and ``mixed`` make the others."""
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
        """The part of this text that begins at ``start`` and is ``text``."""
        return own(text) if self._mask is None else mixed(text, self._mask[start : start + len(text)])

    def _cut_all(self, parts: Iterable[str], step: int) -> list[str]:
        """Parts in turn, ``step`` characters between them."""
        cuts = []
        start = 0
        for part in parts:
            tick(PLACE_BYTES)
            cuts.append(self._cut(start, part))
            start += len(part) + step
        return cuts

    def _cut_words(self, words: Iterable[str]) -> list[str]:
        """Parts with white space between them."""
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
        if not old:  # `new` goes between the characters
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
    """A text that is all the template's."""
    made = str.__new__(TemplateText, text)
    made._mask = None
    return made


def mixed(text: str, mask: bytes) -> str:
    """A text of several authors; a plain one where the mask does not fit or nothing is the template's."""
    if len(mask) != len(text) or OURS not in mask:
        return text if type(text) is str else str.__str__(text)
    if THEIRS not in mask:
        return own(text)
    charge(len(mask))
    made = str.__new__(TemplateText, text)
    made._mask = mask
    return made


def lifted(text: str) -> str:
    """The text as one that knows that nothing of it is the template's: its methods keep what their arguments know."""
    return TemplateText(text) if type(text) is str else text


def is_own(text: object) -> bool:
    """Whether a text is all the template's."""
    return isinstance(text, TemplateText) and text._mask is None


def mask_of(text: str) -> bytes:
    """A byte for each character."""
    if not isinstance(text, TemplateText):
        return bytes(len(text))
    return OURS * len(text) if text._mask is None else text._mask


def concatenated(parts: Iterable[str]) -> str:
    """The texts put together."""
    parts = list(parts)
    text = "".join(parts)
    if not any(type(part) is TemplateText for part in parts):
        return text
    if all(map(is_own, parts)):
        return own(text)
    return mixed(text, b"".join(map(mask_of, parts)))


def same_author(text: Any, givens: Sequence[Any], made: Any) -> Any:
    """What an operation made that only rearranges or changes the characters of its texts: the template's where all of
    them are."""
    if type(made) is not str or not is_own(text):
        return made
    return own(made) if all(is_own(given) or not isinstance(given, str) for given in givens) else made


def runs(parts: Iterable[str]) -> Iterator[Run]:
    """Where the template's characters are in the texts put together, in order and apart."""
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
        """Where names are inside a run of a text; those that touch are one."""
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
    """(text, is_template) pairs for a tokenizer.  With ``controls`` only their names are the template's parts, which
    leaves all other text in one piece; None: everything that the template wrote."""
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
