"""LFM2-VL: small images keep their shape; large ones are cut into tiles, followed by a thumbnail.

transformers has this processor for torchvision only.  This file resamples with Pillow, like the others; pixels differ
by one level of 256 at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import LoadError
from ..decode import Rgb
from ..image_processor import ImageProcessor, Layout, ProcessedImage, View
from ..pixels import Normalization, patches_of, resize, tiles_of
from ..settings import Settings
from .tiling import nearest_grid

__all__ = ["Lfm2Vl", "open_lfm2_vl"]


@dataclass(frozen=True, kw_only=True)
class Lfm2Vl(ImageProcessor):
    """``tile``: side of a tile in pixels.  Images up to ``tolerance`` times the largest size are not cut."""

    normalization: Normalization
    patch_size: int
    merge: int
    tile: int
    min_tiles: int
    max_tiles: int
    has_thumbnail: bool
    min_tokens: int
    max_tokens: int
    tolerance: float
    resample: int

    def layout(self, height: int, width: int) -> Layout:
        rows, cols = self._grid(height, width)
        whole = self._size(height, width)
        sizes = [(self.tile, self.tile)] * (rows * cols) if rows else []
        if not rows or self.has_thumbnail:
            sizes.append(whole)
        views = tuple((height // self.patch_size, width // self.patch_size) for height, width in sizes)
        return Layout(views, rows, cols, tuple(-(-r // self.merge) * -(-c // self.merge) for r, c in views))

    def process(self, image: Rgb) -> ProcessedImage:
        height, width = image.shape[:2]
        layout = self.layout(height, width)
        rows, cols = layout.tile_rows, layout.tile_cols
        pictures: list[Rgb] = []
        if rows:
            pictures = tiles_of(resize(image, rows * self.tile, cols * self.tile, self.resample), self.tile, self.tile)
        if not rows or self.has_thumbnail:
            pictures.append(resize(image, *self._size(height, width), self.resample))
        views = (
            View(patches_of(self.normalization(picture), self.patch_size), *view)
            for picture, view in zip(pictures, layout.views, strict=True)
        )
        return ProcessedImage(tuple(views), layout)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles; 0 for an image that is not cut."""
        unit = self.patch_size * self.merge
        sides = [max(self.patch_size, round(side / unit) * unit) for side in (height, width)]
        if self.max_tiles == 1 or sides[0] * sides[1] <= self.max_tokens * unit**2 * self.tolerance:
            return 0, 0
        rows, cols = nearest_grid(height, width, (self.tile, self.tile), self.min_tiles, self.max_tiles)
        return (rows, cols) if rows * cols > 1 else (0, 0)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        unit = self.patch_size * self.merge
        rows, cols = max(1, round(height / unit)), max(1, round(width / unit))
        if rows * cols > self.max_tokens:
            shrink = math.sqrt(height * width / (self.max_tokens * unit**2))
            rows, cols = max(1, math.floor(height / shrink / unit)), max(1, math.floor(width / shrink / unit))
        elif rows * cols < self.min_tokens:
            enlarge = math.sqrt(self.min_tokens * unit**2 / (height * width))
            rows, cols = math.ceil(height * enlarge / unit), math.ceil(width * enlarge / unit)
        return rows * unit, cols * unit


def open_lfm2_vl(settings: Settings, patch_size: int, merge: int) -> Lfm2Vl:
    splits = settings.flag("do_image_splitting", True)
    least = settings.integer("min_tiles", 2, most=256) if splits else 1
    most = settings.integer("max_tiles", 10, most=256) if splits else 1
    tokens = settings.integer("min_image_tokens", 64), settings.integer("max_image_tokens", 256)
    if least > most or tokens[0] > tokens[1]:
        raise LoadError(f"image processor: no image has {least} to {most} tiles and {tokens[0]} to {tokens[1]} tokens")
    return Lfm2Vl(
        normalization=settings.normalization((0.5,) * 3, (0.5,) * 3),
        patch_size=patch_size,
        merge=merge,
        tile=settings.integer("tile_size", 512),
        min_tiles=least,
        max_tiles=most,
        has_thumbnail=settings.flag("use_thumbnail", True),
        min_tokens=tokens[0],
        max_tokens=tokens[1],
        tolerance=settings.number("max_pixels_tolerance", 2.0),
        resample=settings.resample(2),
    )
