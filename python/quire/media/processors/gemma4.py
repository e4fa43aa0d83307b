"""Gemma 4: an image is resized to the largest size with its aspect ratio that the token budget allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import LoadError, RequestError
from ..pixels import Floats, patches_of
from ..settings import Settings
from .one_view import OneView

__all__ = ["Gemma4", "open_gemma4"]

BUDGETS = (70, 140, 280, 560, 1120)


@dataclass(frozen=True, kw_only=True)
class Gemma4(OneView):
    """``max_tokens`` bounds the squares of ``merge`` x ``merge`` patches."""

    max_tokens: int

    def patches(self, pixels: Floats) -> Floats:
        return patches_of(pixels, self.patch_size, order="hwc")

    def size(self, height: int, width: int) -> tuple[int, int]:
        side = self.patch_size * self.merge
        pixels = self.max_tokens * self.merge**2 * self.patch_size**2
        scale = math.sqrt(pixels / (height * width))
        rows, cols = math.floor(scale * height / side), math.floor(scale * width / side)
        # An image of extreme shape gets one row or column; its other side is limited by the budget.
        if rows == 0:
            rows, cols = 1, min(width // height, self.max_tokens)
        elif cols == 0:
            rows, cols = min(height // width, self.max_tokens), 1
        if rows * cols * side * side > pixels or rows * cols == 0:
            raise RequestError(
                f"the image has {width}x{height} pixels: this shape does not fit into {self.max_tokens} tokens"
            )
        return rows * side, cols * side


def open_gemma4(settings: Settings, patch_size: int, merge: int) -> Gemma4:
    found = settings.integer("patch_size", patch_size), settings.integer("pooling_kernel_size", merge)
    if found != (patch_size, merge):
        raise LoadError(
            f"image processor: patch and pooling size {found} differ from the encoder's {(patch_size, merge)}"
        )
    max_tokens = settings.integer("max_soft_tokens", 280)
    if max_tokens not in BUDGETS:
        raise LoadError(f"image processor: unsupported max_soft_tokens {max_tokens}: expected one of {BUDGETS}")
    return Gemma4(
        normalization=settings.normalization((0.0,) * 3, (1.0,) * 3, normalizes=False),
        patch_size=patch_size,
        merge=merge,
        max_tokens=max_tokens,
        resample=settings.resample(3),
    )
