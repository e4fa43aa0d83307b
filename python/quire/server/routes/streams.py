"""Read a stream again whose connection was lost, or cancel it."""

from __future__ import annotations

from ..body_types import Body
from ..failures import Dialect
from ..listener.replies import Events, Reply, event_stream
from ..listener.request_context import RequestContext
from .fields import Name

__all__ = ["StreamBody", "cancel", "resume"]


class StreamBody(Body, kw_only=True, forbid_unknown_fields=True):
    """``id``: the ``X-Quire-Stream-Id`` of the request that began the stream."""

    id: Name


async def resume(context: RequestContext[StreamBody]) -> Events:
    """Return the stream from its first event, and go on with it."""
    return event_stream(context.service.stream_buffers.get(context.caller, context.body.id).read(), Dialect.OPENAI)


async def cancel(context: RequestContext[StreamBody]) -> Reply:
    """End the stream's answer."""
    context.service.stream_buffers.get(context.caller, context.body.id).cancel()
    return Reply.json({"success": True})
