"""InternVL 2.5 and 3: the grid of tiles nearest to the image's shape, then a thumbnail of all of it."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import LoadError
from ..decode import Rgb
from ..image_processor import ImageProcessor, Layout, ProcessedImage, View
from ..pixels import CLIP_MEAN, CLIP_STD, Normalization, patches_of, resize, tiles_of
from ..settings import Settings
from .tiling import nearest_grid

__all__ = ["InternVl", "open_internvl"]


@dataclass(frozen=True, kw_only=True)
class InternVl(ImageProcessor):
    """``height`` and ``width`` are a tile's, in pixels."""

    normalization: Normalization
    patch_size: int
    merge: int
    height: int
    width: int
    min_tiles: int
    max_tiles: int
    resample: int

    def layout(self, height: int, width: int) -> Layout:
        rows, cols = self._grid(height, width)
        n_views = rows * cols + 1 if rows * cols > 1 else 1
        view = self.height // self.patch_size, self.width // self.patch_size
        n_tokens = (view[0] // self.merge) * (view[1] // self.merge)
        tiled = (rows, cols) if n_views > 1 else (0, 0)
        return Layout((view,) * n_views, *tiled, (n_tokens,) * n_views)

    def process(self, image: Rgb) -> ProcessedImage:
        layout = self.layout(*image.shape[:2])
        rows, cols = self._grid(*image.shape[:2])
        tiles = tiles_of(resize(image, rows * self.height, cols * self.width, self.resample), self.height, self.width)
        if len(tiles) > 1:
            tiles.append(resize(image, self.height, self.width, self.resample))
        views = (
            View(patches_of(self.normalization(tile), self.patch_size), *view)
            for tile, view in zip(tiles, layout.views, strict=True)
        )
        return ProcessedImage(tuple(views), layout)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        if self.max_tiles == 1:
            return 1, 1
        return nearest_grid(height, width, (self.height, self.width), self.min_tiles, self.max_tiles)


def open_internvl(settings: Settings, patch_size: int, merge: int) -> InternVl:
    splits = settings.flag("crop_to_patches", False)
    least = settings.integer("min_patches", 1, most=256) if splits else 1
    most = settings.integer("max_patches", 12, most=256) if splits else 1
    if least > most:
        raise LoadError(f"image processor: min_patches {least} is above max_patches {most}")
    return InternVl(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        merge=merge,
        height=settings.side("size", "height", 384) or 384,
        width=settings.side("size", "width", 384) or 384,
        min_tiles=least,
        max_tiles=most,
        resample=settings.resample(3),
    )
