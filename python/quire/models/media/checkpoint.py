"""Map a checkpoint's encoder to the keys and tensors of an ``mmproj`` file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...checkpoints.mapping import Fields, Key, Source
from ...checkpoints.mapping.changes import Array, Change
from ...media import ImageProcessor, open_processor
from ...nn import Keys

__all__ = ["MediaCheckpoint", "frame_of", "image_keys", "image_processor"]


@dataclass(frozen=True)
class MediaCheckpoint:
    """How a checkpoint's encoder of images or sounds becomes an ``mmproj`` file.

    Attributes:
        projector: The value of ``clip.projector_type``.
        config: The field of config.json with the encoder's configuration.
        roots: The prefixes of the encoder's tensors as ``tensors`` writes them, each with its spellings in checkpoints;
            the first that a checkpoint has is used.  All tensors below them must be used.
        keys: Keys below ``clip.`` by name, read from the encoder's configuration.
        whole_keys: Keys below ``clip.`` by name, read from config.json.
        tensors: Maps config.json to each tensor's source by its name in the file, where ``{i}`` counts layers.
        unused: Patterns of tensors below ``roots`` that transformers does not use either.
        f16: Patterns of tensors that are always f16, the only type that convolutions of llama.cpp read.
    """

    projector: str
    config: str
    roots: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, Key]
    tensors: Callable[[Fields], Mapping[str, str | Source]]
    whole_keys: Mapping[str, Key] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    f16: tuple[str, ...] = ()


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
    for key, (limit, _) in _LIMITS.items():
        if keys.has(f"vision.{key}"):
            config[limit] = keys.integer(f"vision.{key}", low=1)
    return open_processor(config, patch_size=patch_size, merge=merge)


def image_keys(processor: Mapping[str, Any]) -> list[tuple[str, str, object]]:
    """Return the keys below ``clip.``, each with its type and value, for the settings of preprocessor_config.json."""
    nested = processor.get("image_processor")
    config: Mapping[str, Any] = nested if isinstance(nested, Mapping) else processor
    size = config.get("size")
    bounds: Mapping[str, Any] = size if isinstance(size, Mapping) else {}
    found: list[tuple[str, str, object]] = []
    for key in _COLOURS:
        if isinstance(value := config.get(key), list):
            found.append((f"vision.{key}", "f32[]", value))
    for key, (limit, edge) in _LIMITS.items():
        if isinstance(value := config.get(limit, bounds.get(edge)), int):
            found.append((f"vision.{key}", "u32", value))
    return found


def frame_of(index: int) -> Change:
    """Take one frame of a convolution over time: ``[out, in, time, height, width]`` without its third axis."""

    def change(x: Array, config: Fields) -> Array:
        return np.ascontiguousarray(x[:, :, index]) if x.ndim == 5 else x

    return change
