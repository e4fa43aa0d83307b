"""Llama 4: tiles of the canvas that an image fits best, padded at the bottom and right, then the whole image.

transformers has this processor for torchvision only.  This file resamples with Pillow, like the others; pixels differ
by one level of 256 at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np

from ...errors import LoadError
from ..decode import Rgb
from ..image_processor import ImageProcessor, Layout, ProcessedImage, View
from ..pixels import Normalization, patches_of, resize, tiles_of
from ..settings import Settings

__all__ = ["Llama4", "open_llama4"]


@dataclass(frozen=True, kw_only=True)
class Llama4(ImageProcessor):
    """``tile``: a side in pixels; ``canvases``: rows and columns of tiles, in the reference's order."""

    normalization: Normalization
    patch_size: int
    merge: int
    tile: int
    canvases: tuple[tuple[int, int], ...]
    resample: int

    def layout(self, height: int, width: int) -> Layout:
        rows, cols = self._canvas(height, width)
        n_views = rows * cols + 1 if rows * cols > 1 else 1
        side = self.tile // self.patch_size
        tiled = (rows, cols) if n_views > 1 else (0, 0)
        return Layout(((side, side),) * n_views, *tiled, ((side // self.merge) ** 2,) * n_views)

    def process(self, image: Rgb) -> ProcessedImage:
        height, width = image.shape[:2]
        layout = self.layout(height, width)
        rows, cols = (n * self.tile for n in self._canvas(height, width))
        # Images are enlarged up to the side of a tile only.
        size = _fitting(height, width, min(max(height, self.tile), rows), min(max(width, self.tile), cols))
        canvas = np.zeros((rows, cols, 3), np.uint8)
        canvas[: size[0], : size[1]] = resize(image, *size, self.resample)
        pictures = tiles_of(canvas, self.tile, self.tile)
        if len(pictures) > 1:
            pictures.append(resize(image, self.tile, self.tile, self.resample))
        views = (
            View(patches_of(self.normalization(picture), self.patch_size), *view)
            for picture, view in zip(pictures, layout.views, strict=True)
        )
        return ProcessedImage(tuple(views), layout)

    def _canvas(self, height: int, width: int) -> tuple[int, int]:
        """Return the smallest of the canvases that enlarge an image least, or, if none does, shrink it least."""
        scales = [
            min(np.float32(rows * self.tile) / np.float32(height), np.float32(cols * self.tile) / np.float32(width))
            for rows, cols in self.canvases
        ]
        best = min((scale for scale in scales if scale >= 1), default=max(scales))
        found = [canvas for canvas, scale in zip(self.canvases, scales, strict=True) if scale == best]
        return min(found, key=lambda canvas: canvas[0] * canvas[1])


def _fitting(height: int, width: int, most_rows: int, most_cols: int) -> tuple[int, int]:
    """Return the largest size of the same shape within a box."""
    down, across = most_rows / height, most_cols / width
    if across < down:
        return max(min(floor(height * across), most_rows), 1), most_cols
    return most_rows, max(min(floor(width * down), most_cols), 1)


def _canvases(most: int) -> tuple[tuple[int, int], ...]:
    """Return all grids of at most ``most`` tiles, those of equal shape after each other."""
    by_shape: dict[float, list[tuple[int, int]]] = {}
    for n in range(most, 0, -1):
        for rows in (i for i in range(1, n + 1) if n % i == 0):
            by_shape.setdefault(rows / (n // rows), []).append((rows, n // rows))
    return tuple(canvas for canvases in by_shape.values() for canvas in canvases)


def open_llama4(settings: Settings, patch_size: int, merge: int) -> Llama4:
    tile, width = settings.side("size", "height", 336) or 336, settings.side("size", "width", 336)
    if tile != width or tile % (patch_size * merge):
        raise LoadError(f"image processor: size {tile}x{width} is no square of tokens of {patch_size * merge} pixels")
    settings.require("resize_to_max_canvas", False)
    return Llama4(
        normalization=settings.normalization((0.5,) * 3, (0.5,) * 3, is_bf16=True),
        patch_size=patch_size,
        merge=merge,
        tile=tile,
        canvases=_canvases(settings.integer("max_patches", 16, most=256)),
        resample=settings.resample(2),
    )
