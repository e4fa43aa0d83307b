"""The adapters of a model: how they are shown, and what of their scales a request may say."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from ..failures import ApiError
from ..worker.protocol import ModelInfo

__all__ = ["LoraScale", "LoraScales", "check_scales", "shown_adapters"]


class LoraScale(msgspec.Struct, forbid_unknown_fields=True):
    """What an adapter is multiplied by, as llama.cpp's clients ask for it.  ``id``: its place among ``--lora``."""

    id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    scale: float = 0.0


LoraScales: TypeAlias = Annotated[list[LoraScale], Meta(max_length=64)]


def shown_adapters(info: ModelInfo) -> list[dict[str, Any]]:
    """The adapters of a model and their scales, which hold for all requests, as llama.cpp's server shows them."""
    return [{"id": i, "path": name, "scale": scale} for i, (name, scale) in enumerate(info.adapters)]


def check_scales(wanted: list[LoraScale], info: ModelInfo) -> None:
    """ApiError 400 for scales that are not those of all requests; an adapter that is not listed would have 0."""
    given = {each.id: each.scale for each in wanted if each.scale}
    if wanted and given != {i: scale for i, (_, scale) in enumerate(info.adapters) if scale}:
        text = (
            "lora must be left out, or have the scales of GET /lora-adapters, but has others: those of --lora hold for"
            " all requests"
        )
        raise ApiError(400, "unsupported_parameter", text, "lora")
