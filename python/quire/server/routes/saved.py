"""Saved histories: the folder, and reading a history into the cache."""

from __future__ import annotations

from typing import Any, Literal

from ..failures import ApiError
from ..listener.request_context import RequestContext
from ..service.saved_histories import SavedHistories
from ..worker.engine_client import EngineClient
from ..worker.protocol import Ask, Work
from .answers import ResponseStream

__all__ = ["blocks", "computed", "saved_histories"]


def saved_histories(context: RequestContext[Any]) -> SavedHistories:
    """Return the files.  ApiError 501 if the server keeps none."""
    found = context.service.saved_histories
    if found is None:
        raise ApiError(501, "not_supported", "this server saves nothing: start it with --slot-save-path DIR")
    return found


async def blocks(
    context: RequestContext[Any],
    engine: EngineClient,
    verb: Literal["save_blocks", "restore_blocks"],
    *,
    name: str,
    history: dict[str, Any],
    options: dict[str, Any] | None = None,
) -> None:
    """Write what the cache has of a saved history beside its file, or load it; the rest can be computed."""
    path = saved_histories(context).blocks_path(context.caller, name)
    values = {"path": path, "history": history, "options": options or {}, "salt": context.caller.salt}
    await context.ask(engine, Ask(0, verb, values))


async def computed(context: RequestContext[Any], engine: EngineClient, work: Work) -> int:
    """Compute a prompt, as far as it is not cached, and return its number of tokens."""
    answer = ResponseStream(context, context.submit(engine, work))
    await answer.start()
    async for _ in answer.batches():
        pass
    return answer.usage.n_prompt
