"""Atomic file writing: files are written next to their target, flushed to the disk, and renamed.

The leftovers of a killed process are removed by the next one that writes to the same target.  A writer holds a lock on
its file, which the system releases when the process ends in any way.  Without such locks (on Windows and some network
file systems) nothing is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ..errors import CapacityError
from ..system import give_usual_mode, sync_folder, try_lock

__all__ = ["WholeFile", "check_replaceable"]

_SUFFIX = ".part"


class WholeFile:
    """A file that is written atomically: leaving ``with`` commits it, or discards it after an error.

    Args:
        path: The target.
        place: The place in brackets for error messages.
        n_bytes: The size of the data, if known.

    Raises:
        OSError: The folder cannot be written to, or the target is a folder, a device or a pipe.
        CapacityError: The disk is full.
    """

    def __init__(self, path: str | os.PathLike[str], place: str, n_bytes: int = 0) -> None:
        self.path, self._place, self._n_bytes = Path(path), place, n_bytes
        check_replaceable(path)
        remove_abandoned(self.path)
        self._file, self.scratch = _made_beside(self.path)
        self._is_over = False

    def write(self, data: bytes | memoryview) -> None:
        """Write the next bytes."""
        with self._disk():
            self._file.write(data)

    def reserve(self, n_bytes: int) -> None:
        """Set the file's length, filled with zeros, so that other processes can read the part written so far."""
        with self._disk():
            self._file.truncate(n_bytes)
            self._file.flush()

    def commit(self) -> None:
        """Move the file to its target.  A failure leaves nothing behind."""
        try:
            with self._disk():
                self._file.flush()
                os.fsync(self._file.fileno())
            give_usual_mode(self.scratch)
            if sys.platform == "win32":
                self._file.close()  # Windows cannot move an open file
            os.replace(self.scratch, self.path)
            sync_folder(self.path.parent)
        finally:
            self.abort()

    def abort(self) -> None:
        """Discard the file.  A no-op after ``commit``."""
        if self._is_over:
            return
        self._is_over = True
        if sys.platform != "win32" and _is_same(self._file, self.scratch):  # before releasing the lock
            self.scratch.unlink()
        with contextlib.suppress(OSError):  # the rest of the buffer may not fit on the disk
            self._file.close()
        if sys.platform == "win32":
            self.scratch.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            free = shutil.disk_usage(self.path.parent).free
            needed = f"{self._n_bytes} bytes, " if self._n_bytes else ""
            raise CapacityError(
                f"[{self._place}] cannot write '{self.path}' ({needed}{free} free on its disk): {error.strerror}"
            ) from error

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise OSError for what no file may take the place of: folders, and devices such as /dev/null."""
    try:
        mode = os.stat(path).st_mode
    except ValueError:
        raise OSError(errno.EINVAL, "the path has a NUL character") from None
    except OSError:
        return  # not there; anything else is reported when the file is created
    if not stat.S_ISREG(mode):
        raise OSError(errno.EEXIST, "not a regular file", os.fspath(path))


def remove_abandoned(path: Path) -> None:
    """Remove the leftovers of writers that no longer run."""
    prefix = f".{path.name}."
    try:
        names = [entry.name for entry in os.scandir(path.parent)]
    except OSError:
        return  # a missing or unreadable folder is reported when the file is created
    for name in names:
        if not (name.startswith(prefix) and name.endswith(_SUFFIX)):
            continue
        with contextlib.suppress(OSError), (path.parent / name).open("r+b") as file:
            if try_lock(file) is True:
                (path.parent / name).unlink()


def _made_beside(path: Path) -> tuple[BinaryIO, Path]:
    while True:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_SUFFIX)
        file, scratch = os.fdopen(descriptor, "wb"), Path(name)
        if try_lock(file) is not False and _is_same(file, scratch):
            return file, scratch
        file.close()  # another process removed it before we held the lock


def _is_same(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False
