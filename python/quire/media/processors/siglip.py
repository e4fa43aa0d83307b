"""SigLIP: every image becomes one square.  SigLIP 2: images keep their shape, within a number of patches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..settings import Settings
from .one_view import OneView, Square

__all__ = ["open_siglip", "open_siglip2"]

HALF = (0.5,) * 3
# The search for the scale, as in the reference: where it ends decides between two sizes.
PRECISION, LARGEST = 1e-5, 100.0


@dataclass(frozen=True, kw_only=True)
class Patches(OneView):
    """``most``: patches of an image, which is enlarged or shrunk to have almost as many."""

    most: int

    def size(self, height: int, width: int) -> tuple[int, int]:
        least, largest = PRECISION / 10, LARGEST
        while largest - least >= PRECISION:
            scale = (least + largest) / 2
            rows, cols = self._grid_at(scale, height, width)
            if rows * cols <= self.most:
                least = scale
            else:
                largest = scale
        rows, cols = self._grid_at(least, height, width)
        return rows * self.patch_size, cols * self.patch_size

    def _grid_at(self, scale: float, height: int, width: int) -> tuple[int, int]:
        rows, cols = (max(1, math.ceil(side * scale / self.patch_size)) for side in (height, width))
        return rows, cols


def open_siglip(settings: Settings, patch_size: int, merge: int) -> Square:
    return Square(
        normalization=settings.normalization(HALF, HALF),
        patch_size=patch_size,
        merge=merge,
        height=settings.side("size", "height", 224) or 224,
        width=settings.side("size", "width", 224) or 224,
        resample=settings.resample(3),
    )


def open_siglip2(settings: Settings, patch_size: int, merge: int) -> Patches:
    return Patches(
        normalization=settings.normalization(HALF, HALF),
        patch_size=patch_size,
        merge=merge,
        resample=settings.resample(2),
        most=settings.integer("max_num_patches", 256),
    )
