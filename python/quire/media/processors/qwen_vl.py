"""Qwen2-VL to Qwen3.6: any size that is a multiple of a merged patch, within limits on its pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...errors import LoadError, RequestError
from ..pixels import CLIP_MEAN, CLIP_STD, Floats, patches_of
from ..settings import Settings
from .one_view import OneView

__all__ = ["QwenVl", "open_qwen_vl", "smart_resize", "video_resize"]

MAX_ASPECT_RATIO = 200


def smart_resize(height: int, width: int, factor: int, min_pixels: float, max_pixels: float) -> tuple[int, int]:
    """Return the size nearest to ``height`` x ``width`` whose sides are multiples of ``factor``, within the limits."""
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise RequestError(
            f"the image has {width}x{height} pixels: one side is over {MAX_ASPECT_RATIO} times the other"
        )
    rows, cols = round(height / factor), round(width / factor)
    if rows * cols * factor * factor > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows, cols = max(1, math.floor(height / shrink / factor)), max(1, math.floor(width / shrink / factor))
    elif rows * cols * factor * factor < min_pixels:
        enlarge = math.sqrt(min_pixels / (height * width))
        rows, cols = math.ceil(height * enlarge / factor), math.ceil(width * enlarge / factor)
    return rows * factor, cols * factor


def video_resize(
    n_frames: int, height: int, width: int, factor: int, *, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Return the size of each of some frames, as ``smart_resize``, within limits on the pixels of all of them."""
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise RequestError(
            f"the video has {width}x{height} pixels: one side is over {MAX_ASPECT_RATIO} times the other"
        )
    rows, cols = round(height / factor), round(width / factor)
    pixels = round(n_frames / 2) * 2 * rows * cols * factor**2
    if pixels > max_pixels:
        shrink = math.sqrt(n_frames * height * width / max_pixels)
        rows, cols = max(1, math.floor(height / shrink / factor)), max(1, math.floor(width / shrink / factor))
    elif pixels < min_pixels:
        enlarge = math.sqrt(min_pixels / (n_frames * height * width))
        rows, cols = math.ceil(height * enlarge / factor), math.ceil(width * enlarge / factor)
    return rows * factor, cols * factor


@dataclass(frozen=True, kw_only=True)
class QwenVl(OneView):
    """Limits are in pixels of the resized image."""

    temporal_patch_size: int
    min_pixels: int
    max_pixels: int

    @property
    def counted_frames(self) -> int:
        """Frames whose pixels the limits count."""
        return 1

    def patches(self, pixels: Floats) -> Floats:
        return patches_of(pixels, self.patch_size, merge=self.merge, repeat=self.temporal_patch_size)

    def limited(self, n_patches: int) -> QwenVl:
        most = min(self.max_pixels, n_patches * self.patch_size**2 * self.counted_frames)
        return replace(self, min_pixels=min(self.min_pixels, most), max_pixels=most)

    def size(self, height: int, width: int) -> tuple[int, int]:
        return smart_resize(height, width, self.patch_size * self.merge, self.min_pixels, self.max_pixels)


def open_qwen_vl(settings: Settings, patch_size: int, merge: int) -> QwenVl:
    found = settings.integer("patch_size", patch_size), settings.integer("merge_size", merge)
    if found != (patch_size, merge):
        raise LoadError(
            f"image processor: patch and merge size {found} differ from the encoder's {(patch_size, merge)}"
        )
    least = settings.integer("min_pixels", settings.side("size", "shortest_edge", 56 * 56) or 1)
    most = settings.integer("max_pixels", settings.side("size", "longest_edge", 28 * 28 * 1280) or 1)
    # The smallest size must fit between the limits.
    if least > most or most < (patch_size * merge) ** 2:
        raise LoadError(f"image processor: no size has {least} to {most} pixels")
    return QwenVl(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        temporal_patch_size=settings.integer("temporal_patch_size", 2, most=16),
        merge=merge,
        min_pixels=least,
        max_pixels=most,
        resample=settings.resample(3),
    )
