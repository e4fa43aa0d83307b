"""OpenAI's conversations of callers, in SQLite: in a file that is kept over restarts, or in memory."""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ...errors import RequestError
from ..failures import ApiError
from .caller import Caller

__all__ = ["MOST_ITEMS", "ConversationStore", "Conversations"]

MOST = 10_000  # conversations of one caller
MOST_BYTES = 64 << 20  # likewise, of all items
MOST_ITEMS = 4096  # in a conversation
_SCHEMA = """
create table if not exists conversations (id text primary key, caller text, created integer, metadata text);
create index if not exists of_caller on conversations (caller);
create table if not exists items (place integer primary key autoincrement, conversation text, id text, body text,
  unique (conversation, id));
"""
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
P = ParamSpec("P")
T = TypeVar("T")


class ConversationStore:
    """Used by one thread at a time.  Callers see only what is theirs; ApiError 404 for anything else."""

    def __init__(self, folder: Path | None) -> None:
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = ":memory:" if folder is None else folder / "conversations.sqlite"
            self._db = sqlite3.connect(path, timeout=1, check_same_thread=False, isolation_level=None)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise RequestError(f"[serve] cannot use --state-dir {folder}: {error}") from None

    def close(self) -> None:
        self._db.close()

    def create(self, caller: Caller, items: Sequence[dict[str, Any]], metadata: dict[str, str]) -> dict[str, Any]:
        """Store a conversation and return OpenAI's object.  ApiError 429 if the caller has too many."""
        query = "select count(*) from conversations where caller = ?"
        if self._rows(query, caller.name)[0][0] >= MOST:
            raise ApiError(429, "too_many_conversations", f"there are {MOST} conversations already: delete some")
        id_ = f"conv_{secrets.token_hex(24)}"
        row = (id_, caller.name, int(time.time()), json.dumps(metadata))
        with self._whole():
            self._rows("insert into conversations values (?, ?, ?, ?)", *row)
            self._add(caller, id_, items)
        return self.get(caller, id_)

    def get(self, caller: Caller, id_: str) -> dict[str, Any]:
        """Return OpenAI's object of a conversation."""
        query = "select created, metadata from conversations where caller = ? and id = ?"
        rows = self._rows(query, caller.name, id_)
        if not rows:
            raise ApiError(404, "conversation_not_found", f"no conversation {id_!r:.80}", "conversation")
        created, metadata = rows[0]
        return {"id": id_, "object": "conversation", "created_at": created, "metadata": json.loads(metadata)}

    def update(self, caller: Caller, id_: str, metadata: dict[str, str]) -> dict[str, Any]:
        """Replace a conversation's metadata."""
        self.get(caller, id_)
        self._rows("update conversations set metadata = ? where id = ?", json.dumps(metadata), id_)
        return self.get(caller, id_)

    def remove(self, caller: Caller, id_: str) -> None:
        """Delete a conversation with its items."""
        self.get(caller, id_)
        with self._whole():
            self._rows("delete from items where conversation = ?", id_)
            self._rows("delete from conversations where id = ?", id_)

    def add(self, caller: Caller, id_: str, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add items to the end of a conversation, all or none, and return them with their ids.

        Items without an id get one.  ApiError 400 for too many, 429 if the caller's items become too large.
        """
        self.get(caller, id_)
        with self._whole():
            return self._add(caller, id_, items)

    def _add(self, caller: Caller, id_: str, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        n_items = self._rows("select count(*) from items where conversation = ?", id_)[0][0]
        if n_items + len(items) > MOST_ITEMS:
            raise ApiError(400, "conversation_too_long", f"a conversation has at most {MOST_ITEMS} items", "items")
        kept = [item if item.get("id") else {**item, "id": _new_id(item)} for item in items]
        rows = [(id_, item["id"], json.dumps(item, ensure_ascii=False)) for item in kept]
        query = (
            "select total(length(body)) from items join conversations on conversation = conversations.id"
            " where caller = ?"
        )
        n_chars = self._rows(query, caller.name)[0][0] + sum(len(body) for *_, body in rows)
        if n_chars > MOST_BYTES:
            text = f"conversations would have more than {MOST_BYTES} characters: delete some"
            raise ApiError(429, "conversations_too_large", text)
        for row in rows:
            self._rows("insert or replace into items (conversation, id, body) values (?, ?, ?)", *row)
        return kept

    def items(self, caller: Caller, id_: str) -> list[dict[str, Any]]:
        """Return all items of a conversation, the oldest first."""
        self.get(caller, id_)
        rows = self._rows("select body from items where conversation = ? order by place", id_)
        return [json.loads(body) for (body,) in rows]

    def item(self, caller: Caller, id_: str, item: str) -> dict[str, Any]:
        """Return an item."""
        self.get(caller, id_)
        query = "select body from items where conversation = ? and id = ?"
        rows = self._rows(query, id_, item)
        if not rows:
            raise ApiError(404, "item_not_found", f"no item {item!r:.80} in the conversation")
        found: dict[str, Any] = json.loads(rows[0][0])
        return found

    def remove_item(self, caller: Caller, id_: str, item: str) -> None:
        """Delete an item."""
        self.item(caller, id_, item)
        self._rows("delete from items where conversation = ? and id = ?", id_, item)

    def _rows(self, query: str, *values: object) -> list[Any]:
        """Run a query and return its rows.  ApiError 507 if the disk is full or the file is damaged."""
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise ApiError(507, "not_stored", f"the server's store of conversations failed: {error}") from error

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Keep all changes inside, or none of them."""
        self._rows("begin immediate")
        try:
            yield
            self._rows("commit")
        except BaseException:
            with suppress(sqlite3.Error):  # some errors have ended the transaction
                self._db.execute("rollback")
            raise


def _new_id(item: dict[str, Any]) -> str:
    return f"{_PREFIXES.get(item.get('type', 'message'), 'item')}_{secrets.token_hex(24)}"


class Conversations:
    """The store, used on a thread of its own, so that the disk delays no other request."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._thread: ThreadPoolExecutor | None = None
        self._busy: set[str] = set()

    async def call(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of ``store``."""
        assert self._thread is not None
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: verb(*args, **kwargs))

    async def opened(self) -> ConversationStore:
        """Return the store, which the first call opens."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "quire-conversations")
            self._opening = asyncio.get_running_loop().run_in_executor(self._thread, ConversationStore, self._folder)
        return await self._opening

    def begin(self, id_: str) -> Callable[[], None]:
        """Reserve a conversation for a response; return the function that ends it.  ApiError 409 if it is reserved."""
        if id_ in self._busy:
            text = "another response of the conversation is in progress: wait for it"
            raise ApiError(409, "conversation_busy", text, "conversation")
        self._busy.add(id_)
        return lambda: self._busy.discard(id_)

    async def stop(self) -> None:
        """Close the store.  May be called again."""
        if self._thread is not None:
            await self.call((await self._opening).close)
            self._thread.shutdown()
            self._thread = None
