"""Calls, and the interface of tool-call formats."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, Wait
from quire.chat.tools.schemas import ValueSchema

__all__ = [
    "NAME_RUN",
    "Call",
    "Kind",
    "Steps",
    "Text",
    "ToolFormat",
    "Tools",
    "Unfinished",
    "checked_name",
    "is_name",
    "marked_calls",
    "name_of",
    "pending",
    "stream",
]

NAME_RUN = re.compile(r"[^\s\x00-\x1f\x7f<>{}\[\]()\"'`|=,;\\\ud800-\udfff]*")
MAX_NAME_CHARACTERS = 128


@dataclass(frozen=True)
class Call:
    """A complete call.  ``arguments`` is the text of a JSON object; ``id`` is set if the wire format has one."""

    name: str
    arguments: str
    id: str | None = None


class Kind(Enum):
    """The kind of a part of the answer."""

    CONTENT = "content"
    REASONING = "reasoning"


@dataclass(frozen=True)
class Text:
    """A part of the answer that is text."""

    kind: Kind
    text: str


class Unfinished(CutOff):
    """A ``CutOff`` with calls: complete ones, and perhaps one with partial arguments."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self.calls = list(calls)


@contextmanager
def pending(calls: Sequence[Call]) -> Iterator[None]:
    """Inside this context, ``calls`` wait for their closing marks; they count if the answer is cut."""
    try:
        yield
    except CutOff as cut:
        more = cut.calls if isinstance(cut, Unfinished) else []
        raise Unfinished([*calls, *more]) from None


Steps: TypeAlias = Generator["Call | Text | None", None, None]
"""A format's reader: yields parts of the answer, and None while it needs more text."""


class Tools:
    """The tools that a model may call, with the schemas of their arguments."""

    def __init__(self, definitions: Sequence[Mapping[str, object]] | None = None) -> None:
        self._definitions = definitions or ()

    @cached_property
    def schemas(self) -> dict[str, ValueSchema]:
        """The schema of each tool's arguments, by the tool's name."""
        found: dict[str, ValueSchema] = {}
        for definition in self._definitions:
            function = definition.get("function", definition)
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                continue
            parameters = function.get("parameters", function.get("input_schema"))
            found[function["name"]] = ValueSchema(parameters, (parameters, function, definition))
        return found

    @cached_property
    def properties(self) -> dict[str, dict[str, ValueSchema]]:
        """The schemas of each argument, by the tool's name."""
        return {name: schema.members for name, schema in self.schemas.items()}


@dataclass(frozen=True)
class ToolFormat(ABC):
    """A wire format of tool calls.

    ``starts`` are texts at which a call, or something else that is not plain text, may begin; ``read`` continues after
    one.  ``begin`` parses the beginning of an answer if that decides what the answer is.  ``marks`` are further texts
    that may be control tokens of the vocabulary and must be visible.
    """

    name: str
    starts: tuple[str, ...]
    marks: tuple[str, ...] = ()
    frames_content: bool = False
    """True if plain answers have marks, too, so that the format parses text even without tools."""
    hints: tuple[tuple[str, ...], ...] = ()
    """Groups of texts: a chat template that writes no calls itself has all of one group."""
    syntaxes: tuple[CallSyntax, ...] = ()
    """The syntaxes of calls, for grammars; the first one whose hint is in a template counts."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        """Return a reader of the answer's beginning, or None."""
        return None

    @abstractmethod
    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        """Return a reader of the text after one of ``starts``."""

    def new_id(self) -> str | None:
        """Return an id for a call without one, in the form that templates require."""
        return None

    @property
    def visible(self) -> tuple[str, ...]:
        """Texts that must be visible if they are control tokens."""
        return self.starts + self.marks

    @property
    def closers(self) -> tuple[str, ...]:
        """Marks that end calls.  A superfluous one directly after a call is dropped."""
        return ()


def checked_name(name: object) -> str:
    """Return a tool's name.  Malformed if it cannot be one."""
    if not isinstance(name, str) or not is_name(name):
        raise Malformed
    return name


def is_name(text: str) -> bool:
    """Return whether a tool may have this name."""
    return 0 < len(text) <= MAX_NAME_CHARACTERS and NAME_RUN.fullmatch(text) is not None


def name_of(scan: Scanner) -> Wait[str]:
    """Take a tool's name."""
    return checked_name((yield from scan.run(NAME_RUN)))


def marked_calls(scan: Scanner, call: Callable[[Scanner], Wait[Call]], mark: str, section_end: str | None) -> Steps:
    """Read calls with a mark before each, after the first mark.  ``section_end`` ends all of them, if there is one."""
    while True:
        yield (yield from call(scan))
        yield from scan.space()
        if (yield from scan.optional(mark)) is None:
            if section_end is not None:
                yield from scan.end(section_end)
            return


def stream(scan: Scanner, kind: Kind, *ends: str) -> Generator[Text | None, None, str]:
    """Yield text up to the nearest of ``ends`` as it arrives; return the end, or an empty text at the end of all."""
    while True:
        part, end = scan.piece(ends)
        if part:
            yield Text(kind, part)
            scan.keep(end or "")  # the next text may show that it was not a mark
        if end is not None:
            return end
        if not part:
            yield None
