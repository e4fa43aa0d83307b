"""Find the end of verbatim values between tags or marks: a closing tag may be part of the value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from quire.chat.tools.scanner import CutOff, Malformed, Scanner, Wait

__all__ = ["GoesOn", "ValueTags", "read_to_end", "take_key", "take_value"]

T = TypeVar("T")
_MAX_CLOSERS = 4


@dataclass(frozen=True)
class ValueTags:
    """The tags of a format that writes arguments one by one.

    Attributes:
        opening: Begins a value.
        closing: Ends a value.
        following: Begins the next argument, whose name ends with ``key_end`` if there is one.
        last: Ends the call.
        ends: End the marks around calls, after ``last``.
        starts: Begin more of the answer, after ``last``.
    """

    opening: str
    closing: str
    following: str
    last: str
    key_end: str = ""
    ends: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()


class _End(Enum):
    """The certainty that a closing tag ends the value."""

    CERTAIN = "certain"
    LIKELY = "likely"
    NONE = "none"


def take_key(scan: Scanner, names: dict[str, T], end: str) -> Wait[str]:
    """Take the name of an argument and the ``end`` after it.  Only a listed name may contain the end."""
    listed = [name + end for name in names if end in name or not name]
    found = (yield from scan.optional(*listed)) if listed else None
    if found is not None:
        return found[: -len(end)]
    key, found = yield from scan.until(end)
    if not found or not key or any(sign in key for sign in "\r\n"):
        raise Malformed
    return key


def take_value(scan: Scanner, tags: ValueTags, is_new: Callable[[str], bool]) -> Wait[str]:
    """Take a value and its closing tag.

    Of several closing tags, the first counts that is followed by an argument that ``is_new`` or by the end of the call,
    and that no opening tag in the value belongs to.  If none is certain, the likeliest counts.  Malformed if there is
    none; CutOff with the partial value.
    """
    start = scan.taken
    if scan.rereads > 0:
        for nested in (True, False):
            text, is_certain = yield from _certain(scan, tags, is_new, nested)
            scan.rereads -= not is_certain
            if text is not None:
                return text
            scan.rewind(start)
    parts: list[str] = []
    while True:
        try:
            part, found = yield from scan.until(tags.closing)
            parts.append(part)
            if not found:
                raise Malformed
            if (yield from _end(scan, tags, is_new)) is not _End.NONE:
                return "".join(parts)
        except CutOff as cut:
            cut.text = "".join(parts) + cut.text
            raise
        parts.append(tags.closing)


def _certain(
    scan: Scanner, tags: ValueTags, is_new: Callable[[str], bool], nested: bool
) -> Wait[tuple[str | None, bool]]:
    """Take a value up to the tag that certainly, or else likely, ends it; None for neither.

    Also returns whether the end is certain.  ``nested``: whether opening tags in the value count.
    """
    start, depth = scan.taken, 1
    parts: list[str] = []
    guess: int | None = None
    try:
        while True:
            part, mark = yield from scan.until(*((tags.opening, tags.closing) if nested else (tags.closing,)))
            parts.append(part)
            if not mark:
                break
            if mark == tags.opening:
                depth += 1
            elif depth > 1:
                depth -= 1
            else:
                end = yield from _end(scan, tags, is_new)
                if end is _End.CERTAIN:
                    return "".join(parts), True
                if end is _End.LIKELY and nested and guess is None:
                    guess = sum(map(len, parts))
            parts.append(mark)
    except CutOff as cut:
        if guess is None and depth == 1:
            cut.text = "".join(parts) + cut.text
            raise
    if guess is None:
        return None, False
    scan.rewind(start)
    text = scan.take(guess)
    scan.take(len(tags.closing))
    return text, False


def _end(scan: Scanner, tags: ValueTags, is_new: Callable[[str], bool]) -> Wait[_End]:
    """Judge by the following text whether the closing tag just taken ends a value.  Takes nothing."""
    place, found = scan.taken, None
    try:
        yield from scan.space()
        found = yield from scan.optional(tags.following, tags.last)
        if found is None:
            return _End.NONE
        if found == tags.following:
            return _End.CERTAIN if not tags.key_end or (yield from _is_new(scan, tags, is_new)) else _End.LIKELY
        for _ in range(_MAX_CLOSERS):
            yield from scan.space()
            if (yield from scan.ended()) or (yield from scan.next_of(*tags.starts, tags.last)) is not None:
                return _End.CERTAIN
            if not tags.ends or (yield from scan.optional(*tags.ends)) is None:
                break
        return _End.LIKELY
    except CutOff as cut:
        cut.text = ""
        if found is None:
            raise
        return _End.CERTAIN  # no evidence against it
    finally:
        scan.rewind(place)


def _is_new(scan: Scanner, tags: ValueTags, is_new: Callable[[str], bool]) -> Wait[bool]:
    key, end = yield from scan.until(tags.key_end, "\n")
    return end == tags.key_end and is_new(key)


class GoesOn(Malformed):
    """The text is malformed because it ends too early."""


def read_to_end(scan: Scanner, read: Callable[[str], T], *ends: str) -> Wait[T]:
    """Take the text before one of ``ends``, and the end; return the result of ``read`` on the text.

    An end counts only if ``read`` does not raise GoesOn, because it may be inside a string.  CutOff has the whole text.
    """
    parts: list[str] = []
    first: int | None = None
    while True:
        try:
            part, end = yield from scan.until(*ends)
        except CutOff as cut:
            cut.text = "".join(parts) + cut.text
            raise
        parts.append(part)
        first = scan.taken if first is None else first
        try:
            return read("".join(parts))
        except GoesOn:
            if not end or scan.rereads == 0:
                scan.rewind(first)  # the rest may be complete
                raise
        scan.rereads -= 1
        parts.append(end)
