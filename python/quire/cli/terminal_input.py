"""Keyboard input: multi-line messages, pasted text as one message, history, and completion with Tab."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

from ..errors import UnsupportedError
from ..system import drop_input, input_waits

__all__ = ["Keyboard"]

PROMPT, MORE = "> ", "... "
QUOTES = '"""'
# Pasted lines arrive immediately after one another; nobody types a line this fast.
_PASTE_S = 0.02


class Keyboard:
    """Reads messages from standard input, whether or not it is a terminal."""

    def __init__(self, commands: Sequence[str], history: str | None = None) -> None:
        """Set up completion of ``commands`` and the history file, which ``close`` writes.

        UnsupportedError if there is a history file but Python has no readline.
        """
        self._is_terminal = sys.stdin.isatty()
        self._history = history
        self._readline = _readline()
        if self._readline is None:
            if history is not None:
                raise UnsupportedError("[chat] --history is unsupported: this Python has no readline module")
            return
        if history is not None and os.path.exists(history):
            self._readline.read_history_file(history)
        self._readline.set_completer_delims("")
        self._readline.set_completer(_Completer(commands))
        self._readline.parse_and_bind("tab: complete")

    def close(self) -> None:
        """Save the lines that were typed."""
        if self._history is not None and self._readline is not None:
            self._readline.set_history_length(1000)
            self._readline.write_history_file(self._history)

    def message(self, beginning: str = "") -> str:
        """Read the next message; ``beginning`` is already in the input line, ready to edit.

        EOFError at the end of input, KeyboardInterrupt for Ctrl-C.

        A message spans several lines after a backslash at the end of a line, between triple quotes, or if it is pasted.
        """
        lines = [self._line(PROMPT, beginning)]
        if lines[0].lstrip().startswith(QUOTES):
            return self._quoted(lines[0].lstrip()[len(QUOTES) :])
        while lines[-1].endswith("\\") or self._is_pasted():
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append(self._line(MORE))
        return "\n".join(lines)

    def word(self, question: str) -> str | None:
        """Ask a question and return the line that is typed after it; None if no person can answer.

        What was typed before the question is dropped: it was not an answer.
        """
        if not self._is_terminal:
            return None
        drop_input()
        try:
            return input(f"quire: {question}")
        except EOFError:
            return None

    def _quoted(self, first: str) -> str:
        lines = [first]
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(self._line(MORE))
        lines[-1] = lines[-1].rstrip()[: -len(QUOTES)]
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str, beginning: str = "") -> str:
        if not self._is_terminal:
            return input()
        if self._readline is None or not beginning:
            return input(prompt)
        readline = self._readline
        readline.set_startup_hook(lambda: readline.insert_text(beginning))
        try:
            return input(prompt)
        finally:
            readline.set_startup_hook(None)

    def _is_pasted(self) -> bool:
        """Return True if more lines arrived than a person can have typed."""
        return self._is_terminal and input_waits(_PASTE_S)


class _Completer:
    """Completes the commands that begin with the current input."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._commands = commands

    def __call__(self, text: str, state: int) -> str | None:
        fitting = [command for command in self._commands if text.startswith("/") and command.startswith(text)]
        return fitting[state] if state < len(fitting) else None


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline
