"""Map a checkpoint's encoder to the keys and tensors of an ``mmproj`` file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...checkpoints.mapping import Fields, Key, Source, computed
from ...checkpoints.mapping.changes import Array, Change
from ...errors import QuireError, UnsupportedError
from ...media import ImageProcessor, open_processor
from ...media.image_processor import MAX_PATCHES
from ...nn import Keys

__all__ = [
    "MediaCheckpoint",
    "activation_key",
    "edge_of",
    "frame_of",
    "image_keys",
    "image_processor",
    "is_gelu",
    "kernel_of_patches",
    "layer_tensors",
    "row_of",
    "text_width",
]


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
        unused: Patterns of tensors below ``roots`` that transformers does not use either, perhaps by config.json.
        f16: Patterns of tensors that are always f16, the only type that convolutions of llama.cpp read.
        settings: Keys below ``clip.`` by name, read from preprocessor_config.json.
        video_settings: The same of video_preprocessor_config.json.
        limits_pixels: Whether ``size`` limits the pixels of an image.
        fixed: Fields of preprocessor_config.json that no key holds, and their only supported value.
        model_type: The encoder's, if other encoders belong to checkpoints of the same class.
        defaults: transformers' defaults of fields of the encoder's configuration.
        token_rows: Tensors that are a row of the language model's token embedding, with the token's text.
    """

    projector: str
    config: str
    roots: Mapping[str, tuple[str, ...]]
    keys: Mapping[str, Key]
    tensors: Callable[[Fields], Mapping[str, str | Source]]
    whole_keys: Mapping[str, Key] = field(default_factory=dict)
    unused: tuple[str, ...] | Callable[[Fields], tuple[str, ...]] = ()
    f16: tuple[str, ...] = ()
    settings: Mapping[str, Key] = field(default_factory=dict)
    video_settings: Mapping[str, Key] = field(default_factory=dict)
    limits_pixels: bool = True
    fixed: Mapping[str, object] = field(default_factory=dict)
    model_type: str = ""
    defaults: Mapping[str, object] = field(default_factory=dict)
    token_rows: Mapping[str, str] = field(default_factory=dict)

    @property
    def hears(self) -> bool:
        """True for encoders of sounds."""
        return any(name.startswith("audio.") for name in self.keys)

    def reads(self, whole: Fields) -> bool:
        """Return whether the encoder that config.json describes is this one."""
        return not self.model_type or whole.inner(self.config).text("model_type", "") == self.model_type

    def check_settings(self, settings: Fields) -> None:
        """Raise UnsupportedError if images are processed in a way that the keys cannot express."""
        for name, wanted in self.fixed.items():
            if settings.has(name) and (value := settings.value(name)) != wanted:
                raise UnsupportedError(
                    f"[convert] unsupported '{name}' of the image processor: {value!r:.40} (expected {wanted!r})"
                )


# Keys of a file below ``clip.vision.``, and the fields of preprocessor_config.json that they stand for.
_COLOURS = ("image_mean", "image_std")  # called alike in both
_NORMALIZATION = (*_COLOURS, "image_processor_type", "do_normalize", "rescale_factor")
# The second field is the newer form of the first, below ``size``.
_LIMITS = {
    "image_min_pixels": ("min_pixels", "shortest_edge"),
    "image_max_pixels": ("max_pixels", "longest_edge"),
}


def image_processor(
    keys: Keys, name: str, patch_size: int, merge: int, settings: Mapping[str, object] | None = None
) -> ImageProcessor:
    """Return the image processor of a file: transformers' class ``name`` with the settings in the keys, and others."""
    config: dict[str, object] = {"image_processor_type": name, "patch_size": patch_size, "merge_size": merge}
    config |= settings or {}
    for key in _COLOURS:
        if keys.has(f"vision.{key}"):
            config[key] = keys.numbers(f"vision.{key}", 3)
    for key, (limit, _) in _LIMITS.items():
        if keys.has(f"vision.{key}"):
            config[limit] = keys.integer(f"vision.{key}", low=1)
    return open_processor(config, patch_size=patch_size, merge=merge).limited(MAX_PATCHES)


def image_keys(settings: Fields, *, limits_pixels: bool = True) -> list[tuple[str, str, object]]:
    """Return the keys below ``clip.``, each with its type and value, for the settings of preprocessor_config.json."""
    size = settings.value("size")
    bounds: Mapping[str, Any] = size if isinstance(size, Mapping) else {}
    found: list[tuple[str, str, object]] = []
    for key, values in _normalization(settings).items():
        found.append((f"vision.{key}", "f32[]", values))
    for key, (limit, edge) in _LIMITS.items() if limits_pixels else ():
        if isinstance(value := settings.value(limit) or bounds.get(edge), int):
            found.append((f"vision.{key}", "u32", value))
    return found


def _normalization(settings: Fields) -> Mapping[str, list[float]]:
    """Return mean and standard deviation, perhaps the processor's defaults, which llama.cpp does not know."""
    whole = {name: settings.value(name) for name in settings.names()}
    few = {name: whole[name] for name in _NORMALIZATION if whole.get(name) is not None}
    for config, patch_size in ((few, 16), (whole, 1)):  # other fields must fit the patches, or are needed
        with suppress(QuireError):
            pixels = open_processor(config, patch_size=patch_size, merge=1).normalization
            return dict(zip(_COLOURS, (list(pixels.mean), list(pixels.std)), strict=True))
    # A processor that is not the model's own.
    return {name: value for name in _COLOURS if isinstance(value := few.get(name), list)}


def activation_key(*names: str) -> Key:
    """Return the key ``use_gelu`` of a family whose activation is one of ``names``, the first by default."""

    def read(config: Fields) -> bool:
        if (name := config.text("hidden_act", names[0])) not in names:
            raise UnsupportedError(f"[convert] unsupported 'hidden_act': {name:.40} (expected {' or '.join(names)})")
        return True

    return computed("bool", read)


def edge_of(name: str, edge: str, default: int) -> Key:
    """Read a length of preprocessor_config.json: a number, or a field of an object."""

    def read(settings: Fields) -> int:
        if not isinstance(settings.value(name), Mapping):
            return settings.integer(name, default, low=1)
        return settings.inner(name).integer(edge, default, low=1)

    return computed("u32", read)


text_width = computed("u32", lambda whole: whole.inner("text_config").integer("hidden_size", 4096))


def layer_tensors(layer: str) -> dict[str, str | Source]:
    """Return the tensors of a layer as CLIP and SigLIP name them, below the prefix ``layer`` with ``{i}``."""
    return {
        "v.blk.{i}.ln1": f"{layer}layer_norm1",
        "v.blk.{i}.ln2": f"{layer}layer_norm2",
        "v.blk.{i}.attn_q": f"{layer}self_attn.q_proj",
        "v.blk.{i}.attn_k": f"{layer}self_attn.k_proj",
        "v.blk.{i}.attn_v": f"{layer}self_attn.v_proj",
        "v.blk.{i}.attn_out": f"{layer}self_attn.out_proj",
        "v.blk.{i}.ffn_up": f"{layer}mlp.fc1",
        "v.blk.{i}.ffn_down": f"{layer}mlp.fc2",
    }


def is_gelu(config: Fields) -> bool:
    """Return whether CLIP's activation is GELU, not its approximation by a sigmoid."""
    if (name := config.text("hidden_act", "quick_gelu")) not in ("quick_gelu", "gelu"):
        raise UnsupportedError(f"[convert] unsupported 'hidden_act': {name:.40} (expected quick_gelu or gelu)")
    return name == "gelu"


def kernel_of_patches(x: Array, config: Fields) -> Array:
    """Turn a linear layer over patches [height, width, 3] into a convolution's kernel [3, height, width]."""
    if x.ndim == 1:
        return x
    side = config.integer("patch_size", 16)
    return np.ascontiguousarray(x.reshape(len(x), side, side, 3).transpose(0, 3, 1, 2))


def row_of(index: int) -> Change:
    """Take one row of a matrix."""

    def change(x: Array, config: Fields) -> Array:
        row: Array = x[index].copy()
        return row

    return change


def frame_of(index: int) -> Change:
    """Take one frame of a convolution over time: ``[out, in, time, height, width]`` without its third axis."""

    def change(x: Array, config: Fields) -> Array:
        return np.ascontiguousarray(x[:, :, index]) if x.ndim == 5 else x

    return change
