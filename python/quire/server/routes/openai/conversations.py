"""``/v1/conversations``: items that responses continue and add to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from msgspec import Meta

from ...body_types import Body
from ...failures import ApiError
from ...listener.replies import Reply
from ...listener.request_context import RequestContext
from ...service.caller import Caller
from ...service.conversation_store import ConversationStore
from .response_items import messages_of
from .tool_names import ToolNames

__all__ = [
    "ConversationBody", "ItemsBody", "MetadataBody", "add_items", "create", "delete", "item", "items", "new_items",
    "remove_item", "show", "stored", "update",
]  # fmt: skip

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
Items = list[dict[str, Any]]
P = ParamSpec("P")
T = TypeVar("T")


class ConversationBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A conversation to begin, perhaps with items in the format of a response's ``input``."""

    items: Annotated[Items, Meta(max_length=20)] = []
    metadata: Metadata = {}


class MetadataBody(Body, kw_only=True, forbid_unknown_fields=True):
    """New metadata, in place of the old."""

    metadata: Metadata


class ItemsBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Items to add to the end of a conversation."""

    items: Annotated[Items, Meta(min_length=1, max_length=20)]


async def stored(
    context: RequestContext[Any], verb: Callable[Concatenate[ConversationStore, Caller, P], T], *args: P.args,
    **kwargs: P.kwargs,
) -> T:  # fmt: skip
    """Call a method of the store of conversations for the caller."""
    kept = context.service.conversations
    store = await kept.opened()
    return await kept.call(verb, store, context.caller, *args, **kwargs)


async def create(context: RequestContext[ConversationBody]) -> Reply:
    """Begin a conversation."""
    given = await context.prepared(_checked, context.body.items)
    return Reply.json(await stored(context, ConversationStore.create, given, context.body.metadata))


async def show(context: RequestContext[None]) -> Reply:
    """Describe a conversation."""
    return Reply.json(await stored(context, ConversationStore.get, context.path("id")))


async def update(context: RequestContext[MetadataBody]) -> Reply:
    """Replace a conversation's metadata."""
    return Reply.json(await stored(context, ConversationStore.update, context.path("id"), context.body.metadata))


async def delete(context: RequestContext[None]) -> Reply:
    """Delete a conversation with its items."""
    id_ = context.path("id")
    await stored(context, ConversationStore.remove, id_)
    return Reply.json({"id": id_, "object": "conversation.deleted", "deleted": True})


async def items(context: RequestContext[None]) -> Reply:
    """List a conversation's items: ``?order=asc|desc``, ``?limit=`` up to 100, and ``?after=`` an item's id."""
    query = context.query()
    order, limit = query.get("order", ["desc"])[-1], query.get("limit", ["20"])[-1]
    if order not in ("asc", "desc"):
        raise ApiError(400, "invalid_value", f"invalid order {order!r:.40}: expected asc or desc", "order")
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= 100):
        raise ApiError(400, "invalid_value", f"invalid limit {limit!r:.40}: expected 1 to 100", "limit")
    found = await stored(context, ConversationStore.items, context.path("id"))
    if order == "desc":
        found.reverse()
    if (after := query.get("after", [None])[-1]) is not None:
        places = [i for i, item in enumerate(found) if item["id"] == after]
        if not places:
            raise ApiError(400, "invalid_value", f"no item {after!r:.80} in the conversation", "after")
        found = found[places[0] + 1 :]
    return Reply.json(_page(found[: int(limit)], len(found) > int(limit)))


async def add_items(context: RequestContext[ItemsBody]) -> Reply:
    """Add items to the end of a conversation."""
    given = await context.prepared(_checked, context.body.items)
    return Reply.json(_page(await stored(context, ConversationStore.add, context.path("id"), given), more=False))


async def item(context: RequestContext[None]) -> Reply:
    """Return an item."""
    return Reply.json(await stored(context, ConversationStore.item, context.path("id"), context.path("item")))


async def remove_item(context: RequestContext[None]) -> Reply:
    """Delete an item, and return the conversation."""
    id_ = context.path("id")
    await stored(context, ConversationStore.remove_item, id_, context.path("item"))
    return Reply.json(await stored(context, ConversationStore.get, id_))


def _page(shown: Items, more: bool) -> dict[str, Any]:
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return {"object": "list", "data": shown, **ends, "has_more": more}


def _checked(given: Items) -> Items:
    """Return items as they are stored.  ApiError 400 for what no response could read."""
    messages_of(given, ToolNames([]), _left_out)
    return new_items(given)


def _left_out(place: str) -> None:
    raise ApiError(400, "unsupported_parameter", f"{place} is not supported: leave it out", place)


def new_items(given: str | Items) -> Items:
    """Return a response's input as items that a conversation keeps; the store gives them ids."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_stored_item(item) for item in given]


def _stored_item(item: dict[str, Any]) -> dict[str, Any]:
    kept = {"type": "message", "status": "completed", **{name: item[name] for name in item if name != "id"}}
    if kept["type"] == "message" and isinstance(kept.get("content"), str):
        kind = "output_text" if kept.get("role") == "assistant" else "input_text"
        part: dict[str, Any] = {"type": kind, "text": kept["content"]}
        kept["content"] = [{**part, "annotations": []} if kind == "output_text" else part]
    return kept
