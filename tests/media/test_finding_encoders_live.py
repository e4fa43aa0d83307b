"""Which encoder a model opens with: the one that lies with it, the one that is named, or none, and what is said about it.

Oracle: the answer of the model that opened its encoder by name.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from image_processor_cases import picture
from quire import LLM, SamplingParams, convert
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.loading import media as loading
from quire.engine.loading.loader import packaged_model
from quire.errors import LoadError, RequestError, UnsupportedError
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
MESSAGES = [
    {"role": "user", "content": [{"type": "image", "image": picture(64, 96)}, {"type": "text", "text": "what?"}]}
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, and a model and an encoder as files apart from each other."""
    made = tmp_path_factory.mktemp("files")
    tiny = family("qwen3vl")
    tiny.save(tiny.make(), made / "checkpoint")
    (made / "text").mkdir()
    (made / "encoder").mkdir()
    convert(made / "checkpoint", made / "text" / "m.gguf", "f32")
    convert_projector(made / "checkpoint", made / "encoder" / "mmproj-m.gguf", "f32")
    return made


def opened(model: Path, **options: object) -> LLM:
    return LLM(model, kv_dtype="f32", threads=1, n_ctx=512, **options)  # type: ignore[arg-type]


def answer(model: Path, **options: object) -> list[int]:
    with opened(model, **options) as llm:
        return llm.chat(MESSAGES, GREEDY).choices[0].token_ids


def test_an_encoder_beside_the_model_is_used(files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, encoder = tmp_path / "m.gguf", tmp_path / "mmproj-m.gguf"
    model.symlink_to(files / "text" / "m.gguf")
    encoder.symlink_to(files / "encoder" / "mmproj-m.gguf")
    expected = answer(files / "text" / "m.gguf", mmproj=files / "encoder" / "mmproj-m.gguf")
    caplog.set_level(logging.INFO, "quire")
    assert answer(model) == expected
    assert answer(files / "checkpoint") == expected
    assert answer(files / "checkpoint", mmproj="auto") == expected
    shutil.copy(encoder, tmp_path / "mmproj-other.gguf")  # now it is not clear which
    for options in ({}, {"mmproj": "none"}, {"mmproj": None}):
        with opened(model, **options) as llm, pytest.raises(RequestError):
            llm.chat(MESSAGES, GREEDY)
    assert not [record for record in caplog.records if "media" in record.getMessage()]


def test_another_models_encoder_is_left_alone(files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tmp_path / "m.gguf"
    model.symlink_to(packaged_model())
    encoder = tmp_path / "mmproj.gguf"
    encoder.symlink_to(files / "encoder" / "mmproj-m.gguf")
    caplog.set_level(logging.WARNING, "quire")
    with opened(model) as llm:
        assert llm.generate("a", GREEDY)[0].token_ids
    assert not caplog.records
    with pytest.raises(LoadError, match="another model"):
        opened(model, mmproj=encoder)


@pytest.mark.parametrize("folder", ["checkpoint", "files"])
def test_without_pillow(
    files: Path, tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, encoder = files / "checkpoint", files / "checkpoint"
    if folder == "files":
        model, encoder = tmp_path / "m.gguf", tmp_path / "mmproj.gguf"
        model.symlink_to(files / "text" / "m.gguf")
        encoder.symlink_to(files / "encoder" / "mmproj-m.gguf")
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with opened(model) as llm:
        assert llm.generate("a", GREEDY)[0].token_ids
    assert [record.getMessage() for record in caplog.records if "quire-llm[media]" in record.getMessage()]
    with pytest.raises(UnsupportedError, match=r"quire-llm\[media\]"):
        opened(model, mmproj=encoder)


def test_a_checkpoints_encoder_is_converted_at_the_first_image(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = []
    convert_now = loading._converted
    monkeypatch.setattr(loading, "_converted", lambda folder: converted.append(folder) or convert_now(folder))
    with opened(files / "checkpoint") as llm:
        llm.generate("a", GREEDY)
        assert not converted
        first = llm.chat(MESSAGES, GREEDY)
        assert llm.chat(MESSAGES, GREEDY).token_ids == first.token_ids
    assert len(converted) == 1
