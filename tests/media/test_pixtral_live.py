"""Pixtral's encoder: files as llama.cpp's converter writes them, and checkpoints that cannot be converted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from image_processor_cases import picture
from quire._native.core import DType, find_device
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.errors import LoadError, UnsupportedError
from quire.files.gguf import GGUFReader
from quire.models.media import load_media
from tiny_media import family
from tiny_media.pixtral import MARKS, PATCH, VISION

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    found, folder = family("pixtral"), tmp_path_factory.mktemp("pixtral")
    model = found.make()
    found.save(model, folder)
    return model, folder


def changed(folder: Path, target: Path, config: dict[str, Any], *, tokens: bool = True) -> Path:
    """Link a checkpoint with other fields in config.json: ``{"a.b": value}``."""
    for file in folder.glob("*.safetensors"):
        (target / file.name).symlink_to(file)
    if tokens:
        (target / "tokenizer.json").symlink_to(folder / "tokenizer.json")
    whole = json.loads((folder / "config.json").read_text())
    for path, value in config.items():
        section, _, name = path.rpartition(".")
        fields = whole[section] if section else whole
        if value is None:
            del fields[name]
        else:
            fields[name] = value
    (target / "config.json").write_text(json.dumps(whole))
    return target


def test_tensors_as_llama_cpp_reads_them(saved: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = saved
    convert_projector(folder, tmp_path / "mmproj.gguf", "f32")
    reader = GGUFReader(tmp_path / "mmproj.gguf")
    states = model.state_dict()
    # Rows of a head alternate between its halves.
    q = states["model.vision_tower.transformer.layers.1.attention.q_proj.weight"].numpy()
    n_head, dim = VISION["num_attention_heads"], VISION["hidden_size"]
    head_dim = dim // n_head
    order = [h * head_dim + half * (head_dim // 2) + i
             for h in range(n_head) for i in range(head_dim // 2) for half in range(2)]  # fmt: skip
    assert np.array_equal(reader.tensor("v.blk.1.attn_q.weight").numpy(), q[order])
    embedding = states["model.language_model.embed_tokens.weight"].numpy()
    token = family("pixtral").pad_id + MARKS.index("[IMG_BREAK]")
    assert np.array_equal(reader.tensor("v.token_embd.img_break").numpy(), embedding[token])
    assert reader.tensor_info("v.patch_embd.weight").shape == (dim, 3, PATCH, PATCH)
    keys = {key.removeprefix("clip."): reader.metadata[key] for key in reader.metadata}
    assert keys["use_silu"] is True
    assert "use_gelu" not in keys
    assert (keys["vision.spatial_merge_size"], keys["vision.image_size"], keys["vision.preproc_image_size"]) == (
        2, 1024, 128,
    )  # fmt: skip


def rows(file: Path) -> npt.NDArray[np.float32]:
    encoder = MediaEncoder(load_media(GGUFReader(file))["image"], find_device("cpu"), threads=1)
    return np.concatenate([encoder.encode(view) for view in encoder.model.views(picture(70, 120))])


def test_quantized_rows_are_reordered_too(saved: tuple[Any, Path], tmp_path: Path) -> None:
    _, folder = saved
    for dtype in ("f32", "q8_0"):
        convert_projector(folder, tmp_path / f"{dtype}.gguf", dtype)
    assert GGUFReader(tmp_path / "q8_0.gguf").tensor_info("v.blk.0.attn_q.weight").dtype == DType("q8_0")
    expected = rows(tmp_path / "f32.gguf")
    assert np.abs(rows(tmp_path / "q8_0.gguf") - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"vision_config.hidden_act": "relu"}, "hidden_act.*relu"),
        ({"text_config.rms_norm_eps": 1e-6}, "rms_norm_eps.*1e-06"),
        ({"vision_feature_layer": -2}, "vision_feature_layer.*-2"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act.*relu"),
        ({"vision_config.model_type": "clip_vision_model"}, "Mistral3ForConditionalGeneration"),
        # transformers' default of this class is the layer before the last one.
        (
            {"architectures": ["LlavaForConditionalGeneration"], "vision_feature_layer": None},
            "vision_feature_layer.*-2",
        ),
    ],
)
def test_unsupported_configurations(
    saved: tuple[Any, Path], tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        convert_projector(changed(saved[1], tmp_path, config), tmp_path / "mmproj.gguf")


def test_tokenizer_without_break(saved: tuple[Any, Path], tmp_path: Path) -> None:
    folder = changed(saved[1], tmp_path, {}, tokens=False)
    words = json.loads((saved[1] / "tokenizer.json").read_text())
    words["added_tokens"] = [token for token in words["added_tokens"] if token["content"] != "[IMG_BREAK]"]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(LoadError, match="IMG_BREAK"):
        convert_projector(folder, tmp_path / "mmproj.gguf")
