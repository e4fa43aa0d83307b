"""Lines of a process's output with a time limit, on every system: nothing but sockets can be waited for on Windows."""

from __future__ import annotations

import queue
import threading
from typing import IO

__all__ = ["Lines"]


class Lines:
    """Lines of a pipe, which a thread reads.  It ends with the pipe, which is its own from now on."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(pipe, self._lines), name="quire-lines", daemon=True).start()

    def next(self, seconds: float) -> bytes | None:
        """The next line; None at the end.  TimeoutError where none came in time."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            self._lines.put(None)  # the end stays the end
        return line


def _read(pipe: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    try:
        with pipe:
            for line in pipe:
                lines.put(line)
    except (OSError, ValueError):
        pass  # it was closed meanwhile
    finally:
        lines.put(None)
