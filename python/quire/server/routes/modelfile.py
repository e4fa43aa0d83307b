"""Ollama's Modelfile: what a model's name stands for, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ..failures import ApiError, brief

__all__ = ["Modelfile", "read_modelfile"]

_INSTRUCTION = re.compile(r"([A-Za-z]+)[ \t]+(.*)")
_QUOTES = '"""'
_REFUSED: dict[str, Literal["template", "message"]] = {"TEMPLATE": "template", "MESSAGE": "message"}


@dataclass
class Modelfile:
    """FROM, SYSTEM, PARAMETERs and ADAPTERs."""

    model: str | None = None
    system: str | None = None
    parameters: list[tuple[str, Any]] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)


def read_modelfile(text: str) -> Modelfile:
    """Read a Modelfile, in time linear in its length.

    Raises:
        ApiError: It says something else, other than a licence.
    """
    read = Modelfile()
    for word, value in _instructions(text):
        if word == "FROM":
            read.model = value
        elif word == "SYSTEM":
            read.system = value
        elif word == "PARAMETER":
            key, _, given = value.replace("\t", " ", 1).partition(" ")
            read.parameters.append((key, _number(given.strip().strip('"'))))
        elif word == "ADAPTER":
            read.adapters.append(value)
        elif word in _REFUSED:
            text_ = f"{word} of a Modelfile is not supported: the {_REFUSED[word]} of a model is its file's own"
            raise ApiError(400, "unsupported_parameter", text_, _REFUSED[word])
        elif word not in ("LICENSE", "REQUIRES"):
            raise ApiError(400, "invalid_value", f"unknown instruction {brief(word)} in a Modelfile", "modelfile")
    return read


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Instructions in capitals, with what follows them; a value in three quotes may have several lines."""
    lines = iter(text.splitlines())
    for untrimmed in lines:
        line = untrimmed.strip()
        if not line or line.startswith("#"):
            continue
        found = _INSTRUCTION.fullmatch(line)
        if found is None:
            text_ = f"a line of a Modelfile is no INSTRUCTION with arguments: {brief(line)}"
            raise ApiError(400, "invalid_value", text_, "modelfile")
        value = found[2].strip()
        if value.startswith(_QUOTES):
            value = _quoted(value[len(_QUOTES) :], lines)
        elif len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        yield found[1].upper(), value


def _quoted(first: str, lines: Iterator[str]) -> str:
    """The text up to the closing quotes, which begins on a line already taken."""
    parts, line = [], first
    while _QUOTES not in line:
        parts.append(line)
        following = next(lines, None)
        if following is None:
            raise ApiError(400, "invalid_value", f"{_QUOTES} in a Modelfile is not closed", "modelfile")
        line = following
    last, _, rest = line.partition(_QUOTES)
    if rest.strip():
        text = f"a line of a Modelfile has more after its closing quotes: {brief(rest.strip())}"
        raise ApiError(400, "invalid_value", text, "modelfile")
    return "\n".join([*parts, last]).strip()


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
