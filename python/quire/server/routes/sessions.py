"""``/v1/sessions``: histories that requests continue with their field ``session``."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from ..body_types import Body, TimedBody
from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..service.session_store import StoredSession
from ..worker.engine_client import EngineClient
from ..worker.protocol import Ask, Chat, Generate, Work
from .answers import ResponseStream
from .fields import Name, Text, hints_of
from .openai.chat_fields import checked_messages
from .session_turns import pinned
from .truncation import Truncation

__all__ = ["PinBody", "SessionBody", "create", "delete", "fork", "pin", "sessions", "show", "unpin"]

Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]


class SessionBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A session to begin, with a conversation or with a raw prompt, or empty."""

    model: Name | None = None
    example: ClassVar[dict[str, object]] = {"messages": [{"role": "system", "content": "Answer in one sentence."}]}
    messages: Annotated[list[dict[str, Any]], Meta(max_length=4096)] = []
    prompt: Text = ""
    truncation: Truncation = "disabled"
    metadata: Annotated[Metadata, Meta(max_length=16)] = {}


class PinBody(TimedBody, kw_only=True, forbid_unknown_fields=True):
    """Nothing but time limits: a pin has no options."""

    example: ClassVar[dict[str, object]] = {}


async def create(context: RequestContext[SessionBody]) -> Reply:
    """Begin a session."""
    body = context.body
    if body.messages and body.prompt:
        raise ApiError(400, "invalid_value", "prompt cannot be combined with messages", "prompt")
    messages = await context.prepared(checked_messages, body.messages, context)
    messages = await context.with_images(messages)
    model = await context.service.find(body.model)
    made = context.service.sessions.add(
        context.caller, model, messages=messages, text=body.prompt, truncation=body.truncation, metadata=body.metadata
    )
    return Reply.json(made.shown())


async def sessions(context: RequestContext[None]) -> Reply:
    """List the caller's sessions, the newest first."""
    data = [session.shown() for session in context.service.sessions.all(context.caller)]
    return Reply.json({"object": "list", "data": data})


async def show(context: RequestContext[None]) -> Reply:
    """Show a session with its history."""
    session = _session(context)
    return Reply.json({**session.shown(), **session.history()})


async def fork(context: RequestContext[None]) -> Reply:
    """Begin a session with the history of another one."""
    old = _session(context)
    made = context.service.sessions.add(
        context.caller, old.model, messages=old.messages, text=old.text, truncation=old.truncation,
        metadata=old.metadata, options=old.options, forked_from=old.id, n_turns=old.n_turns, n_tokens=old.n_tokens,
    )  # fmt: skip
    return Reply.json(made.shown())


async def delete(context: RequestContext[None]) -> Reply:
    """Delete a session and its pin."""
    session = context.service.sessions.remove(context.caller, context.path("id"))
    await _unpin(context, session)
    return Reply.json({"id": session.id, "object": "session", "deleted": True})


async def pin(context: RequestContext[PinBody]) -> Reply:
    """Compute a session's history unless it is cached, and keep it from being evicted."""
    session = _session(context)
    engine = await opened(context, session)
    await computed(context, engine, session)
    await pinned(context, engine, session)
    return Reply.json(session.shown())


async def unpin(context: RequestContext[None]) -> Reply:
    """Let the cache evict a session."""
    session = _session(context)
    await _unpin(context, session)
    return Reply.json(session.shown())


def _session(context: RequestContext[Any]) -> StoredSession:
    return context.service.sessions.get(context.caller, context.path("id"))


async def _unpin(context: RequestContext[Any], session: StoredSession) -> None:
    engine = context.service.engines().get(session.model)
    if session.n_pinned_tokens is not None and engine is not None:
        with suppress(ApiError):  # the model was unloaded, and the pin with it
            await context.ask(engine, Ask(0, "unpin", {"name": session.id}))
    session.n_pinned_tokens = None


async def opened(context: RequestContext[Any], session: StoredSession) -> EngineClient:
    """Load a session's model until the request ends."""
    context.opened_model = session.model
    return await context.closing.enter_async_context(context.service.pinned(session.model, context.caller))


async def computed(context: RequestContext[Any], engine: EngineClient, session: StoredSession) -> int:
    """Compute a session's history, as far as it is not cached; return its number of tokens.  ApiError 400 if empty."""
    if session.is_empty:
        raise ApiError(400, "invalid_value", "the session is empty")
    hints, params = hints_of(context.caller), {"max_tokens": 1, "temperature": 0.0}
    work: Work = Generate(0, session.text, params, hints)
    if session.messages:
        work = Chat(0, session.messages, {**session.options, "add_generation_prompt": False}, params, hints)
    answer = ResponseStream(context, context.submit(engine, work))
    await answer.start()
    async for _ in answer.batches():
        pass
    return answer.usage.n_prompt
