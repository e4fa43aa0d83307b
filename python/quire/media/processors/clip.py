"""CLIP and LLaVA: the shorter side is resized, and the middle is cut out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..decode import Rgb
from ..image_processor import ProcessedImage
from ..pixels import CLIP_MEAN, CLIP_STD, crop_center, resize
from ..settings import Settings
from .one_view import Square

__all__ = ["Clip", "open_clip"]


@dataclass(frozen=True, kw_only=True)
class Clip(Square):
    """``pads``: pad to a square with the mean colour first.  ``shortest_edge`` of 0: resize to ``resized`` instead."""

    shortest_edge: int
    resized: tuple[int, int]
    crops: bool
    pads: bool

    def process(self, image: Rgb) -> ProcessedImage:
        if self.pads:
            image = self._padded(image)
        image = resize(image, *self._size(*image.shape[:2]), self.resample)
        if self.crops:
            image = crop_center(image, self.height, self.width)
        return self.view(image)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        edge = self.shortest_edge
        if not edge:
            return self.resized
        # Multiply before dividing, as the reference does: the other order changes some sizes by one.
        return (edge, int(edge * width / height)) if height <= width else (int(edge * height / width), edge)

    def _padded(self, image: Rgb) -> Rgb:
        height, width = image.shape[:2]
        side = max(height, width)
        square = np.empty((side, side, 3), np.uint8)
        square[:] = [int(mean * 255) for mean in self.normalization.mean]
        top, left = (side - height) // 2, (side - width) // 2
        square[top : top + height, left : left + width] = image
        return square


def open_clip(settings: Settings, patch_size: int, merge: int) -> Clip:
    edge = settings.side("size", "shortest_edge")
    resized = settings.side("size", "height", edge or 224) or 224, settings.side("size", "width", edge or 224) or 224
    crops = settings.flag("do_center_crop", True)
    crop = settings.side("crop_size", "height", 224) or 224, settings.side("crop_size", "width", 224) or 224
    if not crops and edge:
        # Without cropping, only padding to a square gives all images the same size.
        settings.require("do_pad", True)
        resized = edge, edge
    height, width = crop if crops else resized
    return Clip(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        merge=merge,
        height=height,
        width=width,
        resample=settings.resample(3),
        shortest_edge=edge or 0,
        resized=resized,
        crops=crops,
        pads=settings.flag("do_pad", False),
    )
