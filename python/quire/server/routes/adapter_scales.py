"""How a model's adapters are shown, and which scales a request may give."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from ..failures import ApiError
from ..worker.protocol import ModelInfo

__all__ = ["LoraScale", "LoraScales", "check_scales", "shown_adapters"]


class LoraScale(msgspec.Struct, forbid_unknown_fields=True):
    """An adapter's scale as llama.cpp's clients send it.  ``id`` is its position among the ``--lora`` options."""

    id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    scale: float = 0.0


LoraScales: TypeAlias = Annotated[list[LoraScale], Meta(max_length=64)]


def shown_adapters(info: ModelInfo) -> list[dict[str, Any]]:
    """Return a model's adapters and their scales, which apply to all requests, as llama.cpp's server shows them."""
    return [{"id": i, "path": name, "scale": scale} for i, (name, scale) in enumerate(info.adapters)]


def check_scales(wanted: list[LoraScale], info: ModelInfo) -> None:
    """Raise ApiError 400 for scales that differ from the model's.  An adapter that is not listed counts as scale 0."""
    given = {each.id: each.scale for each in wanted if each.scale}
    if wanted and given != {i: scale for i, (_, scale) in enumerate(info.adapters) if scale}:
        text = (
            "unsupported scales in lora: they are fixed for all requests by --lora (leave the field out, or send the"
            " scales of GET /lora-adapters)"
        )
        raise ApiError(400, "unsupported_parameter", text, "lora")
