"""Pixtral, Mistral Small 3.1 and Ministral 3: shrunk to a longest side, then enlarged to whole patches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..pixels import CLIP_MEAN, CLIP_STD
from ..settings import Settings
from .one_view import OneView

__all__ = ["Pixtral", "open_pixtral"]


@dataclass(frozen=True, kw_only=True)
class Pixtral(OneView):
    """``unit`` is the side, in pixels, of which the final sides are multiples."""

    unit: int
    longest_edge: int

    def size(self, height: int, width: int) -> tuple[int, int]:
        ratio = max(height, width) / self.longest_edge
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        # A side that shrinks to 0 pixels still gets one patch.
        rows, cols = max(1, -(-height // self.unit)), max(1, -(-width // self.unit))
        return rows * self.unit, cols * self.unit


def open_pixtral(settings: Settings, patch_size: int, merge: int) -> Pixtral:
    # Mistral 3's checkpoints have the patch size here and the merge size in processor_config.json; transformers resizes
    # to multiples of their product.
    unit = settings.side("patch_size", "height", patch_size) or patch_size
    return Pixtral(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        merge=merge,
        unit=unit * merge if unit == patch_size else unit,
        longest_edge=settings.side("size", "longest_edge", 1024) or 1024,
        resample=settings.resample(3),
    )
