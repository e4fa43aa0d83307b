"""Words for the checkpoint of a vision encoder: its keys and tensors in an ``mmproj`` file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...checkpoints.mapping import Fields, Key, Source
from ...checkpoints.mapping.changes import Array, Change

__all__ = ["VisionCheckpoint", "frame_of"]


@dataclass(frozen=True)
class VisionCheckpoint:
    """How a checkpoint's vision encoder becomes an ``mmproj`` file.

    Attributes:
        projector: The value of ``clip.projector_type``.
        prefixes: What the encoder's tensors begin with; the first that the checkpoint has.
        keys: Keys below ``clip.vision.`` by name, read from ``vision_config``.
        flags: Keys below ``clip.`` by name.
        tensors: Tensors by the file's name, made from ``vision_config``; sources without their prefix.
    """

    projector: str
    prefixes: tuple[str, ...]
    keys: Mapping[str, Key]
    flags: Mapping[str, bool]
    tensors: Callable[[Fields], Mapping[str, str | Source]]


def frame_of(index: int) -> Change:
    """One frame of a convolution over time: ``[out, in, time, height, width]`` without its third axis."""

    def change(x: Array, config: Fields) -> Array:
        return np.ascontiguousarray(x[:, :, index]) if x.ndim == 5 else x

    return change
