"""Kimi K2.5: images keep their shape, are shrunk to a number of patches, and padded to whole tokens.

transformers has this processor for torchvision only.  This file resamples with Pillow, like the others; pixels differ a
little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..decode import Rgb
from ..image_processor import ProcessedImage
from ..pixels import resize
from ..settings import Settings
from .one_view import OneView

__all__ = ["Kimi", "open_kimi"]


@dataclass(frozen=True, kw_only=True)
class Kimi(OneView):
    """``max_patches``: before padding; ``max_side``: patches along a side."""

    max_patches: int
    max_side: int

    def size(self, height: int, width: int) -> tuple[int, int]:
        unit = self.patch_size * self.merge
        rows, cols = self._shrunk(height, width)
        return -(-rows // unit) * unit, -(-cols // unit) * unit

    def process(self, image: Rgb) -> ProcessedImage:
        height, width = image.shape[:2]
        size, inner = self.size(height, width), self._shrunk(height, width)
        padded = np.zeros((*size, 3), np.uint8)
        padded[: inner[0], : inner[1]] = resize(image, *inner, self.resample)
        return self.view(padded)

    def _shrunk(self, height: int, width: int) -> tuple[int, int]:
        n_patches = max(1, height // self.patch_size) * max(1, width // self.patch_size)
        longest = self.max_side * self.patch_size
        scale = min(1.0, math.sqrt(self.max_patches / n_patches), longest / height, longest / width)
        return min(max(1, int(height * scale)), longest), min(max(1, int(width * scale)), longest)


def open_kimi(settings: Settings, patch_size: int, merge: int) -> Kimi:
    return Kimi(
        normalization=settings.normalization((0.5,) * 3, (0.5,) * 3),
        patch_size=patch_size,
        merge=merge,
        resample=settings.resample(3),
        max_patches=settings.integer("max_patches", 16384),
        max_side=settings.side("size", "max_height", 512) or 512,
    )
