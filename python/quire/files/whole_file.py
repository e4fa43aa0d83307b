"""Files that are there as a whole or not at all: written beside their place, and renamed when all is on the disk.

What a killed process left beside a place is removed by the next one that writes there.  Who writes holds a lock on what
it writes, which the system gives back when the process ends, however it ends; without such locks (Windows, some
network file systems) nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ..errors import CapacityError
from ..system import give_usual_mode, sync_folder, try_lock

__all__ = ["WholeFile"]

_SUFFIX = ".part"


class WholeFile:
    """One such file; leaving ``with`` without an error puts it in its place, with one leaves what was there.

    ``place`` begins error messages, ``n_bytes`` is how many will come, as far as that is known.  Raises OSError where
    the folder cannot be written, CapacityError where the disk is full.
    """

    def __init__(self, path: str | os.PathLike[str], place: str, n_bytes: int = 0) -> None:
        self.path, self._place, self._n_bytes = Path(path), place, n_bytes
        remove_abandoned(self.path)
        self._file, self.scratch = _made_beside(self.path)
        self._is_over = False

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        with self._disk():
            self._file.write(data)

    def reserve(self, n_bytes: int) -> None:
        """Give the file its length, of zeros; another may read what was written before."""
        with self._disk():
            self._file.truncate(n_bytes)
            self._file.flush()

    def commit(self) -> None:
        """Put the file in its place.  Whatever fails, nothing is left beside it."""
        try:
            with self._disk():
                self._file.flush()
                os.fsync(self._file.fileno())
            give_usual_mode(self.scratch)
            if sys.platform == "win32":
                self._file.close()  # an open file cannot be moved there
            os.replace(self.scratch, self.path)
            sync_folder(self.path.parent)
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop what was written.  Without effect after ``commit``."""
        if self._is_over:
            return
        self._is_over = True
        if sys.platform != "win32" and _is_same(self._file, self.scratch):  # before the lock ends
            self.scratch.unlink()
        with contextlib.suppress(OSError):  # what the buffer still holds may not fit on the disk
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
                f"[{self._place}] '{self.path}' must fit on its disk ({needed}{free} free): {error.strerror}"
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


def remove_abandoned(path: Path) -> None:
    """Remove what lies beside a place and nobody writes any more."""
    prefix = f".{path.name}."
    try:
        names = [entry.name for entry in os.scandir(path.parent)]
    except OSError:
        return  # the folder is not there or not to be read: making a file tells
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
        file.close()  # another process took it for abandoned before the lock was ours


def _is_same(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False
