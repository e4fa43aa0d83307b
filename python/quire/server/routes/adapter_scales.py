"""How a model's adapters are shown, and which scales a request may give."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from ...params.rules import LORA_SCALE_MAX
from ..failures import ApiError
from ..worker.protocol import ModelInfo

__all__ = ["AdapterScales", "LoraScale", "LoraScales", "check_id", "chosen_scales", "shown_adapters"]


class LoraScale(msgspec.Struct, forbid_unknown_fields=True):
    """An adapter's scale as llama.cpp's clients send it.  ``id`` is its position among the ``--lora`` options."""

    id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    scale: Annotated[float, Meta(ge=-LORA_SCALE_MAX, le=LORA_SCALE_MAX)] = 0.0


AdapterScales: TypeAlias = tuple[tuple[str, float], ...]
LoraScales: TypeAlias = Annotated[list[LoraScale], Meta(max_length=64)]


def shown_adapters(info: ModelInfo) -> list[dict[str, Any]]:
    """Return a model's adapters and their scales, for requests that choose none, as llama.cpp's server shows them."""
    return [{"id": i, "path": name, "scale": scale} for i, (name, scale) in enumerate(info.adapters)]


def chosen_scales(wanted: list[LoraScale], info: ModelInfo) -> AdapterScales | None:
    """Return the adapters of a request by name, None if it chooses none.  An adapter that is not listed has scale 0.

    ApiError 400 for an unknown adapter, and for scales other than the model's if these are fixed.
    """
    if not wanted:
        return None
    given = {each.id: each.scale for each in wanted if each.scale}
    if info.loras:
        for each in wanted:
            check_id(each, info)
        return tuple((info.loras[i], scale) for i, scale in given.items())
    if given != {i: scale for i, (_, scale) in enumerate(info.adapters) if scale}:
        text = (
            "unsupported scales in lora: they are fixed for all requests by --lora (leave the field out, or send the"
            " scales of GET /lora-adapters)"
        )
        raise ApiError(400, "unsupported_parameter", text, "lora")
    return None


def check_id(each: LoraScale, info: ModelInfo) -> None:
    """Raise ApiError 400 for an adapter that the model does not have."""
    if each.id >= len(info.adapters):
        text = f"no adapter has the id {each.id}: there are {len(info.adapters)} (GET /lora-adapters)"
        raise ApiError(400, "invalid_value", text, "lora")
