"""What llama.cpp's server tells of itself, and what of it Quire's has not."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import parse_qs

from ....params.sampling_defaults import chat_defaults
from ...body_types import Body
from ...failures import ApiError
from ...listener.replies import Reply
from ...listener.request_context import RequestContext
from ...worker.protocol import Ask
from ..adapter_scales import LoraScales, shown_adapters
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
    "slot_action",
    "slots",
]


async def apply_template(context: RequestContext[ChatBody]) -> Reply:
    """The prompt that a conversation is."""
    values = await context.prepared(_conversation, context)
    answer = await context.ask(context.engine(context.body.model), Ask(0, "render", values))
    context.note(answer["ignored"])
    return Reply.json({"prompt": answer["prompt"]})


def _conversation(context: RequestContext[ChatBody]) -> dict[str, Any]:
    body = context.body
    return {"messages": checked_messages(body.messages, context), "options": body.options(context)}


async def props(context: RequestContext[None]) -> Reply:
    """What is known of the model and the server."""
    service = context.service
    info, is_sleeping = service.info(context.opened_model)

    async def no_ids(text: str, add_special: bool, parse_special: bool) -> list[int]:
        return []  # no text is to be tokenized where nothing is asked for

    usual = await settings_of(CompletionBody(prompt=""), info, no_ids)
    return Reply.json(
        {
            "default_generation_settings": {"n_ctx": info.n_ctx, "params": usual.shown()},
            "chat_sampling": chat_defaults(info.advised),
            "total_slots": info.max_sequences,
            "model_alias": service.model,
            "model_path": service.model,
            "modalities": {"vision": False, "audio": False, "video": False},
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
    """A row for each sequence that can run at a time; ``?fail_on_no_slot=1`` asks for 503 when all are taken."""
    engine = context.engine(None)
    info, beat = engine.info, engine.beat
    # The figures can be a sign of life old: where no answer is awaited any more nothing runs, whatever they say.
    n_running = 0 if beat is None or not engine.n_active else beat.n_running
    query = parse_qs(context.scope["query_string"].decode("ascii", "replace"), max_num_fields=16)
    if query.get("fail_on_no_slot") == ["1"] and n_running >= info.max_sequences:
        raise ApiError(503, "no_slot", "a slot must be free but none is", retry_after_s=1)
    speculates = beat is not None and bool(beat.drafters)  # somebody has proposed tokens
    rows: list[dict[str, Any]] = [
        {"id": i, "n_ctx": info.n_ctx, "speculative": speculates, "is_processing": i < n_running}
        for i in range(info.max_sequences)
    ]
    return Reply.json(rows)


async def lora_adapters(context: RequestContext[None]) -> Reply:
    """The adapters of ``--lora``, whose scales stay as they are."""
    info, _ = context.service.info(context.opened_model)
    return Reply.json(shown_adapters(info))


async def set_props(context: RequestContext[None]) -> Reply:
    """Refused, as by llama.cpp's server without ``--props``."""
    raise ApiError(501, "not_supported", "properties must stay as they were at the start: /props only shows them")


class ScalesBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The scales of the adapters, as a list; one that is left out has 0."""

    adapters: LoraScales
    example: ClassVar[dict[str, object]] = {"adapters": []}
    model: Name | None = None


async def set_lora_adapters(context: RequestContext[ScalesBody]) -> Reply:
    """Multiply the adapters of a model by other numbers: it is opened again, where the server may change."""
    service, body = context.service, context.body
    name = service.name_of(body.model)
    info, _ = service.info(name)
    scales = [0.0] * len(info.adapters)
    for each in body.adapters:
        if each.id >= len(scales):
            text = f"no adapter has the id {each.id}: there are {len(scales)} (GET /lora-adapters)"
            raise ApiError(400, "invalid_value", text, "id")
        scales[each.id] = each.scale
    if scales != [scale for _, scale in info.adapters]:
        if not service.settings.allow_changes:
            text = (
                "scales of adapters are changed for everybody: start the server with --allow-changes, or set them there"
            )
            raise ApiError(403, "not_allowed", text)
        await service.library.close(name)
        before = service.adapter_scales.get(name)
        service.adapter_scales[name] = scales
        try:
            async with service.pinned(name, context.caller):
                pass
        except ApiError:  # as it was, when it is asked for again
            if before is None:
                del service.adapter_scales[name]
            else:
                service.adapter_scales[name] = before
            raise
    return Reply.json({"success": True})


async def slot_action(context: RequestContext[None]) -> Reply:
    """Refused, as by llama.cpp's server without ``--slot-save-path``."""
    raise ApiError(501, "not_supported", "slots must be left alone: what they hold is neither saved nor restored")
