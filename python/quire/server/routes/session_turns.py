"""Turns of sessions: requests whose history the server adds, and whose answer it keeps."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import structs

from ...params.sampling_defaults import most_prompt_tokens
from ..failures import ApiError
from ..listener.bodies import header
from ..listener.request_context import RequestContext
from ..service.session_store import StoredSession
from ..service.slots import SlotText
from ..worker.engine_client import EngineClient
from ..worker.protocol import Ask, Chat, Delta, Generate
from .answers import Message, ResponseStream, Turn

__all__ = ["OF_ONE_TURN", "SessionTurn", "begin_turn", "pinned", "unpinned"]

WorkT = TypeVar("WorkT", Chat, Generate)
OF_ONE_TURN = frozenset({
    "continue_final_message", "add_generation_prompt", "reasoning_budget", "max_prompt_tokens", "tool_choice",
})  # fmt: skip
"""Options of a chat that later turns of a session do not keep."""


class SessionTurn:
    """One turn; leaving the request ends it.  The history changes only once the answer is complete."""

    def __init__(self, context: RequestContext[Any], engine: EngineClient, session: StoredSession, work: Any) -> None:
        if session.is_busy:
            text = "a turn of the session is in progress: wait for it, or fork the session"
            raise ApiError(409, "session_busy", text, "session")
        if work.params.get("n", 1) != 1:
            raise ApiError(400, "invalid_value", "a turn of a session has one answer: n is not supported", "n")
        self._context, self._engine, self._session, self._work = context, engine, session, work
        self._message = Message()
        session.is_busy = True
        context.closing.callback(self._leave)

    def _leave(self) -> None:
        self._session.is_busy = False

    def add(self, delta: Delta) -> None:
        """Take a piece of the answer."""
        self._message.add(delta)

    async def commit(self, answer: ResponseStream) -> None:
        """Add the turn to the history, and let the session's pin cover it, if there is room for that."""
        session, work = self._session, self._work
        messages, text = session.messages, session.text
        if isinstance(work, Chat):
            said, messages = self._message.openai(), work.messages
            if work.options.get("continue_final_message"):
                *messages, begun = messages
                said["content"] = f"{begun.get('content') or ''}{said.get('content') or ''}"
            messages = [*messages, said]
            session.options = {name: value for name, value in work.options.items() if name not in OF_ONE_TURN}
        else:
            text = f"{work.prompt}{''.join(self._message.content)}"
        self._context.service.sessions.grow(session, messages, text)
        session.n_turns += 1
        session.n_tokens = answer.usage.n_prompt + answer.usage.n_generated
        if session.n_pinned_tokens is not None:
            await pinned(self._context, self._engine, session)


class SlotTurn:
    """A request with an ``id_slot``, whose tokens can be saved."""

    def __init__(self, context: RequestContext[Any], slot: int) -> None:
        self._context, self._slot = context, slot
        self._token_ids: list[int] = []

    def add(self, delta: Delta) -> None:
        """Take a piece of the answer."""
        if delta.choice == 0:
            self._token_ids += delta.token_ids

    async def commit(self, answer: ResponseStream) -> None:
        """Let the slot have the request's text."""
        started = answer.stream.started
        assert started is not None
        text = SlotText(self._context.model, [*(started.prompt_ids or ()), *self._token_ids])
        self._context.service.slots.put(self._context.caller, self._slot, text)


def begin_turn(context: RequestContext[Any], engine: EngineClient, work: WorkT, body: Any) -> tuple[WorkT, Turn | None]:
    """Return the work with the history of the request's session before it, and its turn; None without a session.

    The field ``session`` names it, or the header ``x-quire-session``.  ApiError 404, 409 or 400 if that is impossible.
    """
    name, slot = getattr(body, "session", None), getattr(body, "id_slot", -1)
    if name is None:
        given = header(context.scope, b"x-quire-session")
        if given is None:
            if slot < 0:
                return work, None
            if context.service.saved_histories is None or slot >= engine.info.max_sequences:
                context.ignore("id_slot")
                return work, None
            return structs.replace(work, wants_prompt_ids=True), SlotTurn(context, slot)
        name = given.decode("latin-1")
    session = context.service.sessions.get(context.caller, name, "session")
    if context.model != session.model:
        text = f"the session is one of model {session.model!r:.80}, but the request is for {context.model!r:.80}"
        raise ApiError(400, "invalid_value", text, "session")
    context.adapter = context.adapter or session.adapter
    if isinstance(work, Chat):
        if session.text:
            raise ApiError(400, "invalid_value", "the session is a raw prompt: use /v1/completions", "session")
        options = dict(work.options)
        if session.truncation == "auto":
            n_most = most_prompt_tokens(engine.info.n_ctx, work.params.get("max_tokens"))
            options.setdefault("max_prompt_tokens", n_most)
        work = structs.replace(work, messages=_joined(session.messages, work.messages), options=options)
    else:
        if session.messages:
            raise ApiError(400, "invalid_value", "the session is a conversation: use /v1/chat/completions", "session")
        if not isinstance(work.prompt, str):
            raise ApiError(400, "invalid_value", "a turn of a session takes a single text as its prompt", "prompt")
        work = structs.replace(work, prompt=session.text + work.prompt)
        if session.truncation == "auto":
            n_most = most_prompt_tokens(engine.info.n_ctx, work.params.get("max_tokens"))
            work = structs.replace(work, max_prompt_tokens=n_most)
    return work, SessionTurn(context, engine, session, work)


def _joined(earlier: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation with new messages; the system message may be sent again.  ApiError 400 for another one."""
    if earlier and new and new[0].get("role") == "system":
        if new[0] != earlier[0]:
            text = "the session has begun without this system message: leave it out, or create another session"
            raise ApiError(400, "invalid_value", text, "messages")
        new = new[1:]
    return [*earlier, *new]


async def pinned(context: RequestContext[Any], engine: EngineClient, session: StoredSession) -> None:
    """Pin what the cache has of a session, in place of what was pinned; without room for it, nothing changes."""
    session.may_be_pinned = True
    values: dict[str, Any] = {"name": session.id, "history": session.history(), "options": session.options}
    values["adapter"] = None if session.adapter is None else [session.adapter]
    found = await context.ask(engine, Ask(0, "pin", {**values, "salt": session.caller.salt}))
    session.n_pinned_tokens = found["n_tokens"]
    if session.is_deleted:  # meanwhile
        await unpinned(context, engine, session)


async def unpinned(context: RequestContext[Any], engine: EngineClient, session: StoredSession) -> None:
    """End a session's pin.  No-op without one."""
    session.n_pinned_tokens, session.may_be_pinned = None, False
    await context.ask(engine, Ask(0, "unpin", {"name": session.id}))
