"""Reading lines of a process's output with a time limit, without polling pipes, which Windows cannot do."""

from __future__ import annotations

import queue
import threading
from typing import IO

__all__ = ["Lines"]


class Lines:
    """Reads lines of a pipe on a thread, which takes over the pipe and ends with it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(pipe, self._lines), name="quire-lines", daemon=True).start()

    def next(self, seconds: float) -> bytes | None:
        """Return the next line, None at the end.  Raises TimeoutError if none comes in time."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            self._lines.put(None)  # further calls return None, too
        return line


def _read(pipe: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    try:
        with pipe:
            for line in pipe:
                lines.put(line)
    except (OSError, ValueError):
        pass  # the pipe was closed meanwhile
    finally:
        lines.put(None)
