"""Encoders that cannot be used, beside a model or in its own file: the model reads text, and one line says why."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from quire import LLM, SamplingParams
from quire.engine.loading.loader import packaged_model
from quire.errors import LoadError, UnsupportedError
from quire.files.gguf import GGUFReader, GGUFWriter

GREEDY = SamplingParams(temperature=0, max_tokens=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.symlink_to(packaged_model())
    return path


def text_only(model: Path, **options: object) -> None:
    with LLM(model, threads=1, n_ctx=64, **options) as llm:  # type: ignore[arg-type]
        assert llm.generate("Once", GREEDY)[0].token_ids


def test_a_text_model_alone_says_nothing(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quire")
    text_only(model)
    assert not caplog.records
    with pytest.raises(LoadError, match=r"absent\.gguf"):
        text_only(model, mmproj="absent.gguf")


def test_an_unknown_encoder(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with GGUFWriter(model.with_name("mmproj-m.gguf"), "clip") as writer:
        writer.set("clip.has_vision_encoder", True)
        writer.set("clip.projector_type", "unheard_of")
    text_only(model)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "unheard_of" in said
    caplog.clear()
    text_only(model, mmproj="none")
    assert not caplog.records
    with pytest.raises(UnsupportedError, match="unheard_of"):
        text_only(model, mmproj=model.with_name("mmproj-m.gguf"))


def test_a_damaged_encoder(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    model.with_name("mmproj-m.gguf").write_bytes(b"GGUF" + bytes(100))
    text_only(model)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "mmproj-m.gguf" in said
    with pytest.raises(LoadError, match="version 0"):
        text_only(model, mmproj=model.with_name("mmproj-m.gguf"))


def test_an_encoder_in_the_models_own_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = GGUFReader(packaged_model())
    architecture = reader.metadata.text("general.architecture")
    path = tmp_path / "one.gguf"
    with GGUFWriter(path, architecture) as writer:
        writer.copy_metadata(reader.metadata, without=("general.architecture",))
        writer.set(f"{architecture}.vision.block_count", 1, "u32")
        writer.set(f"{architecture}.mm.tokens_per_image", 256, "u32")
        for info in reader.tensors:
            writer.add_tensor(info.name, info.dtype, info.shape)
        for name in ("v.blk.0.attn_q.weight", "mm.mm_input_projection.weight"):
            writer.add_tensor(name, "f32", (4, 4))
        for info in reader.tensors:
            writer.write(info.name, reader.tensor(info.name))
        for name in ("v.blk.0.attn_q.weight", "mm.mm_input_projection.weight"):
            writer.write(name, np.zeros((4, 4), np.float32))
    with LLM(packaged_model(), threads=1, n_ctx=64) as plain, LLM(path, threads=1, n_ctx=64) as model:
        assert model.generate("Once", GREEDY)[0].token_ids == plain.generate("Once", GREEDY)[0].token_ids
    (said,) = [record.getMessage() for record in caplog.records]
    assert "one" in said
    assert "Ollama" in said
    caplog.clear()
    text_only(path, mmproj="none")
    assert not caplog.records
