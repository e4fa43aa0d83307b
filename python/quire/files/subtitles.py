"""Write the segments of a transcript as subtitles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

__all__ = ["srt", "vtt"]


class Cue(Protocol):
    """A text and when it is said, in seconds."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def text(self) -> str: ...


def srt(cues: Iterable[Cue]) -> str:
    """Return cues as SubRip."""
    return "".join(
        f"{i}\n{_time(cue.start, ',')} --> {_time(cue.end, ',')}\n{_line(cue.text)}\n\n"
        for i, cue in enumerate(cues, 1)
    )


def vtt(cues: Iterable[Cue]) -> str:
    """Return cues as WebVTT."""
    shown = [f"{_time(cue.start, '.')} --> {_time(cue.end, '.')}\n{_line(cue.text)}\n\n" for cue in cues]
    return "".join(["WEBVTT\n\n", *shown])


def _line(text: str) -> str:
    """Return a cue's text: an empty line would end it, and an arrow would be read as a time."""
    return " ".join(text.split()).replace("-->", "->")


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    hours, minutes, rest = milliseconds // 3_600_000, milliseconds // 60_000 % 60, milliseconds % 60_000
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
