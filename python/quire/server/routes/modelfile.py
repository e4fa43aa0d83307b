"""Ollama's Modelfile: what a model's name stands for, as text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from ..failures import ApiError, brief

__all__ = ["Modelfile", "read_modelfile"]

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)[ \t]+(?:\"\"\"(.*?)\"\"\"|([^\n]*))[ \t]*(?:\n|$)", re.DOTALL)
_REFUSED: dict[str, Literal["template", "message"]] = {"TEMPLATE": "template", "MESSAGE": "message"}


@dataclass
class Modelfile:
    """FROM, SYSTEM, PARAMETERs and ADAPTERs."""

    model: str | None = None
    system: str | None = None
    parameters: list[tuple[str, Any]] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)


def read_modelfile(text: str) -> Modelfile:
    """ApiError for what else it says, but for a licence."""
    read = Modelfile()
    text = re.sub(r"^\s*#[^\n]*\n?", "", text, flags=re.MULTILINE)
    at = 0
    while text[at:].strip():
        found = _INSTRUCTION.match(text, at)
        if found is None:
            text_ = f"a Modelfile must have lines INSTRUCTION arguments but has {brief(text[at : at + 40])}"
            raise ApiError(400, "invalid_value", text_, "modelfile")
        at = found.end()
        word, value = found[1].upper(), (found[2] if found[2] is not None else found[3]).strip()
        if word == "FROM":
            read.model = value
        elif word == "SYSTEM":
            read.system = value.strip('"') if found[2] is None else value
        elif word == "PARAMETER":
            key, _, given = value.partition(" ")
            read.parameters.append((key, _number(given.strip().strip('"'))))
        elif word == "ADAPTER":
            read.adapters.append(value)
        elif word in _REFUSED:
            text_ = f"a Modelfile must be without {word}: the {_REFUSED[word]} of a model is its file's own"
            raise ApiError(400, "unsupported_parameter", text_, _REFUSED[word])
        elif word not in ("LICENSE", "REQUIRES"):
            raise ApiError(400, "invalid_value", f"a Modelfile must have known instructions but has {brief(word)}")
    return read


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
