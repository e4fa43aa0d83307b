"""GLM-4.1V to GLM-4.6V and GLM-OCR: as Qwen-VL, but limits are in pixels of two frames, which repeat the image."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import LoadError
from ..pixels import CLIP_MEAN, CLIP_STD
from ..settings import Settings
from .qwen_vl import QwenVl, smart_resize

__all__ = ["Glm4V", "open_glm4v"]


@dataclass(frozen=True, kw_only=True)
class Glm4V(QwenVl):
    """A side that is shorter than a token is enlarged first."""

    @property
    def counted_frames(self) -> int:
        return self.temporal_patch_size

    def size(self, height: int, width: int) -> tuple[int, int]:
        unit, frames = self.patch_size * self.merge, self.temporal_patch_size
        if min(height, width) < unit:
            scale = max(unit / height, unit / width)
            height, width = int(height * scale), int(width * scale)
        return smart_resize(height, width, unit, self.min_pixels / frames, self.max_pixels / frames)


def open_glm4v(settings: Settings, patch_size: int, merge: int) -> Glm4V:
    found = settings.integer("patch_size", patch_size), settings.integer("merge_size", merge)
    if found != (patch_size, merge):
        raise LoadError(
            f"image processor: patch and merge size {found} differ from the encoder's {(patch_size, merge)}"
        )
    frames = settings.integer("temporal_patch_size", 2, most=16)
    least = settings.side("size", "shortest_edge", 112 * 112) or 1
    most = settings.side("size", "longest_edge", 28 * 28 * 15000) or 1
    if least > most or most < frames * (patch_size * merge) ** 2:
        raise LoadError(f"image processor: no size has {least} to {most} pixels")
    return Glm4V(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        temporal_patch_size=frames,
        merge=merge,
        min_pixels=least,
        max_pixels=most,
        resample=settings.resample(3),
    )
