"""The description of a checkpoint folder, in transformers' form or in Mistral's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...files.folders import MISTRAL_PARAMS, MISTRAL_STEM, is_mistral_folder
from ...files.safetensors import SafetensorsFolder
from .fields import Fields, read_json
from .mistral import config_of_params

__all__ = ["checkpoint_dtype", "has_encoder", "read_config"]

# Sections of config.json for encoders of images and sounds.
_ENCODERS = ("vision_config", "audio_config")


def read_config(folder: Path) -> Mapping[str, object]:
    """Return config.json, or what ``params.json`` says in its words.  Raises what ``read_json`` raises."""
    if is_mistral_folder(folder):
        return config_of_params(read_json(folder / MISTRAL_PARAMS))
    return read_json(folder / "config.json")


def checkpoint_dtype(folder: Path) -> str:
    """Return the type that the checkpoint says it is stored in; f32 if it does not say."""
    if is_mistral_folder(folder):
        tensors = SafetensorsFolder(folder, MISTRAL_STEM)
        name = "tok_embeddings.weight"
        return {"F16": "f16", "BF16": "bf16"}.get(tensors.dtype(name) if name in tensors else "", "f32")
    config = Fields("config.json", read_json(folder / "config.json"))
    stored = config.text("dtype", config.text("torch_dtype", "float32"))
    return {"float16": "f16", "bfloat16": "bf16"}.get(stored, "f32")


def has_encoder(folder: Path) -> bool:
    """Return True if a checkpoint says that it has an encoder of images or sounds.  LoadError if it cannot be read."""
    config = read_config(folder)
    inner = [value for value in config.values() if isinstance(value, Mapping)]
    return any(isinstance(each.get(name), Mapping) for each in (config, *inner) for name in _ENCODERS)
