"""LLaVA 1.6: the whole image, and tiles of it, padded to one of several grids."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...errors import LoadError
from ..decode import Rgb
from ..image_processor import ImageProcessor, Layout, ProcessedImage, View
from ..pixels import CLIP_MEAN, CLIP_STD, Normalization, patches_of, resize, tiles_of
from ..settings import Settings

__all__ = ["LlavaNext", "open_llava_next"]

GRIDS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


@dataclass(frozen=True, kw_only=True)
class LlavaNext(ImageProcessor):
    """``tile``: a side in pixels; ``grids``: heights and widths that images are padded to, multiples of it."""

    normalization: Normalization
    patch_size: int
    tile: int
    grids: tuple[tuple[int, int], ...]
    resample: int

    def layout(self, height: int, width: int) -> Layout:
        side = self.tile // self.patch_size
        tile_rows, tile_cols = (edge // self.tile for edge in self._best(height, width))
        kept = _unpadded(height, width, tile_rows * side, tile_cols * side)
        n_tiles = tile_rows * tile_cols
        # Each row of patches ends with a token of its own.
        n_tokens = (side**2, kept[0] * (kept[1] + 1), *((0,) * (n_tiles - 1)))
        return Layout(((side, side),) * (1 + n_tiles), tile_rows, tile_cols, n_tokens, kept)

    def process(self, image: Rgb) -> ProcessedImage:
        layout = self.layout(*image.shape[:2])
        pictures = [
            resize(image, self.tile, self.tile, self.resample), *tiles_of(self._padded(image), self.tile, self.tile),
        ]  # fmt: skip
        views = (
            View(patches_of(self.normalization(picture), self.patch_size), *view)
            for picture, view in zip(pictures, layout.views, strict=True)
        )
        return ProcessedImage(tuple(views), layout)

    def _best(self, height: int, width: int) -> tuple[int, int]:
        """Return the grid on which most pixels of an image fit, and of equal ones the smallest."""

        def rank(grid: tuple[int, int]) -> tuple[int, int]:
            scale = min(grid[1] / width, grid[0] / height)
            used = min(int(width * scale) * int(height * scale), width * height)
            return used, used - grid[0] * grid[1]

        return max(self.grids, key=rank)

    def _padded(self, image: Rgb) -> Rgb:
        height, width = image.shape[:2]
        rows, cols = self._best(height, width)
        down, across = rows / height, cols / width
        if across < down:
            size = min(math.ceil(height * across), rows), cols
        else:
            size = rows, min(math.ceil(width * down), cols)
        top, left = (rows - size[0]) // 2, (cols - size[1]) // 2
        padded = np.zeros((rows, cols, 3), np.uint8)
        padded[top : top + size[0], left : left + size[1]] = resize(image, *size, self.resample)
        return padded


def _unpadded(height: int, width: int, rows: int, cols: int) -> tuple[int, int]:
    """Return the rows and columns of a grid that an image of this shape fills."""
    if width / height > cols / rows:
        return rows - (rows - int(round(height * (cols / width), 7))) // 2 * 2, cols
    return rows, cols - (cols - int(round(width * (rows / height), 7))) // 2 * 2


def open_llava_next(settings: Settings, patch_size: int, merge: int) -> LlavaNext:
    tile = settings.side("crop_size", "height", 224) or 224
    sizes = {
        settings.side("crop_size", "width", 224), settings.side("size", "shortest_edge", tile),
        settings.side("size", "height", tile), settings.side("size", "width", tile),
    }  # fmt: skip
    if sizes != {tile} or tile % patch_size:
        raise LoadError(f"image processor: size and crop_size are not one square of patches of {patch_size}: {sizes}")
    grids = settings.config.get("image_grid_pinpoints", GRIDS)
    try:
        found = tuple((int(height), int(width)) for height, width in grids)
    except (TypeError, ValueError):
        raise LoadError(f"image processor: image_grid_pinpoints {grids!r:.60} are not pairs of numbers") from None
    if not found or not all(0 < edge <= 1 << 14 and edge % tile == 0 for grid in found for edge in grid):
        raise LoadError(f"image processor: image_grid_pinpoints {grids!r:.60} are not multiples of {tile}")
    return LlavaNext(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        tile=tile,
        grids=found,
        resample=settings.resample(3),
    )
