"""Files of sessions and slots below ``--slot-save-path``, in a folder for each caller."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import LoadError, QuireError
from ...files.histories import MOST_BYTES, decode, encode
from ...files.whole_file import WholeFile
from ..failures import ApiError

if TYPE_CHECKING:
    from .caller import Caller

__all__ = ["SavedHistories"]

MOST_FILES = 1000  # for one caller
# One part of a path, which names no device on Windows either.
_NAME = re.compile(
    r"(?!(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$))[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(?<!\.)", re.IGNORECASE
)


class SavedHistories:
    """Blocking; used on threads.  Clients name files, never paths."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, caller: Caller, name: str, history: dict[str, Any]) -> int:
        """Write a history and return its size.  ApiError 400 for a bad name, 413 for too many files, 507 on failure."""
        path = self._path(caller, name)
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            if not path.exists() and sum(1 for _ in path.parent.iterdir()) >= MOST_FILES:
                raise ApiError(413, "too_many_files", f"there are {MOST_FILES} saved files already")
            data = encode(history)
            with WholeFile(path, "session", len(data)) as file:
                file.write(data)
        except (OSError, QuireError) as error:
            raise ApiError(
                507, "not_stored", "the server cannot write the file: its disk is full or read-only"
            ) from error
        return len(data)

    def load(self, caller: Caller, name: str, check: Callable[[dict[str, Any]], bool]) -> tuple[dict[str, Any], int]:
        """Return the history in a file, and the file's size.

        ApiError 404 if there is none, 400 for a file that is damaged or that ``check`` rejects.
        """
        try:
            # No link leads out of the folder, and nothing but a file is opened.
            flags = (
                os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            )
            descriptor = os.open(self._path(caller, name), flags)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise FileNotFoundError
                data = file.read(MOST_BYTES + 1)
        except OSError:
            raise ApiError(404, "file_not_found", f"no saved file {name!r:.80}", "filename") from None
        try:
            history = decode(data, "the file")
        except LoadError as error:
            raise ApiError(400, "damaged_file", str(error).partition("] ")[2], "filename") from None
        if not check(history):
            raise ApiError(400, "other_file", "the file is of another kind, or of another model", "filename")
        return history, len(data)

    def blocks_path(self, caller: Caller, name: str) -> str:
        """Return where the blocks of a saved history are, which has this name.  No client can name this file."""
        path = self._path(caller, name)
        return str(path.parent.resolve() / ".blocks" / f"{path.name}.kv")

    def _path(self, caller: Caller, name: str) -> Path:
        if not _NAME.fullmatch(name):
            text = f"invalid filename {name!r:.40}: use letters, digits, '.', '_' and '-', 128 at most"
            raise ApiError(400, "invalid_filename", text, "filename")
        return self._folder / (caller.name or "everybody") / name
