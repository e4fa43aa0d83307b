"""Map a checkpoint's vision encoder to the keys and tensors of an ``mmproj`` file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...checkpoints.mapping import Fields, Key, Source
from ...checkpoints.mapping.changes import Array, Change
from ...media import ImageProcessor, open_processor
from ...nn import Keys

__all__ = ["VisionCheckpoint", "frame_of", "image_keys", "image_processor"]


@dataclass(frozen=True)
class VisionCheckpoint:
    """How a checkpoint's vision encoder becomes an ``mmproj`` file.

    Attributes:
        projector: The value of ``clip.projector_type``.
        prefixes: Possible prefixes of the encoder's tensors; the first that the checkpoint has is used.
        keys: Keys below ``clip.vision.`` by name, read from ``vision_config``.
        flags: Keys below ``clip.`` by name.
        tensors: Maps ``vision_config`` to each tensor's source, without prefix, by its name in the file.
    """

    projector: str
    prefixes: tuple[str, ...]
    keys: Mapping[str, Key]
    flags: Mapping[str, bool]
    tensors: Callable[[Fields], Mapping[str, str | Source]]


# Keys of a file below ``clip.vision.``, and the fields of preprocessor_config.json that they stand for.
_COLOURS = ("image_mean", "image_std")  # called alike in both
# The second field is the newer form of the first, below ``size``.
_LIMITS = {
    "image_min_pixels": ("min_pixels", "shortest_edge"),
    "image_max_pixels": ("max_pixels", "longest_edge"),
}


def image_processor(keys: Keys, name: str, patch_size: int, merge: int) -> ImageProcessor:
    """Return the image processor of a file: transformers' class ``name`` with the settings in the keys."""
    config: dict[str, object] = {"image_processor_type": name, "patch_size": patch_size, "merge_size": merge}
    for key in _COLOURS:
        if keys.has(f"vision.{key}"):
            config[key] = keys.numbers(f"vision.{key}", 3)
    for key, (field, _) in _LIMITS.items():
        if keys.has(f"vision.{key}"):
            config[field] = keys.integer(f"vision.{key}", low=1)
    return open_processor(config, patch_size=patch_size, merge=merge)


def image_keys(processor: Mapping[str, Any]) -> dict[str, tuple[str, object]]:
    """Return the keys, with their types, for the settings of preprocessor_config.json."""
    nested = processor.get("image_processor")
    config: Mapping[str, Any] = nested if isinstance(nested, Mapping) else processor
    size = config.get("size")
    limits: Mapping[str, Any] = size if isinstance(size, Mapping) else {}
    found: dict[str, tuple[str, object]] = {}
    for key in _COLOURS:
        if isinstance(value := config.get(key), list):
            found[key] = "f32[]", value
    for key, (field, edge) in _LIMITS.items():
        if isinstance(value := config.get(field, limits.get(edge)), int):
            found[key] = "u32", value
    return found


def frame_of(index: int) -> Change:
    """Take one frame of a convolution over time: ``[out, in, time, height, width]`` without its third axis."""

    def change(x: Array, config: Fields) -> Array:
        return np.ascontiguousarray(x[:, :, index]) if x.ndim == 5 else x

    return change
