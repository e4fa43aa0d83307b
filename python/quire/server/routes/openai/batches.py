"""OpenAI's files and batches: requests in a file that the server answers in the background."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import Meta

from ...body_types import Body
from ...failures import ApiError
from ...listener.replies import Reply
from ...listener.request_context import RequestContext
from ...service.batch_store import BatchWish
from ...service.batches import Batches

__all__ = [
    "BatchBody", "FileBody", "add_batch", "add_file", "batch", "batches", "cancel_batch", "file", "file_content",
    "files", "remove_file",
]  # fmt: skip

Id = Annotated[str, Meta(min_length=1, max_length=64)]
T = TypeVar("T")
Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]
_MOST_SHOWN = 100


class FileBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A form with a file."""

    file: bytes
    file_name: Annotated[str, Meta(max_length=255)] = "file"
    purpose: Literal["batch"] = "batch"
    hints: ClassVar[dict[str, tuple[object, ...]]] = {"expires_after": ()}


class BatchBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A batch: ``endpoint`` is the route of all its requests."""

    input_file_id: Id
    endpoint: Annotated[str, Meta(max_length=64)]
    completion_window: Annotated[str, Meta(max_length=16)] = "24h"
    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None
    hints: ClassVar[dict[str, tuple[object, ...]]] = {"output_expires_after": ()}


async def add_file(context: RequestContext[FileBody]) -> Reply:
    """Store a file."""
    body, kept = context.body, _batches(context)
    stored = await kept.call(kept.store.add_file, context.caller, body.file_name, body.purpose, body.file)
    return Reply.json(stored.shown())


async def files(context: RequestContext[None]) -> Reply:
    """List the caller's files, the newest first."""
    kept = _batches(context)
    return _page([file.shown() for file in await kept.call(kept.store.files, context.caller)])


async def file(context: RequestContext[None]) -> Reply:
    """Describe a file."""
    kept = _batches(context)
    return Reply.json((await kept.call(kept.store.file, context.caller, context.path("id"))).shown())


async def file_content(context: RequestContext[None]) -> Reply:
    """Return what is in a file."""
    kept = _batches(context)
    content = await kept.call(kept.store.content, context.caller, context.path("id"))
    return Reply(content, media_type=b"application/octet-stream")


async def remove_file(context: RequestContext[None]) -> Reply:
    """Delete a file."""
    kept, id_ = _batches(context), context.path("id")
    await kept.call(kept.store.remove_file, context.caller, id_)
    return Reply.json({"id": id_, "object": "file", "deleted": True})


async def add_batch(context: RequestContext[BatchBody]) -> Reply:
    """Accept a batch."""
    body = context.body
    wish = BatchWish(body.input_file_id, body.endpoint, body.completion_window, body.metadata)
    added = await _batches(context).add(context.caller, wish)
    return Reply.json(added.shown())


async def batches(context: RequestContext[None]) -> Reply:
    """List the caller's batches, the newest first."""
    kept = _batches(context)
    return _page([batch.shown() for batch in await kept.call(kept.store.batches, context.caller)])


async def batch(context: RequestContext[None]) -> Reply:
    """Describe a batch."""
    kept = _batches(context)
    return Reply.json((await kept.call(kept.store.batch, context.caller, context.path("id"))).shown())


async def cancel_batch(context: RequestContext[None]) -> Reply:
    """Cancel a batch; its answers so far stay."""
    return Reply.json((await _batches(context).cancel(context.caller, context.path("id"))).shown())


def _page(items: list[dict[str, Any]]) -> Reply:
    shown = items[:_MOST_SHOWN]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return Reply.json({"object": "list", "data": shown, **ends, "has_more": len(items) > len(shown)})


def _batches(context: RequestContext[Any]) -> Batches:
    found = context.service.batches
    if found is None:
        text = "this server keeps no files and batches: start it with --state-dir DIR"
        raise ApiError(501, "no_state", text)
    return found
