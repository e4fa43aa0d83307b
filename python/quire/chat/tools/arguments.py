"""Arguments that come one by one, each as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from quire.chat.tools.calls import Call, Tools, Unfinished
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, Wait
from quire.chat.tools.values import arguments_text, is_text, typed_value

__all__ = ["ArgumentList", "started_arguments"]


class ArgumentList:
    """The arguments of a call so far; their types are those of the tool's schema."""

    def __init__(self, tools: Tools, name: str) -> None:
        self.name = name
        self.schemas = tools.properties.get(name, {})
        self._values: dict[str, object] = {}

    @property
    def call(self) -> Call:
        """The call, once all is there."""
        return Call(self.name, arguments_text(self._values))

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Within it, what there is of the call counts if the answer is cut."""
        try:
            yield
        except Unfinished:
            raise
        except CutOff:
            raise Unfinished([Call(self.name, started_arguments(self._values))]) from None

    def take(self, scan: Scanner, key: str, end: str, as_text: bool | None = None, lines: bool = False) -> Wait[None]:
        """Take the value of an argument, and ``end`` behind it.

        ``as_text``: what the wire says of its type, where it does.  ``lines``: a line end on either side is not a part
        of it.
        """
        text = yield from self.text(scan, key, end, as_text, lines)
        self.add(key, typed_value(text, self.schemas.get(key), as_text))

    def text(self, scan: Scanner, key: str, end: str, as_text: bool | None = None, lines: bool = False) -> Wait[str]:
        """Take the text of an argument, and ``end`` behind it."""
        try:
            text, found = yield from scan.until(end)
        except CutOff as cut:
            begun = _stripped(cut.text) if lines else cut.text
            known = (key, begun) if is_text(self.schemas.get(key), as_text) else None
            raise Unfinished([Call(self.name, started_arguments(self._values, known))]) from None
        if not found:
            raise Malformed
        return _stripped(text) if lines else text

    def add(self, key: str, value: object) -> None:
        """One that is there.  Raises Malformed for a second one of its name."""
        if key in self._values:
            raise Malformed
        self._values[key] = value


def started_arguments(values: Mapping[str, object], begun: tuple[str, str] | None = None) -> str:
    """Arguments as the beginning of JSON text, which more of them may follow.  ``begun``: the name of the next one, and
    the beginning of its text."""
    text = arguments_text(values)[:-1] if values else ""
    if begun is None:
        return text
    key, value = begun
    start = text + ", " if values else "{"
    return f"{start}{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)[:-1]}"


def _stripped(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")
