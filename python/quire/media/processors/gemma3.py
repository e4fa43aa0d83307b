"""Gemma 3: every image is resized to one square, whatever its shape."""

from __future__ import annotations

from ..settings import Settings
from .one_view import Square

__all__ = ["open_gemma3"]


def open_gemma3(settings: Settings, patch_size: int, merge: int) -> Square:
    settings.require("do_pan_and_scan", False)
    return Square(
        normalization=settings.normalization((0.5,) * 3, (0.5,) * 3),
        patch_size=patch_size,
        merge=merge,
        height=settings.side("size", "height", 224) or 224,
        width=settings.side("size", "width", 224) or 224,
        resample=settings.resample(2),
    )
