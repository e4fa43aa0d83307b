"""Parse Ollama's Modelfile, the text definition of a named model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import LoadError, UnsupportedError
from ..failures import ApiError, brief

__all__ = ["Modelfile", "read_modelfile", "translated_template"]

_INSTRUCTION = re.compile(r"([A-Za-z]+)[ \t]+(.*)")
_QUOTES = '"""'
_REFUSED: dict[str, tuple[Literal["template", "message"], str]] = {
    "MESSAGE": ("message", "put examples into SYSTEM, or send them with each chat"),
}
# Instructions without effect here: Quire takes the format from the model's file, not from Ollama's built-in ones.
_WITHOUT_MEANING = ("LICENSE", "REQUIRES", "RENDERER", "PARSER")
# Parameters of Ollama that the model's file, the server or the machine decides here.
_WITHOUT_EFFECT = {
    "num_keep", "penalize_newline", "use_mmap", "use_mlock", "numa", "low_vram", "f16_kv", "num_gqa",
    "rope_frequency_base", "rope_frequency_scale", "embedding_only",
}  # fmt: skip


@dataclass
class Modelfile:
    """FROM, SYSTEM, TEMPLATE, PARAMETERs and ADAPTERs, and the PARAMETERs that are ignored."""

    model: str | None = None
    system: str | None = None
    template: str | None = None  # in Jinja
    parameters: list[tuple[str, Any]] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # names of parameters without effect


def read_modelfile(text: str) -> Modelfile:
    """Parse a Modelfile, in time linear in its length.

    Raises:
        ApiError: It has an unknown or unsupported instruction.
    """
    read = Modelfile()
    for word, value in _instructions(text):
        if word == "FROM":
            read.model = value
        elif word == "SYSTEM":
            read.system = value
        elif word == "TEMPLATE":
            read.template = translated_template(value)
        elif word == "PARAMETER":
            key, _, given = value.replace("\t", " ", 1).partition(" ")
            if key in _WITHOUT_EFFECT:
                read.ignored.append(key)
            else:
                read.parameters.append((key, _number(given.strip().strip('"'))))
        elif word == "ADAPTER":
            read.adapters.append(value)
        elif word in _REFUSED:
            name, advice = _REFUSED[word]
            raise ApiError(400, "unsupported_parameter", f"{word} of a Modelfile is not supported: {advice}", name)
        elif word not in _WITHOUT_MEANING:
            raise ApiError(400, "invalid_value", f"unknown instruction {brief(word)} in a Modelfile", "modelfile")
    return read


def translated_template(source: str) -> str:
    """Return a template of Go's language, or of Jinja, in Jinja."""
    from ...chat import ChatTemplate  # late: the listener does without Jinja
    from ...chat.go_template import jinja_of

    try:
        made = source if "{%" in source else jinja_of(source)
        ChatTemplate(made)
        return made
    except (LoadError, UnsupportedError) as error:
        raise ApiError(400, "unsupported_parameter", f"TEMPLATE of a Modelfile: {error}", "template") from None


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield instructions in capitals with their arguments.  Arguments in quotes may span several lines."""
    lines = iter(text.splitlines())
    for untrimmed in lines:
        line = untrimmed.strip()
        if not line or line.startswith("#"):
            continue
        found = _INSTRUCTION.fullmatch(line)
        if found is None:
            text_ = f"expected an INSTRUCTION with arguments in a Modelfile, not {brief(line)}"
            raise ApiError(400, "invalid_value", text_, "modelfile")
        value = found[2].strip()
        for quotes in (_QUOTES, '"'):
            if value.startswith(quotes):
                value = _quoted(quotes, value[len(quotes) :], lines)
                break
        yield found[1].upper(), value


def _quoted(quotes: str, first: str, lines: Iterator[str]) -> str:
    """Return the text up to the closing quotes, given the rest of the first line.  A single quote ends its line."""
    parts, line = [], first
    while True:
        before, found, rest = line.partition(quotes) if quotes == _QUOTES else line.rstrip().rpartition(quotes)
        if found and (quotes == _QUOTES or not rest):
            break
        parts.append(line)
        following = next(lines, None)
        if following is None:
            raise ApiError(400, "invalid_value", f"{quotes} in a Modelfile is not closed", "modelfile")
        line = following
    if rest.strip():
        text = f"a line of a Modelfile has more after its closing quotes: {brief(rest.strip())}"
        raise ApiError(400, "invalid_value", text, "modelfile")
    return "\n".join([*parts, before]).strip()


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
