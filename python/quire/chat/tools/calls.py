"""Tool calls as formats find them."""

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
    """A complete call.  ``arguments``: the text of a JSON object.  ``id``: where the wire format has one."""

    name: str
    arguments: str
    id: str | None = None


class Kind(Enum):
    """What a part of the answer is."""

    CONTENT = "content"
    REASONING = "reasoning"


@dataclass(frozen=True)
class Text:
    """A part of the answer that is text."""

    kind: Kind
    text: str


class Unfinished(CutOff):
    """``CutOff`` with what there is of calls: complete ones, and perhaps one whose arguments are a beginning."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self.calls = list(calls)


@contextmanager
def pending(calls: Sequence[Call]) -> Iterator[None]:
    """Within it, ``calls`` are there but not given yet, because marks must follow: they count if the answer is cut."""
    try:
        yield
    except CutOff as cut:
        more = cut.calls if isinstance(cut, Unfinished) else []
        raise Unfinished([*calls, *more]) from None


Steps: TypeAlias = Generator["Call | Text | None", None, None]
"""What a format makes of a scanner: parts of the answer, and None where it needs more text."""


class Tools:
    """The tools that a model may call: their names, and the schemas of their arguments."""

    def __init__(self, definitions: Sequence[Mapping[str, object]] | None = None) -> None:
        self._definitions = definitions or ()

    @cached_property
    def schemas(self) -> dict[str, ValueSchema]:
        """Name of a tool to the schema of its arguments."""
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
        """Name of a tool to its arguments' schemas."""
        return {name: schema.members for name, schema in self.schemas.items()}


@dataclass(frozen=True)
class ToolFormat(ABC):
    """A wire format of tool calls.

    ``starts``: where a call, or something else that is no plain text, may begin; ``read`` goes on behind one.
    ``begin`` reads the beginning of an answer where that alone says what it is.  ``marks``: further texts that may be
    control tokens of the vocabulary and must be visible.
    """

    name: str
    starts: tuple[str, ...]
    marks: tuple[str, ...] = ()
    frames_content: bool = False
    """Whether plain answers have marks, too, so that text is read by the format even where there are no tools."""
    hints: tuple[tuple[str, ...], ...] = ()
    """Groups of texts: a chat template that writes no calls itself has all of one group."""
    syntaxes: tuple[CallSyntax, ...] = ()
    """How calls are written, for grammars; the first whose hint a template has counts."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        """A reader of the answer's beginning, or None."""
        return None

    @abstractmethod
    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        """A reader of what comes behind one of ``starts``."""

    def new_id(self) -> str | None:
        """An id for a call which has none on the wire, where templates want a certain form."""
        return None

    @property
    def visible(self) -> tuple[str, ...]:
        """Texts that must be visible where they are control tokens."""
        return self.starts + self.marks

    @property
    def closers(self) -> tuple[str, ...]:
        """Marks that end calls: one too many, directly behind a call, means nothing."""
        return ()


def checked_name(name: object) -> str:
    """A tool's name.  Raises Malformed for what cannot be one."""
    if not isinstance(name, str) or not is_name(name):
        raise Malformed
    return name


def is_name(text: str) -> bool:
    """Whether a tool may be called so."""
    return 0 < len(text) <= MAX_NAME_CHARACTERS and NAME_RUN.fullmatch(text) is not None


def name_of(scan: Scanner) -> Wait[str]:
    """Take a tool's name."""
    return checked_name((yield from scan.run(NAME_RUN)))


def marked_calls(scan: Scanner, call: Callable[[Scanner], Wait[Call]], mark: str, section_end: str | None) -> Steps:
    """Calls with a mark before each, behind the first one's; ``section_end``: what ends them all, if anything does."""
    while True:
        yield (yield from call(scan))
        yield from scan.space()
        if (yield from scan.optional(mark)) is None:
            if section_end is not None:
                yield from scan.end(section_end)
            return


def stream(scan: Scanner, kind: Kind, *ends: str) -> Generator[Text | None, None, str]:
    """Text up to the nearest of ``ends``, as it comes; returns the end, empty for the end of all."""
    while True:
        part, end = scan.piece(ends)
        if part:
            yield Text(kind, part)
            scan.keep(end or "")  # what follows may show that it was no mark
        if end is not None:
            return end
        if not part:
            yield None
