"""Files in Ollama's own form: text models answer as transformers', encoders as in llama.cpp's form."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from image_processor_cases import picture
from ollama_files import FAMILIES, write_ollama_file
from quire import LLM
from quire._native.core import find_device
from quire.checkpoints.conversion import convert
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.files.gguf import GGUFReader, GGUFWriter
from quire.files.ollama import open_encoder_file, open_model_file
from quire.models.media import load_media
from tiny_checkpoints import REFERENCES, write_checkpoint

pytest.importorskip("safetensors")

# The settings of the image processor, which Ollama's files hold or the families' own are.
SETTINGS = {
    "gemma3-vl": {},
    "qwen2vl-2.5": {},
    "mistral3-vl": {"size": {"longest_edge": 56}},
    "glm_ocr": {"size": {"shortest_edge": 128, "longest_edge": 8192}},
}
QWEN = {"min_pixels": 64, "max_pixels": 4096, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def made(name: str, folder: Path) -> Path:
    write_checkpoint(folder / name, name)
    convert(folder / name, folder / "text.gguf", "f32")
    return write_ollama_file(folder / name, folder / "text.gguf", folder / "ollama.gguf", FAMILIES[name])


@pytest.mark.parametrize("name", [name for name in FAMILIES if (REFERENCES / f"{name}.npz").is_file()])
def test_text_models_answer_as_transformers(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = made(name, tmp_path)
    stored = np.load(REFERENCES / f"{name}.npz")
    with LLM(path, threads=1, kv_dtype="f32", mmproj="none") as llm:
        logits = llm.logits(stored["prompt"].tolist())
        assert np.abs(logits - stored["logits"]).max() < 1e-3 * np.abs(stored["logits"]).max()
        assert llm.tokenizer.n_vocab <= 272
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if FAMILIES[name].replacements and (REFERENCES / f"{name}.npz").is_file()]
)
def test_encoders_return_the_rows_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    path = made(name, tmp_path)
    (tmp_path / name / "preprocessor_config.json").write_text(json.dumps(SETTINGS.get(name, QWEN)))
    config = (tmp_path / name / "config.json").read_text()
    (tmp_path / name / "config.json").write_text(config.replace('"hidden_act": "gelu"', '"hidden_act": "silu"'))
    words = json.loads((tmp_path / name / "tokenizer.json").read_text())
    words["added_tokens"].append({"id": 259, "content": "[IMG_BREAK]", "special": True})  # for Pixtral
    (tmp_path / name / "tokenizer.json").write_text(json.dumps(words))
    convert_projector(tmp_path / name, tmp_path / "mmproj.gguf", "f32")
    found, expected = (load_media(open_encoder_file(each))["image"] for each in (path, tmp_path / "mmproj.gguf"))
    for image in (picture(40, 96), picture(64, 33)):
        assert found.layout(image) == expected.layout(image)
        (view,), (wanted,) = found.views(image), expected.views(image)
        assert np.array_equal(view.patches, wanted.patches)
        rows = [MediaEncoder(each, find_device("cpu"), threads=1).encode(view) for each in (found, expected)]
        assert np.array_equal(*rows)
    assert found.n_out == expected.n_out


def test_parts_of_different_types_are_joined_as_floats(tmp_path: Path) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    with GGUFWriter(tmp_path / "m.gguf", "glmocr") as writer:
        writer.set("glmocr.attention.key_length", 4, "u32")
        for name, dtype in (("gate", "f16"), ("up", "f32")):
            writer.add_tensor(f"blk.0.ffn_{name}.weight", dtype, rows.shape)
        writer.write("blk.0.ffn_gate.weight", rows.astype(np.float16))
        writer.write("blk.0.ffn_up.weight", rows + 100)
    reader = open_model_file(tmp_path / "m.gguf")
    assert [info.name for info in reader.tensors] == ["blk.0.ffn_up.weight"]
    assert np.array_equal(reader.tensor("blk.0.ffn_up.weight").numpy(), np.concatenate([rows, rows + 100]))
    assert reader.metadata.integer("glm4.rope.dimension_count") == 4
    assert "glmocr.attention.key_length" not in reader.metadata


@pytest.mark.parametrize("name", ["qwen35", "qwen3next"])
def test_files_of_llama_cpp_keep_their_tensors(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / name, name)
    convert(tmp_path / name, tmp_path / "m.gguf", "f32")
    stored, found = GGUFReader(tmp_path / "m.gguf"), open_model_file(tmp_path / "m.gguf")
    assert {info.name for info in found.tensors} == {info.name for info in stored.tensors}
