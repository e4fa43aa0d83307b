"""Tool calls as formats find them, and those that are JSON objects."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from quire.chat.tools.scanner import Malformed, Scanner, Wait, strict_json

__all__ = [
    "Call",
    "JsonKeys",
    "Kind",
    "Steps",
    "Text",
    "ToolFormat",
    "Tools",
    "call_of_json",
    "checked_name",
    "items",
    "json_list",
    "marked_calls",
    "members",
    "name_of",
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


Steps: TypeAlias = Generator["Call | Text | None", None, None]
"""What a format makes of a scanner: parts of the answer, and None where it needs more text."""


class Tools:
    """The tools that a model may call: their names, and the schemas of their arguments."""

    def __init__(self, definitions: Sequence[Mapping[str, object]] | None = None) -> None:
        self._definitions = definitions or ()

    @cached_property
    def properties(self) -> dict[str, dict[str, object]]:
        """Name of a tool to its arguments' schemas; what is no schema is left out."""
        found: dict[str, dict[str, object]] = {}
        for definition in self._definitions:
            function = definition.get("function", definition)
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                continue
            parameters = function.get("parameters", function.get("input_schema"))
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            found[function["name"]] = dict(properties) if isinstance(properties, Mapping) else {}
        return found


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


@dataclass(frozen=True)
class JsonKeys:
    """The names that a call's parts go by in JSON objects."""

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id", "tool_call_id")

    def of_call(self, key: str) -> bool:
        """Whether a member that is called so holds nothing that a call without arguments would lose."""
        return key in (*self.name, *self.id, "id", "tool_call_id", "index", "type", "function")


KEYS = JsonKeys()


def checked_name(name: object) -> str:
    """A tool's name.  Raises Malformed for what cannot be one."""
    if not isinstance(name, str) or not _is_name(name):
        raise Malformed
    return name


def _is_name(text: str) -> bool:
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


def checked_arguments(raw: str) -> str:
    """Arguments as the text of a JSON object.  A JSON string that holds one counts too.  Raises Malformed."""
    value = strict_json(raw)
    if isinstance(value, str):
        raw, value = value, strict_json(value)
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise Malformed
    return raw.strip()


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def members(raw: str) -> dict[str, str]:
    """The members of a valid JSON object, values as they are written.  Raises Malformed for one that is there twice."""
    found: dict[str, str] = {}
    at = _skip(raw, raw.index("{") + 1)
    while raw[at] != "}":
        key, at = _DECODER.raw_decode(raw, at)
        start = _skip(raw, _skip(raw, at) + 1)
        _, at = _DECODER.raw_decode(raw, start)
        if key in found:
            raise Malformed
        found[key] = raw[start:at]
        at = _skip(raw, at)
        if raw[at] == ",":
            at = _skip(raw, at + 1)
    return found


def items(raw: str) -> list[str]:
    """The items of a valid JSON array, as they are written."""
    found = []
    at = _skip(raw, raw.index("[") + 1)
    while raw[at] != "]":
        _, end = _DECODER.raw_decode(raw, at)
        found.append(raw[at:end])
        at = _skip(raw, end)
        if raw[at] == ",":
            at = _skip(raw, at + 1)
    return found


def _skip(raw: str, at: int) -> int:
    match = _SPACE.match(raw, at)
    return at if match is None else match.end()


def call_of_json(raw: str, keys: JsonKeys = KEYS, bare: bool = False) -> Call:
    """The call that a JSON object is; ``{"function": {...}}`` counts too.  Raises Malformed.

    ``bare``: the object stands for itself, without marks, so it must have arguments to be a call.
    """
    if not raw.lstrip().startswith("{"):
        raise Malformed
    parts = members(raw)
    inner = parts.get("function", "")
    if inner.startswith("{"):
        parts = {**parts, **members(inner)}
    name = next((parts[key] for key in keys.name if key in parts), "null")
    arguments = next((parts[key] for key in keys.arguments if key in parts), None)
    if arguments is None and (bare or not all(map(keys.of_call, parts))):
        raise Malformed  # arguments under another name would be lost
    id = next((strict_json(parts[key]) for key in keys.id if key in parts), None)
    return Call(
        checked_name(strict_json(name)),
        "{}" if arguments is None else checked_arguments(arguments),
        id if isinstance(id, str) and _is_name(id) else None,
    )


def json_list(scan: Scanner, keys: JsonKeys = KEYS) -> Wait[list[Call]]:
    """The calls of a JSON array of objects, or of one object: all or none."""
    raw = yield from scan.json()
    calls = [call_of_json(item, keys) for item in items(raw)] if raw.startswith("[") else [call_of_json(raw, keys)]
    if not calls:
        raise Malformed
    return calls


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
