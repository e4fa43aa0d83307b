"""Collect arguments that arrive one by one, each as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

from quire.chat.tools.calls import Call, Tools, Unfinished
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, Wait
from quire.chat.tools.schemas import ANY
from quire.chat.tools.value_ends import ValueTags, take_key, take_value
from quire.chat.tools.values import arguments_text, is_text, typed_value

__all__ = ["ArgumentList", "Lines", "started_arguments"]


class Lines(Enum):
    """The line ends around a value that belong to the format: none, either, or both if one precedes it."""

    NONE = "none"
    EITHER = "either"
    BOTH = "both"

    def without(self, text: str) -> str:
        """Strip the line ends from a value."""
        if self is Lines.NONE:
            return text
        for end in ("\r\n", "\n"):
            if text.startswith(end):
                return text[len(end) :].removesuffix(end)
        return text.removesuffix("\n") if self is Lines.EITHER else text


class ArgumentList:
    """The arguments of a call so far, with types from the tool's schema."""

    def __init__(self, tools: Tools, name: str, tags: ValueTags | None = None, lines: Lines = Lines.NONE) -> None:
        self.name = name
        self.schema = tools.schemas.get(name, ANY)
        self._values: dict[str, object] = {}
        self._tags, self._lines = tags, lines

    @property
    def call(self) -> Call:
        """Return the complete call."""
        return Call(self.name, arguments_text(self._values))

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Inside this context, the partial call counts if the answer is cut."""
        try:
            yield
        except Unfinished:
            raise
        except CutOff:
            raise Unfinished([Call(self.name, started_arguments(self._values))]) from None

    def key(self, scan: Scanner, end: str) -> Wait[str]:
        """Take the name of an argument and the ``end`` after it."""
        return take_key(scan, self.schema.members, end)

    def take(self, scan: Scanner, key: str, as_text: bool | None = None, tags: ValueTags | None = None) -> Wait[None]:
        """Take the value of an argument and the tag after it.

        Args:
            as_text: Whether the wire format says that the value is text; None if it does not say.
            tags: Replace the format's tags.
        """
        text = yield from self.text(scan, key, as_text, tags)
        self.add(key, typed_value(text, self.schema.member(key), as_text))

    def text(
        self, scan: Scanner, key: str, as_text: bool | None = None, tags: ValueTags | str | None = None
    ) -> Wait[str]:
        """Take the text of an argument and the tag after it.  ``tags`` may be a text that no value contains."""
        tags = tags or self._tags
        try:
            if isinstance(tags, ValueTags):
                text = yield from take_value(scan, tags, lambda other: other != key and other not in self._values)
            else:
                text, found = yield from scan.until(tags or "")
                if not found:
                    raise Malformed
        except CutOff as cut:
            known = (key, self._lines.without(cut.text)) if is_text(self.schema.member(key), as_text) else None
            raise Unfinished([Call(self.name, started_arguments(self._values, known))]) from None
        return self._lines.without(text)

    def add(self, key: str, value: object) -> None:
        """Add an argument.  Malformed for a second one of the same name."""
        if key in self._values:
            raise Malformed
        self._values[key] = value


def started_arguments(values: Mapping[str, object], begun: tuple[str, str] | None = None) -> str:
    """Return arguments as the beginning of JSON text, which may be continued.

    ``begun`` is the name of the next argument and the beginning of its text.
    """
    text = arguments_text(values)[:-1] if values else ""
    if begun is None:
        return text
    key, value = begun
    start = text + ", " if values else "{"
    return f"{start}{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)[:-1]}"
