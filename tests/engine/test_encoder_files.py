"""Files that look like a model's encoder, and are none: the model reads text, and one line says why."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from quire import LLM, SamplingParams
from quire.engine.loading.loader import packaged_model
from quire.errors import LoadError, UnsupportedError
from quire.files.gguf import GGUFWriter

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
