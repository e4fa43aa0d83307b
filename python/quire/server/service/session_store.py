"""Sessions of callers: histories that requests continue, kept in memory within limits."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ..failures import ApiError

if TYPE_CHECKING:
    from .caller import Caller

__all__ = ["SessionStore", "StoredSession"]

MOST = 1000  # for one caller
MOST_BYTES = 64 << 20  # likewise, for all histories


@dataclass
class StoredSession:
    """A caller's session with a model: a conversation, or the ``text`` of a raw prompt and its answers.

    ``adapter``: the LoRA adapter of turns that choose none, with its scale.  ``options`` are those of the last turn's
    chat (``worker.protocol.Chat``), by which a pin renders the conversation.
    """

    id: str
    caller: Caller
    model: str
    created: int
    metadata: dict[str, str]
    truncation: str = "disabled"
    messages: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    adapter: tuple[str, float] | None = None
    forked_from: str | None = None
    n_turns: int = 0
    n_tokens: int = 0
    n_pinned_tokens: int | None = None
    may_be_pinned: bool = False
    is_busy: bool = False
    is_deleted: bool = False
    n_bytes: int = 0

    def shown(self) -> dict[str, Any]:
        """Return the session without its history."""
        return {
            "id": self.id, "object": "session", "created_at": self.created,
            "model": self.model if self.adapter is None else self.adapter[0],
            "metadata": self.metadata, "truncation": self.truncation, "forked_from": self.forked_from,
            "turns": self.n_turns, "tokens": self.n_tokens, "pinned": self.n_pinned_tokens is not None,
            "pinned_tokens": self.n_pinned_tokens or 0,
        }  # fmt: skip

    def history(self) -> dict[str, Any]:
        """Return the history as requests name it."""
        return {"prompt": self.text} if self.text else {"messages": self.messages}

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to continue."""
        return not self.messages and not self.text


class SessionStore:
    """Sessions by caller and id.  Callers see only their own."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[str, StoredSession]] = {}

    def add(self, caller: Caller, model: str, **values: Any) -> StoredSession:
        """Store a session.  ApiError 429 if the caller has too many, or their histories are too large."""
        of_caller = self._sessions.setdefault(caller.name, {})
        if len(of_caller) >= MOST:
            raise ApiError(429, "too_many_sessions", f"there are {MOST} sessions already: delete some")
        made = StoredSession(f"sess_{secrets.token_hex(12)}", caller, model, int(time.time()), **values)
        self.grow(made, made.messages, made.text)
        of_caller[made.id] = made
        return made

    def grow(self, session: StoredSession, messages: list[dict[str, Any]], text: str) -> None:
        """Change a session's history.  ApiError 429, and no change, if the caller's histories become too large."""
        n_bytes = len(msgspec.json.encode((messages, text)))
        others = sum(each.n_bytes for each in self.all(session.caller) if each is not session)
        if others + n_bytes > MOST_BYTES:
            raise ApiError(429, "sessions_too_large", f"sessions would have more than {MOST_BYTES} bytes: delete some")
        session.messages, session.text, session.n_bytes = messages, text, n_bytes

    def get(self, caller: Caller, id_: str, param: str | None = None) -> StoredSession:
        """Return a session.  ApiError 404 if there is none; ``param`` is the field that names it."""
        found = self._sessions.get(caller.name, {}).get(id_)
        if found is None:
            raise ApiError(404, "session_not_found", f"no session {id_!r:.80}", param)
        return found

    def all(self, caller: Caller) -> list[StoredSession]:
        """Return the caller's sessions, the newest first."""
        return list(self._sessions.get(caller.name, {}).values())[::-1]

    def remove(self, caller: Caller, id_: str) -> StoredSession:
        """Delete a session and return it.  ApiError 404 if there is none."""
        found = self.get(caller, id_)
        del self._sessions[caller.name][id_]
        found.is_deleted = True
        return found
