"""Text that is piped to a command in addition to its arguments: ``cat a.txt | quire run MODEL "Summarize this"``."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

from .text import note

__all__ = ["beside_prompt", "joined_with"]

# If the parent process holds the pipe too, it may be the parent's own input, or have a writer that never writes.
_PATIENCE_S = 3.0
_PATIENCE_OF_UNKNOWN_S = 30.0  # if the system does not tell who holds the pipe
_TOLD_AFTER_S = 1.0


def beside_prompt() -> bytes:
    """Read standard input for a command that already has a prompt; empty if nothing was piped.

    A pipeline is read to its end, however long that takes.  A pipe that may have no writer gets a few seconds.
    A file that another process is reading (``while read line``) is left alone.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError, AttributeError):  # not a stream of the operating system
        with suppress(OSError, AttributeError):
            return sys.stdin.buffer.read()
        return b""
    if stat.S_ISREG(mode):
        return b"" if os.lseek(number, 0, os.SEEK_CUR) > 0 else sys.stdin.buffer.read()
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return b""
    held = True if stat.S_ISSOCK(mode) else _parent_holds(number)
    patience_s = _PATIENCE_S if held else _PATIENCE_OF_UNKNOWN_S if held is None else None
    return sys.stdin.buffer.read() if _begins(number, patience_s) else b""


def joined_with(piped: bytes, prompt: bytes) -> bytes:
    """Join the piped text and the prompt, which comes last."""
    return b"\n\n".join((piped.rstrip(b"\n"), prompt)) if piped.strip() else prompt


def _begins(number: int, patience_s: float | None) -> bool:
    """Wait for data or the end of input; False if ``patience_s`` passes first."""
    if sys.platform == "win32":  # select does not support pipes there
        return True
    begun_s, told = time.monotonic(), False
    while True:
        if select.select([number], [], [], 0.1)[0]:
            return True
        waited_s = time.monotonic() - begun_s
        if patience_s is not None and waited_s >= patience_s:
            note("no input on standard input: answering the prompt alone (avoid the wait with < /dev/null)")
            return False
        if not told and waited_s >= _TOLD_AFTER_S:
            note("waiting for the end of standard input, which is part of the prompt")
            told = True


def _parent_holds(number: int) -> bool | None:
    """Return whether the parent process holds the pipe open itself; None if unknown.

    A shell closes its own ends of the pipes in a pipeline.
    """
    try:
        own = os.readlink(f"/proc/self/fd/{number}")
        theirs = Path(f"/proc/{os.getppid()}/fd")
        return any(os.readlink(each) == own for each in theirs.iterdir())
    except OSError:
        return None
