"""Idefics3 and SmolVLM: an image is enlarged to whole tiles and cut; a thumbnail of all of it follows the tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..decode import Rgb
from ..image_processor import ImageProcessor, Layout, ProcessedImage, View
from ..pixels import Normalization, patches_of, resize, tiles_of
from ..settings import Settings

__all__ = ["Idefics3", "open_idefics3"]

# The longest side, in pixels, of the image from which tiles are cut.
MAX_SIDE = 4096


@dataclass(frozen=True, kw_only=True)
class Idefics3(ImageProcessor):
    """``longest_edge`` and ``tile`` are in pixels."""

    normalization: Normalization
    patch_size: int
    merge: int
    longest_edge: int
    tile: int
    splits: bool
    resample: int

    def layout(self, height: int, width: int) -> Layout:
        rows, cols = self._tiles(height, width)
        side = self.tile // self.patch_size
        n_views = rows * cols + 1
        return Layout(((side, side),) * n_views, rows, cols, ((side // self.merge) ** 2,) * n_views)

    def process(self, image: Rgb) -> ProcessedImage:
        layout = self.layout(*image.shape[:2])
        image = resize(image, *self._resized(*image.shape[:2]), self.resample)
        tiles: list[Rgb] = []
        if self.splits:
            image = resize(image, *self._whole_tiles(*image.shape[:2]), self.resample)
        if layout.tile_rows:
            tiles = tiles_of(image, self.tile, self.tile)
        if layout.tile_rows or not self.splits:
            image = resize(image, self.tile, self.tile, self.resample)
        side = self.tile // self.patch_size
        views = (View(patches_of(self.normalization(tile), self.patch_size), side, side) for tile in (*tiles, image))
        return ProcessedImage(tuple(views), layout)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        return _within(height, width, self.longest_edge)

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tiles; 0 for an image that is one tile or is not cut."""
        if not self.splits:
            return 0, 0
        height, width = self._whole_tiles(*self._resized(height, width))
        rows, cols = height // self.tile, width // self.tile
        return (rows, cols) if rows * cols > 1 else (0, 0)

    def _whole_tiles(self, height: int, width: int) -> tuple[int, int]:
        """Return the size rounded up to whole tiles; the shorter side follows from the longer one, rounded up first."""
        tile, ratio = self.tile, width / height
        if width >= height:
            width = math.ceil(width / tile) * tile
            height = math.ceil(int(width / ratio) / tile) * tile
        else:
            height = math.ceil(height / tile) * tile
            width = math.ceil(int(height * ratio) / tile) * tile
        return height, width


def _within(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return the size whose longer side is ``longest``, then limited to ``MAX_SIDE``; the other side is made even."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > MAX_SIDE:
        width, height = MAX_SIDE, int(MAX_SIDE / ratio)
    elif height > width and height > MAX_SIDE:
        height, width = MAX_SIDE, int(MAX_SIDE * ratio)
    return max(height, 1), max(width, 1)


def open_idefics3(settings: Settings, patch_size: int, merge: int) -> Idefics3:
    tile = settings.side("max_image_size", "longest_edge", 364) or 364
    return Idefics3(
        normalization=settings.normalization((0.5,) * 3, (0.5,) * 3),
        patch_size=patch_size,
        merge=merge,
        longest_edge=settings.side("size", "longest_edge", 4 * 364) or 4 * 364,
        tile=tile,
        splits=settings.flag("do_image_splitting", True),
        resample=settings.resample(1),
    )
