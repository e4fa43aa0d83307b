"""Parse calls in Python's notation, whole or partial."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from quire.chat.tools.literals import LiteralReader
from quire.chat.tools.scanner import Malformed
from quire.chat.tools.value_ends import GoesOn

__all__ = ["Beginning", "CallReader", "beginning", "python_calls"]


def python_calls(text: str, tools: Mapping[str, Collection[str]] | None = None) -> list[tuple[str, dict[str, object]]]:
    """Return the (name, arguments) pairs of ``[f(a=1), g()]`` or of one call.

    ``tools`` has the argument names of each tool.  Raises Malformed, or GoesOn if more text may complete it.
    """
    calls = CallReader(text, tools)
    calls.read()
    return calls.found


class CallReader:
    """A parser of calls in Python's notation."""

    def __init__(self, text: str, tools: Mapping[str, Collection[str]] | None = None) -> None:
        """Create a parser.  ``tools`` has the argument names of each tool."""
        self.found: list[tuple[str, dict[str, object]]] = []
        self._tools = tools or {}
        self._reader = LiteralReader(text, in_call=True)
        self._open: tuple[str, dict[str, object]] | None = None

    def read(self) -> None:
        """Parse the whole text.  Raises Malformed, or GoesOn if more text may complete it.

        Some templates, and so their models, write strings between quotes without escapes.
        """
        try:
            self._read()
        except Malformed:
            raw = CallReader(self._reader.text, self._tools)
            raw._reader.raw = True
            try:
                raw._read()
                if not raw._reader.n_raw:
                    raise Malformed
            except Malformed:
                if self._reader.is_at_end:
                    raise GoesOn from None
                raise
            self.found, self._open = raw.found, None

    def _read(self) -> None:
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
        """Parse a text that may continue; return the call that it ends in.  Malformed if no call begins like this."""
        try:
            self.read()
        except Malformed:
            _check_end(self._reader)
            return None if self._open is None else beginning(self._reader, *self._open)
        return None

    def _call(self) -> None:
        reader = self._reader
        name = reader.function()
        reader.must("(")
        reader.names = self._tools.get(name.removesuffix(".call"), ())
        arguments: dict[str, object] = {}
        self._open = (name, arguments)
        reader.members(arguments, "=", ")")
        self._open = None
        self.found.append((name, arguments))


@dataclass(frozen=True)
class Beginning:
    """A partial call: its complete arguments and, if the next one is text, its key and beginning."""

    name: str
    arguments: dict[str, object]
    begun: tuple[str, str] | None


def beginning(reader: LiteralReader, name: str, arguments: dict[str, object]) -> Beginning:
    """Return the call in which a parser's text ended.  Malformed if there is text left."""
    _check_end(reader)
    if reader.begun is None:
        return Beginning(name, arguments, None)
    key, at = reader.begun
    return Beginning(name, arguments, None if (text := _begun_string(reader, at)) is None else (key, text))


def _check_end(reader: LiteralReader) -> None:
    if not reader.is_at_end:
        raise Malformed


def _begun_string(reader: LiteralReader, at: int) -> str | None:
    """Return the beginning of the string at a place, whose last escape may be cut."""
    text = reader.text[at:]
    if reader.string_mark is not None and not text.startswith(("'", '"')):
        parts = text.split(reader.string_mark)
        return parts[1] if len(parts) > 1 and not parts[0] else None
    for n in range(len(text), max(0, len(text) - 12), -1):
        try:
            return LiteralReader(text[:n] + text[0]).string()
        except Malformed:
            continue
    return None
