"""The frame around a structured text: free text before it, and marks of a wire format, which may be control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import UnsupportedError

__all__ = ["ANY_TOKENS", "Frame", "FrameWriter", "Mark", "frame_lark", "lark_string"]

ANY_TOKENS = "ANY_TOKENS"


@dataclass(frozen=True)
class Mark:
    """A text that a vocabulary may express, in whole or in part, by control tokens.

    ``before`` names what may precede its first occurrence: a terminal of the frame, ``ANY_TOKENS`` or None.
    """

    text: str
    before: str | None = None


@dataclass(frozen=True)
class Frame:
    """A Lark grammar in which the rules ``mark_0 ...`` stand for ``marks`` and ``@body`` for the structured text."""

    lark: str
    marks: tuple[Mark, ...] = ()


class FrameWriter:
    """Collects the rules and marks of a frame."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._marks: list[Mark] = []

    def rule(self, name: str, body: str) -> None:
        """Add a rule or a terminal."""
        self._lines.append(f"{name}: {body}")

    def mark(self, text: str, before: str | None = None) -> str:
        """Return the name of the rule for a mark, or an empty string for an empty mark with nothing before it."""
        if not text and before is None:
            return ""
        mark = Mark(text, before)
        if mark not in self._marks:
            self._marks.append(mark)
        return f"mark_{self._marks.index(mark)}"

    def free_text(self, name: str, without: tuple[str, ...] = (), prefix: str | None = None) -> None:
        """Add a terminal for non-empty text with none of the texts in it, not beginning with the regex ``prefix``."""
        body = "/(?s:.+)/"
        if without:
            body += f" & ~(/(?s:.*)/ ({' | '.join(map(lark_string, without))}) /(?s:.*)/)"
        if prefix is not None:
            body += f" & ~(/{prefix}/ /(?s:.*)/)"
        self.rule(name, body)

    def frame(self) -> Frame:
        """Return the frame."""
        return Frame("\n".join(self._lines) + "\n", tuple(self._marks))


class _Vocabulary(Protocol):
    @property
    def control_ids(self) -> dict[str, int]: ...
    @property
    def eog_ids(self) -> Sequence[int]: ...


def lark_string(text: str) -> str:
    """Quote a string for Lark."""
    return json.dumps(text, ensure_ascii=False)


def frame_lark(frame: Frame, vocabulary: _Vocabulary) -> str:
    """Return the frame as Lark for a vocabulary.  UnsupportedError if a mark would end the answer."""
    lines = [line for i, mark in enumerate(frame.marks) for line in _mark_rules(i, mark, vocabulary)]
    return frame.lark + "".join(f"{line}\n" for line in lines)


def _mark_rules(number: int, mark: Mark, vocabulary: _Vocabulary) -> list[str]:
    parts = _parts(mark.text, vocabulary.control_ids)
    ends = set(vocabulary.eog_ids)
    if not ends.isdisjoint(part for part in parts if isinstance(part, int)):
        raise UnsupportedError(f"[grammar] {mark.text!r:.80} ends an answer in this vocabulary")
    shown = [lark_string(part) if isinstance(part, str) else f"<[{part}]>" for part in parts]
    rule = f"mark_{number}: "
    if mark.before is None:
        return [rule + " ".join(shown)]
    first = parts[0]
    if isinstance(first, int):
        before = f"{mark.before}?"
        if mark.before == ANY_TOKENS:
            before = f"(/(?s:.+)/ | <[^{','.join(map(str, sorted({first, *ends})))}]>)*"
        return [rule + " ".join([before, *shown])]
    text = "/(?s:.+)/" if mark.before == ANY_TOKENS else mark.before
    return [f"before_{number}[lazy]: {text} {shown[0]} | {shown[0]}", rule + " ".join([f"before_{number}", *shown[1:]])]


def _parts(text: str, control_ids: dict[str, int]) -> list[int | str]:
    """Split a text into the ids of control tokens and the text between them."""
    if text in control_ids:
        return [control_ids[text]]
    # A name without brackets may be any word, so it is not a mark by itself.
    marks = (name for name in control_ids if name.startswith(("<", "[", "]")) and name in text)
    names = sorted(marks, key=len, reverse=True)
    if not names:
        return [text]
    pieces = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
    return [control_ids.get(piece, piece) if i % 2 else piece for i, piece in enumerate(pieces) if piece]
