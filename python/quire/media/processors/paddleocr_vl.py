"""PaddleOCR-VL: as Qwen-VL, without a second frame, and with patches row by row."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import LoadError
from ..pixels import CLIP_MEAN, CLIP_STD, Floats, patches_of
from ..settings import Settings
from .qwen_vl import QwenVl, smart_resize

__all__ = ["PaddleOcrVl", "open_paddleocr_vl"]


@dataclass(frozen=True, kw_only=True)
class PaddleOcrVl(QwenVl):
    """A side that is shorter than a token is enlarged first."""

    def patches(self, pixels: Floats) -> Floats:
        return patches_of(pixels, self.patch_size)

    def size(self, height: int, width: int) -> tuple[int, int]:
        unit = self.patch_size * self.merge
        if height < unit:
            height, width = unit, round(width * unit / height)
        if width < unit:
            height, width = round(height * unit / width), unit
        return smart_resize(height, width, unit, self.min_pixels, self.max_pixels)


def open_paddleocr_vl(settings: Settings, patch_size: int, merge: int) -> PaddleOcrVl:
    found = settings.integer("patch_size", patch_size), settings.integer("merge_size", merge)
    if found != (patch_size, merge):
        raise LoadError(
            f"image processor: patch and merge size {found} differ from the encoder's {(patch_size, merge)}"
        )
    settings.only("temporal_patch_size", 1)
    least = settings.integer("min_pixels", settings.side("size", "shortest_edge", 384 * 384) or 1)
    most = settings.integer("max_pixels", settings.side("size", "longest_edge", 1536 * 1536) or 1)
    if least > most or most < (patch_size * merge) ** 2:
        raise LoadError(f"image processor: no size has {least} to {most} pixels")
    return PaddleOcrVl(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        temporal_patch_size=1,
        merge=merge,
        min_pixels=least,
        max_pixels=most,
        resample=settings.resample(3),
    )
