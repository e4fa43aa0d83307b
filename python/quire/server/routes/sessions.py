"""``/v1/sessions``: histories that requests continue with their field ``session``."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from ...chat.messages import check_outline
from ...errors import RequestError
from ...params.chat_options import CHAT_OPTIONS, ChatOptions
from ..body_types import Body, TimedBody
from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..service.session_store import StoredSession
from ..worker.engine_client import EngineClient
from ..worker.protocol import Chat, Generate, Work
from .fields import Name, Text, hints_of
from .openai.chat_fields import checked_messages
from .saved import blocks, computed, saved_histories
from .session_turns import OF_ONE_TURN, pinned, unpinned
from .truncation import Truncation

__all__ = [
    "FileBody", "PinBody", "SessionBody", "create", "delete", "fork", "pin", "restore", "save", "sessions", "show",
    "unpin",
]  # fmt: skip

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


class FileBody(TimedBody, kw_only=True, forbid_unknown_fields=True):
    """The name of a file, which is no path."""

    filename: Annotated[str, Meta(min_length=1, max_length=255)]


async def create(context: RequestContext[SessionBody]) -> Reply:
    """Begin a session."""
    body = context.body
    if body.messages and body.prompt:
        raise ApiError(400, "invalid_value", "prompt cannot be combined with messages", "prompt")
    messages = await context.prepared(checked_messages, body.messages, context)
    check_outline(messages)
    messages = await context.with_images(messages)
    model = await context.service.find(body.model)
    made = context.service.sessions.add(
        context.caller,
        model,
        messages=messages,
        text=body.prompt,
        truncation=body.truncation,
        metadata=body.metadata,
        adapter=context.service.adapter_of(body.model),
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
        metadata=old.metadata, options=old.options, adapter=old.adapter, forked_from=old.id, n_turns=old.n_turns,
        n_tokens=old.n_tokens,
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
    engine = await _opened(context, session)
    session.n_tokens = await _compute(context, engine, session)
    await pinned(context, engine, session)
    return Reply.json(session.shown())


async def save(context: RequestContext[FileBody]) -> Reply:
    """Write a session's history to a file below ``--slot-save-path``."""
    session = _session(context)
    history = {
        "kind": "session", "model": session.model, "messages": session.messages, "text": session.text,
        "options": session.options, "tools": session.options.get("tools"), "token_ids": [],
        "adapter": None if session.adapter is None else [list(session.adapter)],
    }  # fmt: skip
    name = context.body.filename
    n_bytes = await asyncio.to_thread(saved_histories(context).save, context.caller, name, history)
    engine = context.service.engines().get(session.model)
    if engine is not None and session.adapter is None and not session.is_empty:
        with suppress(ApiError):  # the model is being loaded: the history alone is enough
            history = session.history()
            await blocks(context, engine, "save_blocks", name=name, history=history, options=session.options)
    return Reply.json({"id": session.id, "object": "session", "filename": name, "bytes": n_bytes})


async def restore(context: RequestContext[FileBody]) -> Reply:
    """Replace a session's history by that of a file, and read it into the cache."""
    session = _session(context)
    files = saved_histories(context)
    history, _ = await asyncio.to_thread(files.load, context.caller, context.body.filename, _is_session)
    if session.is_busy:
        raise ApiError(409, "session_busy", "a turn of the session is in progress: wait for it")
    adapter = _adapter_of(context, session, history)
    options = history.get("options") or ({"tools": history["tools"]} if history.get("tools") else {})
    _check_options(context, options)
    before = session.messages, session.text, session.options, session.adapter
    session.is_busy = True
    try:
        context.service.sessions.grow(session, history["messages"], history.get("text", ""))
        session.options, session.adapter = options, adapter
        if not session.is_empty:
            engine = await _opened(context, session)
            if adapter is None:
                name, history = context.body.filename, session.history()
                await blocks(context, engine, "restore_blocks", name=name, history=history, options=options)
            session.n_tokens = await _compute(context, engine, session)
    except ApiError as error:
        context.service.sessions.grow(session, *before[:2])
        session.options, session.adapter = before[2:]
        if error.code in ("invalid_request", "unsupported"):  # wrong messages or options
            raise _unusable(error.message) from None
        raise
    finally:
        session.is_busy = False
    return Reply.json(session.shown())


def _check_options(context: RequestContext[Any], options: dict[str, Any]) -> None:
    """Refuse options that no turn of a session has, and those that clients may not set.  ApiError 400."""
    if unknown := sorted(options.keys() - CHAT_OPTIONS.keys()) or sorted(options.keys() & OF_ONE_TURN):
        raise _unusable(f"a session has no option {unknown[0]!r:.80}")
    if "chat_template" in options and not context.service.settings.trust_request_chat_template:
        raise _unusable("it has a chat template, which this server does not accept")
    tools = options.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise _unusable("its tools are no list of function definitions")
    try:
        ChatOptions(**options)
    except RequestError as error:
        raise _unusable(str(error)) from None


def _unusable(reason: str) -> ApiError:
    return ApiError(400, "unusable_file", f"the file cannot be restored: {reason.removeprefix('[chat] ')}", "filename")


def _adapter_of(
    context: RequestContext[Any], session: StoredSession, history: dict[str, Any]
) -> tuple[str, float] | None:
    """Return the adapter that a file names.  ApiError 404 if the model does not have it."""
    if not (pairs := history.get("adapter")):
        return None
    name, scale = pairs[0]
    engine = context.service.engines().get(session.model)
    if engine is None or name not in engine.info.loras:
        raise ApiError(404, "adapter_not_found", f"the session has adapter {name!r:.80}, which is not loaded")
    if len(pairs) != 1 or isinstance(scale, bool) or not isinstance(scale, int | float):
        raise _unusable("it has several adapters, or one without a scale")
    return name, float(scale)


def _is_session(history: dict[str, Any]) -> bool:
    return "messages" in history and not history.get("token_ids") and not (history["messages"] and history.get("text"))


async def unpin(context: RequestContext[None]) -> Reply:
    """Let the cache evict a session."""
    session = _session(context)
    await _unpin(context, session)
    return Reply.json(session.shown())


def _session(context: RequestContext[Any]) -> StoredSession:
    return context.service.sessions.get(context.caller, context.path("id"))


async def _unpin(context: RequestContext[Any], session: StoredSession) -> None:
    engine = context.service.engines().get(session.model)
    if session.may_be_pinned and engine is not None:
        with suppress(ApiError):  # the model was unloaded, and the pin with it
            await unpinned(context, engine, session)
    session.n_pinned_tokens = None


async def _opened(context: RequestContext[Any], session: StoredSession) -> EngineClient:
    """Load a session's model until the request ends."""
    context.opened_model, context.adapter = session.model, session.adapter
    return await context.closing.enter_async_context(context.service.pinned(session.model, context.caller))


async def _compute(context: RequestContext[Any], engine: EngineClient, session: StoredSession) -> int:
    """Compute a session's history, as far as it is not cached; return its number of tokens.  ApiError 400 if empty."""
    if session.is_empty:
        raise ApiError(400, "invalid_value", "the session is empty")
    hints, params = hints_of(context.caller), {"max_tokens": 1, "temperature": 0.0}
    work: Work = Generate(0, session.text, params, hints)
    if session.messages:
        work = Chat(0, session.messages, {**session.options, "add_generation_prompt": False}, params, hints)
    return await computed(context, engine, work)
