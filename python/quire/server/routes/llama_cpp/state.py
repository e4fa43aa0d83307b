"""The routes of llama.cpp's server about its state, and those that Quire does not support."""

from __future__ import annotations

from typing import Any, ClassVar

from ....params.sampling_defaults import chat_defaults
from ...body_types import Body
from ...failures import ApiError
from ...listener.replies import Reply
from ...listener.request_context import RequestContext
from ...worker.protocol import Ask
from ..adapter_scales import LoraScales, check_id, shown_adapters
from ..adapters import change_adapters
from ..fields import Name
from ..openai.chat_fields import ChatBody, checked_messages
from .fields import CompletionBody, settings_of

__all__ = [
    "ScalesBody",
    "apply_template",
    "lora_adapters",
    "props",
    "set_lora_adapters",
    "set_props",
    "slots",
]

_MODALITIES = (("vision", "image"), ("audio", "audio"), ("video", "video"))


async def apply_template(context: RequestContext[ChatBody]) -> Reply:
    """Render a conversation as a prompt."""
    values = await context.prepared(_conversation, context)
    values["messages"] = await context.with_images(values["messages"])
    answer = await context.ask(context.engine(context.body.model), Ask(0, "render", values))
    context.note(answer["ignored"])
    return Reply.json({"prompt": answer["prompt"]})


def _conversation(context: RequestContext[ChatBody]) -> dict[str, Any]:
    body = context.body
    return {"messages": checked_messages(body.messages, context), "options": body.options(context)}


async def props(context: RequestContext[None]) -> Reply:
    """Return properties of the model and the server."""
    service = context.service
    info, is_sleeping = service.info(context.opened_model)

    async def no_ids(text: str, add_special: bool, parse_special: bool) -> list[int]:
        return []  # the defaults contain no text to tokenize

    usual = await settings_of(CompletionBody(prompt=""), info, no_ids)
    return Reply.json(
        {
            "default_generation_settings": {"n_ctx": info.n_ctx, "params": usual.shown()},
            "chat_sampling": chat_defaults(info.advised),
            "total_slots": info.max_sequences,
            "model_alias": service.model,
            "model_path": service.model,
            "modalities": {name: kind in info.media for name, kind in _MODALITIES},
            "media_marker": service.media_marker,
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template": info.chat_template or "",
            "bos_token": info.bos,
            "eos_token": info.eos,
            "build_info": f"quire {service.version}",
            "is_sleeping": is_sleeping,
        }
    )


async def slots(context: RequestContext[None]) -> Reply:
    """List one row per sequence that can run concurrently; ``?fail_on_no_slot=1`` returns 503 if all are busy."""
    engine = context.engine(None)
    info, beat = engine.info, engine.beat
    # The heartbeat may be out of date: without requests in flight nothing runs, whatever it says.
    n_running = 0 if beat is None or not engine.n_active else beat.n_running
    query = context.query()
    if query.get("fail_on_no_slot") == ["1"] and n_running >= info.max_sequences:
        raise ApiError(503, "no_slot", "no free slot", retry_after_s=1)
    speculates = beat is not None and bool(beat.drafters)  # a drafter has proposed tokens
    rows: list[dict[str, Any]] = [
        {"id": i, "n_ctx": info.n_ctx, "speculative": speculates, "is_processing": i < n_running}
        for i in range(info.max_sequences)
    ]
    return Reply.json(rows)


async def lora_adapters(context: RequestContext[None]) -> Reply:
    """Return the adapters of ``--lora`` and their scales."""
    info, _ = context.service.info(context.opened_model)
    return Reply.json(shown_adapters(info))


async def set_props(context: RequestContext[None]) -> Reply:
    """Reject the request, like llama.cpp's server without ``--props``."""
    raise ApiError(501, "not_supported", "properties cannot be changed while the server runs")


class ScalesBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The scales of the adapters; an adapter that is not listed gets 0."""

    adapters: LoraScales
    example: ClassVar[dict[str, object]] = {"adapters": []}
    model: Name | None = None


async def set_lora_adapters(context: RequestContext[ScalesBody]) -> Reply:
    """Set the scales of a model's adapters, which reloads it if they are fixed; needs --allow-changes."""
    service, body = context.service, context.body
    name = service.name_of(body.model)
    info, _ = service.info(name)
    scales = [0.0] * len(info.adapters)
    for each in body.adapters:
        check_id(each, info)
        scales[each.id] = each.scale
    if scales != [scale for _, scale in info.adapters]:
        if not service.settings.allow_changes:
            text = "adapter scales apply to all clients: set them with --lora, or start the server with --allow-changes"
            raise ApiError(403, "not_allowed", text)
        if info.loras:
            await change_adapters(
                context, name, "scale_adapters", {"scales": dict(zip(info.loras, scales, strict=True))}
            )
            return Reply.json({"success": True})
        await service.library.close(name)
        before = service.adapter_scales.get(name)
        service.adapter_scales[name] = scales
        try:
            async with service.pinned(name, context.caller):
                pass
        except ApiError:  # restore the scales for the next time it is loaded
            if before is None:
                del service.adapter_scales[name]
            else:
                service.adapter_scales[name] = before
            raise
    return Reply.json({"success": True})
