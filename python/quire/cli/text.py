"""Text for people: notes, sizes, and strings from files that may contain anything."""

from __future__ import annotations

import shutil
import sys
import unicodedata

__all__ = ["Writer", "note", "one_line", "size_text"]

# Control characters, which a terminal would obey; newline and tab are harmless.
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def note(text: str) -> None:
    """Print a one-line remark on standard error, apart from the command's output."""
    print(f"quire: {text}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """Escape every character of ``text`` that is not printable."""
    shown = (letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return "".join(shown)


def size_text(size_bytes: int) -> str:
    """Format a size, such as ``"7.6 MiB"``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


class Writer:
    """Writes a model's text to standard output as it arrives; on a terminal, without control characters."""

    def __init__(self, *, wrap: bool = False) -> None:
        """Create a writer; ``wrap`` breaks lines between words on a terminal, except in code."""
        self._is_terminal = sys.stdout.isatty()
        self._at_line_start = True
        width = shutil.get_terminal_size().columns if wrap and self._is_terminal else 0
        self._wrap = _Wrap(width) if width >= NARROWEST else None

    def write(self, text: str) -> None:
        if not text:
            return
        if self._is_terminal:
            text = text.translate(_CONTROLS)
        self._at_line_start = text.endswith("\n")
        self._put(text if self._wrap is None else self._wrap.add(text))

    def end_line(self) -> None:
        """Write a newline unless the text ended with one."""
        if self._wrap is not None:
            self._put(self._wrap.rest())
        if not self._at_line_start:
            self.write("\n")

    def _put(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


NARROWEST = 20


class _Wrap:
    """Wraps text between words as it arrives: a word is held back until it is complete."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._word = ""
        self._line_start = ""  # first characters of the line, to recognize a code fence
        self._in_code = False

    def add(self, text: str) -> str:
        return "".join(map(self._character, text))

    def rest(self) -> str:
        """Return the word that is held back."""
        word, self._word = self._word, ""
        broken = "\n" if self._column + _columns(word) > self._width and not self._in_code and self._column else ""
        self._column = (0 if broken else self._column) + _columns(word)
        return broken + word

    def _character(self, letter: str) -> str:
        if len(self._line_start) < 3 and letter != "\n":
            self._line_start += letter
            if self._line_start == "```":
                self._in_code = not self._in_code
        if letter not in " \n":
            self._word += letter
            # A word longer than a line is not held back: the terminal breaks it.
            return self.rest() if _columns(self._word) >= self._width else ""
        written = self.rest()
        if letter == "\n":
            self._column, self._line_start = 0, ""
            return written + letter
        self._column += 1
        if self._column >= self._width and not self._in_code:
            self._column = 0
            return written + "\n"
        return written + letter


def _columns(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    return sum(
        2 if unicodedata.east_asian_width(letter) in "WF" else not unicodedata.combining(letter) for letter in text
    )
