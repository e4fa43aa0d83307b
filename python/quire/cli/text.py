"""Text for people: notes, sizes, and strings of files that may hold anything."""

from __future__ import annotations

import sys

__all__ = ["Writer", "note", "one_line", "size_text"]

# What a terminal obeys instead of showing it: all control characters but the two that only move on.
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def note(text: str) -> None:
    """A remark, which is no part of the answer: one line on standard error."""
    print(f"quire: {text}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """``text`` with everything that is not shown as itself written as an escape."""
    shown = (letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return "".join(shown)


def size_text(size_bytes: int) -> str:
    """``"7.6 MiB"``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


class Writer:
    """Writes a model's text to standard output as it comes; to a terminal without control characters."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._at_line_start = True

    def write(self, text: str) -> None:
        if not text:
            return
        sys.stdout.write(text.translate(_CONTROLS) if self._is_terminal else text)
        sys.stdout.flush()
        self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """End the line, unless the text did."""
        if not self._at_line_start:
            self.write("\n")
