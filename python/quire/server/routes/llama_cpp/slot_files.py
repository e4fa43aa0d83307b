"""llama.cpp's ``POST /slots/{id}?action=save|restore|erase``."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from msgspec import Meta

from ...body_types import TimedBody
from ...failures import ApiError
from ...listener.replies import Reply
from ...listener.request_context import RequestContext
from ...service.slots import SlotText
from ...worker.engine_client import EngineClient
from ...worker.protocol import Generate
from ..fields import Name, hints_of
from ..saved import blocks, computed, saved_histories

__all__ = ["SlotBody", "slot_action"]


class SlotBody(TimedBody, kw_only=True, forbid_unknown_fields=True):
    """The name of a file below ``--slot-save-path``; ``erase`` needs none."""

    filename: Annotated[str, Meta(max_length=255)] = ""
    model: Name | None = None


async def slot_action(context: RequestContext[SlotBody]) -> Reply:
    """Save, restore or erase the text of a slot.  Restoring reads it into the cache."""
    saved_histories(context)
    engine, slot = context.engine(context.body.model), _slot(context)
    query = context.query()
    action = query.get("action", [""])[-1]
    if action == "erase":
        n_erased = context.service.slots.erase(context.caller, slot)
        return Reply.json({"id_slot": slot, "n_erased": n_erased})
    if action == "save":
        return await _save(context, engine, slot)
    if action == "restore":
        return await _restore(context, engine, slot)
    raise ApiError(400, "invalid_value", f"invalid action {action!r:.40}: expected save, restore or erase", "action")


def _slot(context: RequestContext[SlotBody]) -> int:
    id_, n = context.path("id"), context.engine(context.body.model).info.max_sequences
    if not (id_.isascii() and id_.isdecimal() and len(id_) < 10 and int(id_) < n):
        raise ApiError(400, "invalid_value", f"invalid slot {id_!r:.40}: expected 0 to {n - 1}", "id_slot")
    return int(id_)


async def _save(context: RequestContext[SlotBody], engine: EngineClient, slot: int) -> Reply:
    begun_s, name = time.monotonic(), context.body.filename
    text = context.service.slots.get(context.caller, slot)
    ids = text.token_ids if text is not None and text.model == context.model else []
    history = {"kind": "slot", "model": context.model, "n_vocab": engine.info.n_vocab, "token_ids": ids}
    n_written = await asyncio.to_thread(saved_histories(context).save, context.caller, name, history)
    if ids:
        await blocks(context, engine, "save_blocks", name=name, history={"token_ids": ids})
    times = {"save_ms": round(1000 * (time.monotonic() - begun_s), 3)}
    return Reply.json(
        {"id_slot": slot, "filename": name, "n_saved": len(ids), "n_written": n_written, "timings": times}
    )


async def _restore(context: RequestContext[SlotBody], engine: EngineClient, slot: int) -> Reply:
    begun_s, name, mine = time.monotonic(), context.body.filename, (context.model, engine.info.n_vocab)
    files = saved_histories(context)
    history, n_read = await asyncio.to_thread(
        files.load,
        context.caller,
        name,
        lambda found: "token_ids" in found and (found.get("model"), found.get("n_vocab")) == mine,
    )
    ids = history["token_ids"]
    if ids:
        await blocks(context, engine, "restore_blocks", name=name, history={"token_ids": ids})
        work = Generate(0, ids, {"max_tokens": 1, "temperature": 0.0}, hints_of(context.caller))
        await computed(context, engine, work)
    context.service.slots.put(context.caller, slot, SlotText(context.model, ids))
    times = {"restore_ms": round(1000 * (time.monotonic() - begun_s), 3)}
    return Reply.json({"id_slot": slot, "filename": name, "n_restored": len(ids), "n_read": n_read, "timings": times})
