"""Text models inside multimodal ones: conversion writes the same file for every prefix of their tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from quire.checkpoints.conversion import convert
from quire.errors import UnsupportedError
from quire.gguf import GGUFReader
from tiny_checkpoints import config_of, shapes_of, weight_of, write_checkpoint, write_safetensors

WRAPPERS = {
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3n": "Gemma3nForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration",
    "llama4": "Llama4ForConditionalGeneration",
    "mistral3": "Mistral3ForConditionalGeneration",
    "mistral4": "Mistral3ForConditionalGeneration",
    "mistral": "Mistral3ForConditionalGeneration",
    "qwen35moe": "Qwen3_5MoeForConditionalGeneration",
}


def write_larger(folder: Path, name: str, home: str, **fields: object) -> None:
    """Write the text model ``name`` with names that begin with ``home``, beside a vision tower."""
    write_checkpoint(folder, name)
    config = {"architectures": [WRAPPERS[name]], "text_config": config_of(name), "vision_config": {"depth": 1}}
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    tensors = {"vision_tower.x.weight": np.zeros((2, 2), np.float32)}
    for tensor, shape in shapes_of(name).items():
        moved = home + (tensor.removeprefix("model.") if home.startswith("model.") else tensor)
        at = tensor if home.startswith("model.") and not tensor.startswith("model.") else moved
        tensors[at] = weight_of(name, tensor, tuple(shape))
    write_safetensors(folder / "model.safetensors", tensors)


@pytest.mark.parametrize("home", ["model.language_model.", "language_model."])
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_text_part_of_a_multimodal_model_gives_the_same_file(tmp_path: Path, name: str, home: str) -> None:
    write_checkpoint(tmp_path / "model", name)
    convert(tmp_path / "model", tmp_path / "alone.gguf", "f32")
    (tmp_path / "model").rename(tmp_path / "alone")
    write_larger(tmp_path / "model", name, home)
    convert(tmp_path / "model", tmp_path / "larger.gguf", "f32")
    assert (tmp_path / "larger.gguf").read_bytes() == (tmp_path / "alone.gguf").read_bytes()
    assert "vision_tower.x.weight" not in GGUFReader(tmp_path / "larger.gguf")


def test_unknown_parts_of_a_multimodal_model_are_rejected(tmp_path: Path) -> None:
    write_larger(tmp_path / "a", "gemma3", "language_model.", per_layer_config={"0": {"head_dim": 8}})
    with pytest.raises(UnsupportedError, match="per_layer_config"):
        convert(tmp_path / "a", tmp_path / "x.gguf")
    write_larger(tmp_path / "b", "gemma3", "language_model.")
    (tmp_path / "b" / "model.safetensors").unlink()
    write_safetensors(tmp_path / "b" / "model.safetensors", {"language_model.mystery": np.zeros((2, 2), np.float32)})
    with pytest.raises(UnsupportedError, match="mystery"):
        convert(tmp_path / "b", tmp_path / "x.gguf")
