"""Ollama's Modelfile: what a model's name stands for, as text."""

from __future__ import annotations

import re
from typing import Any, Literal

from ..failures import ApiError, brief

__all__ = ["read_modelfile"]

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)[ \t]+(?:\"\"\"(.*?)\"\"\"|([^\n]*))[ \t]*(?:\n|$)", re.DOTALL)
_REFUSED: dict[str, Literal["template", "adapter", "message"]] = {
    "TEMPLATE": "template", "ADAPTER": "adapter", "MESSAGE": "message",
}  # fmt: skip


def read_modelfile(text: str) -> tuple[str | None, str | None, list[tuple[str, Any]]]:
    """FROM, SYSTEM and PARAMETERs of a Modelfile; ApiError for what else it says, but for a licence."""
    model = system = None
    parameters: list[tuple[str, Any]] = []
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
            model = value
        elif word == "SYSTEM":
            system = value.strip('"') if found[2] is None else value
        elif word == "PARAMETER":
            key, _, given = value.partition(" ")
            parameters.append((key, _number(given.strip().strip('"'))))
        elif word in _REFUSED:
            text_ = f"a Modelfile must be without {word}: the {_REFUSED[word]} of a model is its file's own"
            raise ApiError(400, "unsupported_parameter", text_, _REFUSED[word])
        elif word not in ("LICENSE", "REQUIRES"):
            raise ApiError(400, "invalid_value", f"a Modelfile must have known instructions but has {brief(word)}")
    return model, system, parameters


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
