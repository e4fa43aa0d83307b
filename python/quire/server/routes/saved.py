"""Saved histories: the folder, and reading a history into the cache."""

from __future__ import annotations

from typing import Any

from ..failures import ApiError
from ..listener.request_context import RequestContext
from ..service.saved_histories import SavedHistories
from ..worker.engine_client import EngineClient
from ..worker.protocol import Work
from .answers import ResponseStream

__all__ = ["computed", "saved_histories"]


def saved_histories(context: RequestContext[Any]) -> SavedHistories:
    """Return the files.  ApiError 501 if the server keeps none."""
    found = context.service.saved_histories
    if found is None:
        raise ApiError(501, "not_supported", "this server saves nothing: start it with --slot-save-path DIR")
    return found


async def computed(context: RequestContext[Any], engine: EngineClient, work: Work) -> int:
    """Compute a prompt, as far as it is not cached, and return its number of tokens."""
    answer = ResponseStream(context, context.submit(engine, work))
    await answer.start()
    async for _ in answer.batches():
        pass
    return answer.usage.n_prompt
