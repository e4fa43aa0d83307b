"""Files and batches of callers, kept in a folder over restarts: contents as files, the rest in SQLite."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from ...errors import RequestError
from ..failures import ApiError
from .caller import Caller

__all__ = ["BatchStore", "BatchWish", "StoredBatch", "StoredFile"]

MOST_FILE_BYTES = 1 << 30  # for one caller
MOST_FILES = 10_000
_SCHEMA = """
create table if not exists files (id text primary key, caller text, name text, purpose text, n_bytes integer,
  created integer);
create table if not exists batches (id text primary key, caller text, salt blob, input text, path text, window text,
  metadata text, status text, n_lines integer, n_done integer, n_failed integer, output text, errors text, times text);
create table if not exists answers (batch text, custom_id text, status integer, line blob,
  primary key (batch, custom_id));
"""
OPEN = ("in_progress", "cancelling")


@dataclass(frozen=True)
class StoredFile:
    """A file of a caller: ``created`` in seconds since 1970."""

    id: str
    name: str
    purpose: str
    n_bytes: int
    created: int

    def shown(self) -> dict[str, Any]:
        """Return OpenAI's file object."""
        return {
            "id": self.id, "object": "file", "bytes": self.n_bytes, "created_at": self.created, "filename": self.name,
            "purpose": self.purpose, "status": "processed",
        }  # fmt: skip


@dataclass(frozen=True)
class BatchWish:
    """A caller's wish: the file of requests, the path of all of them, and OpenAI's window, such as 24h."""

    input: str
    path: str
    window: str
    metadata: dict[str, str] | None


@dataclass(frozen=True)
class StoredBatch:
    """A batch of a caller; ``times`` maps OpenAI's fields such as ``created_at`` to seconds since 1970."""

    id: str
    caller: Caller
    input: str
    path: str
    window: str
    metadata: dict[str, str] | None
    status: str
    n_lines: int
    n_done: int
    n_failed: int
    output: str | None
    errors: str | None
    times: dict[str, int]

    def shown(self) -> dict[str, Any]:
        """Return OpenAI's batch object."""
        names = (
            "created_at",
            "in_progress_at",
            "expires_at",
            "finalizing_at",
            "completed_at",
            "failed_at",
            "expired_at",
        )
        times = {name: self.times.get(name) for name in (*names, "cancelling_at", "cancelled_at")}
        counts = {"total": self.n_lines, "completed": self.n_done - self.n_failed, "failed": self.n_failed}
        return {
            "id": self.id, "object": "batch", "endpoint": self.path, "errors": None, "input_file_id": self.input,
            "completion_window": self.window, "status": self.status, "output_file_id": self.output,
            "error_file_id": self.errors, **times, "request_counts": counts, "metadata": self.metadata,
        }  # fmt: skip


class BatchStore:
    """Used by one thread at a time.  Callers see only what is theirs; ApiError 404 for anything else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "files"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.mkdir(exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(
                folder / "batches.sqlite", timeout=1, check_same_thread=False, isolation_level=None
            )
            self._db.execute("pragma locking_mode=exclusive")  # two servers would answer each request twice
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise RequestError(f"[serve] cannot use --state-dir {folder}: {error}") from None

    def close(self) -> None:
        self._db.close()

    # --- files ---

    def add_file(self, caller: Caller, name: str, purpose: str, content: bytes) -> StoredFile:
        """Store a file.  ApiError 413 if the caller's files become too large or too many, 507 if the disk is full."""
        query = "select total(n_bytes), count(*) from files where caller = ?"
        total, n = self._db.execute(query, (caller.name,)).fetchone()
        if total + len(content) > MOST_FILE_BYTES:
            raise ApiError(
                413, "too_many_files", f"the files would have more than {MOST_FILE_BYTES} bytes: delete some"
            )
        if n >= MOST_FILES:
            raise ApiError(413, "too_many_files", f"there are {n} files already: delete some")
        try:
            return self._add_file(caller, name, purpose, (content,))
        except (OSError, sqlite3.Error) as error:
            raise ApiError(507, "not_stored", f"the server cannot store the file: {error}") from error

    def _add_file(self, caller: Caller, name: str, purpose: str, pieces: Iterable[bytes]) -> StoredFile:
        id_ = f"file-{secrets.token_hex(12)}"
        part = self._folder / f"{id_}.part"
        try:
            with part.open("wb") as file:
                n_bytes = sum(file.write(piece) for piece in pieces)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._folder / id_)
            row = (id_, caller.name, name, purpose, n_bytes, int(time.time()))
            self._db.execute("insert into files values (?, ?, ?, ?, ?, ?)", row)
        except OSError:  # the disk is full
            part.unlink(missing_ok=True)
            raise
        except sqlite3.Error:
            (self._folder / id_).unlink(missing_ok=True)
            raise
        return self.file(caller, id_)

    def files(self, caller: Caller) -> list[StoredFile]:
        rows = self._db.execute(
            "select id, name, purpose, n_bytes, created from files where caller = ? order by created desc, rowid desc",
            (caller.name,),
        )
        return [StoredFile(*row) for row in rows]

    def file(self, caller: Caller, id_: str) -> StoredFile:
        query = "select id, name, purpose, n_bytes, created from files where caller = ? and id = ?"
        row = self._db.execute(query, (caller.name, id_)).fetchone()
        if row is None:
            raise ApiError(404, "file_not_found", f"no file {id_!r:.80}")
        return StoredFile(*row)

    def content(self, caller: Caller, id_: str) -> bytes:
        try:
            return self.path(caller, id_).read_bytes()
        except FileNotFoundError:
            raise ApiError(404, "file_not_found", f"the content of file {id_!r:.80} was deleted") from None

    def path(self, caller: Caller, id_: str) -> Path:
        """Return where the content of a file is."""
        return self._folder / self.file(caller, id_).id

    def remove_file(self, caller: Caller, id_: str) -> None:
        """Delete a file.  ApiError 409 if a batch that runs reads it."""
        path = self.path(caller, id_)
        query = "select count(*) from batches where input = ? and status in ('in_progress', 'cancelling')"
        if self._db.execute(query, (id_,)).fetchone()[0]:
            raise ApiError(409, "file_in_use", f"a batch that runs reads file {id_}: cancel it first")
        self._db.execute("delete from files where id = ?", (id_,))
        path.unlink(missing_ok=True)

    # --- batches ---

    def add_batch(self, caller: Caller, wish: BatchWish, n_lines: int) -> StoredBatch:
        id_, now = f"batch_{secrets.token_hex(12)}", int(time.time())
        times = json.dumps({"created_at": now, "in_progress_at": now})
        self._db.execute(
            "insert into batches values (?, ?, ?, ?, ?, ?, ?, 'in_progress', ?, 0, 0, null, null, ?)",
            (id_, caller.name, caller.salt, *astuple(wish)[:3], json.dumps(wish.metadata), n_lines, times),
        )
        return self.batch(caller, id_)

    def batches(self, caller: Caller) -> list[StoredBatch]:
        rows = self._db.execute("select * from batches where caller = ? order by rowid desc", (caller.name,))
        return [_batch(row) for row in rows]

    def unfinished(self) -> list[StoredBatch]:
        """Return the batches of all callers that still run, the oldest first."""
        query = "select * from batches where status in ('in_progress', 'cancelling') order by rowid"
        return [_batch(row) for row in self._db.execute(query)]

    def batch(self, caller: Caller, id_: str) -> StoredBatch:
        row = self._db.execute("select * from batches where caller = ? and id = ?", (caller.name, id_)).fetchone()
        if row is None:
            raise ApiError(404, "batch_not_found", f"no batch {id_!r:.80}")
        return _batch(row)

    def cancel(self, caller: Caller, id_: str) -> StoredBatch:
        """Ask for a batch to be cancelled.  ApiError 404 or, if it has ended, 409."""
        batch = self.batch(caller, id_)
        if batch.status not in OPEN:
            raise ApiError(409, "batch_ended", f"batch {id_} is {batch.status}")
        return self.set_status(batch, "cancelling")

    def set_status(
        self, batch: StoredBatch, status: str, output: str | None = None, errors: str | None = None
    ) -> StoredBatch:
        """Change the status of a batch, and the files of its answers, and note the time."""
        times = json.dumps(self.batch(batch.caller, batch.id).times | {f"{status}_at": int(time.time())})
        query = "update batches set status = ?, output = ?, errors = ?, times = ? where id = ?"
        self._db.execute(query, (status, output, errors, times, batch.id))
        return self.batch(batch.caller, batch.id)

    def answered(self, batch: StoredBatch) -> set[str]:
        """Return which requests of a batch have an answer."""
        return {row[0] for row in self._db.execute("select custom_id from answers where batch = ?", (batch.id,))}

    def add_answer(self, batch: StoredBatch, custom_id: str, status: int, line: bytes) -> None:
        with closing(self._db.cursor()) as cursor:
            cursor.execute("begin")
            try:
                cursor.execute("insert into answers values (?, ?, ?, ?)", (batch.id, custom_id, status, line))
                failed = int(status >= 400)
                query = "update batches set n_done = n_done + 1, n_failed = n_failed + ? where id = ?"
                cursor.execute(query, (failed, batch.id))
                cursor.execute("commit")
            except sqlite3.Error:  # the disk is full
                if self._db.in_transaction:
                    cursor.execute("rollback")
                raise

    def finish(self, batch: StoredBatch, status: str) -> StoredBatch:
        """Write the answers of a batch to files, those that are errors to one of their own, and set its status."""
        query = "select line from answers where batch = ? and status between ? and ? order by rowid"
        files = {}
        for kind, statuses in (("output", (0, 399)), ("errors", (400, 999))):
            # All answers together may not fit in memory.
            rows = self._db.execute(query, (batch.id, *statuses))
            if (first := rows.fetchone()) is not None:
                pieces = (row[0] for row in itertools.chain((first,), rows))
                files[kind] = self._add_file(batch.caller, f"{batch.id}_{kind}.jsonl", "batch_output", pieces).id
        found = self.set_status(batch, status, **files)
        self._db.execute("delete from answers where batch = ?", (batch.id,))
        return found


def _batch(row: tuple[Any, ...]) -> StoredBatch:
    id_, caller, salt, input_id, path, window, metadata, *rest, times = row
    status, n_lines, n_done, n_failed, output, errors = rest
    return StoredBatch(
        id_, Caller(caller, salt), input_id, path, window, json.loads(metadata), status, n_lines, n_done, n_failed,
        output, errors, json.loads(times),
    )  # fmt: skip
