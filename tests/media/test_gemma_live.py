"""Gemma 3 and 4: log-probabilities equal transformers', and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audio_cases import sound
from image_processor_cases import picture
from quire import LLM, SamplingParams
from quire._native.core import find_device
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.errors import CapacityError, UnsupportedError
from quire.files.gguf import GGUFReader
from quire.models.media import load_media
from tiny_media import TinyFamily, family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def chat_of(*sizes: tuple[int, int]) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = [{"type": "image", "image": picture(*size)} for size in sizes]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "compare"}]}]


def check_log_probabilities(found: TinyFamily, items: list[Any], folder: Path, kernels: str) -> None:
    """Compare those after images ``[height, width, 3]`` and sounds ``[samples]``."""
    oracle = found.make()
    found.save(oracle, folder)
    chat = chat_of(*(item.shape[:2] for item in items if item.ndim == 3))
    sounds: list[dict[str, object]] = [{"type": "audio", "audio": (item, 16_000)} for item in items if item.ndim == 1]
    chat += [{"role": "user", "content": sounds}] if sounds else []
    with LLM(folder, kv_dtype="f32", threads=1, n_ctx=1024, kernels=kernels) as llm:
        result = llm.chat(chat, SamplingParams(temperature=0, max_tokens=1, logprobs=20))
    tokens = torch.tensor([result.prompt_token_ids])
    with torch.no_grad():
        logits = oracle(input_ids=tokens, **found.inputs(oracle, tokens, items)).logits
    expected = torch.log_softmax(logits[0, -1].double(), dim=0).numpy()
    (first,) = result.choices[0].logprobs
    top = dict(first.top)
    assert len(top) == 20
    bound = 1e-3 * float(logits[0, -1].abs().max())
    np.testing.assert_allclose(list(top.values()), expected[list(top)], rtol=0, atol=bound)


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
@pytest.mark.parametrize("name", ["gemma3", "gemma4", "gemma4small", "gemma4uv"])
def test_log_probabilities(name: str, kernels: str, tmp_path: Path) -> None:
    check_log_probabilities(family(name), [picture(90, 200), picture(64, 64)], tmp_path, kernels)


def test_log_probabilities_after_samples(tmp_path: Path) -> None:
    # ggml's tables for GELU, in half precision, cost more here.
    check_log_probabilities(family("gemma4ua"), [picture(90, 200), sound(8_001)], tmp_path, "cpu")


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
def test_squares_of_pixels_without_an_encoder(kernels: Any, tmp_path: Path) -> None:
    found = family("gemma4uv")
    oracle = found.make()
    found.save(oracle, tmp_path)
    convert_projector(tmp_path, tmp_path / "mmproj.gguf", "f32")
    reader = GGUFReader(tmp_path / "mmproj.gguf")
    encoder = MediaEncoder(load_media(reader)["image"], find_device("cpu"), threads=1, kernels=kernels)
    for size in [(64, 64), (97, 211), (32, 640)]:
        image = picture(*size)
        with torch.no_grad():
            expected = found.encoded(oracle, image)
        rows = np.concatenate([encoder.encode(view) for view in encoder.model.views(image)])
        assert rows.shape == expected.shape
        assert np.abs(rows - expected).max() <= 1e-3 * np.abs(expected).max()


def test_samples_without_an_encoder(tmp_path: Path) -> None:
    found = family("gemma4ua")
    oracle = found.make()
    found.save(oracle, tmp_path)
    convert_projector(tmp_path, tmp_path / "mmproj.gguf", "f32")
    encoder = MediaEncoder(load_media(GGUFReader(tmp_path / "mmproj.gguf"))["audio"], find_device("cpu"), threads=1)
    for samples in (sound(1), sound(480), sound(130_000)):
        with torch.no_grad():
            expected = found.encoded(oracle, samples)
        rows = np.concatenate([encoder.encode(view) for view in encoder.model.views(samples)])
        assert rows.shape == expected.shape
        assert np.abs(rows - expected).max() <= 1e-3 * np.abs(expected).max()


def test_an_image_that_is_larger_than_a_step_is_refused(tmp_path: Path) -> None:
    found = family("gemma3")
    found.save(found.make(), tmp_path)
    with (
        LLM(tmp_path, threads=1, n_ctx=256, max_step_tokens=24, max_sequences=1) as llm,
        pytest.raises(CapacityError, match=r"an image has 25 tokens.*at most 24"),
    ):
        llm.chat(chat_of((64, 64)))


def test_another_padding_token_is_refused(tmp_path: Path) -> None:
    found = family("gemma4small")
    found.save(found.make(), tmp_path)
    config: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["pad_token_id"] = 5
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="'pad_token_id': 5"):
        convert_projector(tmp_path, tmp_path / "mmproj.gguf", "f32")
