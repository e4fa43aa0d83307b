"""Encoders of sounds equal transformers', with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audio_cases import sound
from encoder_layers import deviation_of_layers
from quire._native.core import find_device
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.files.gguf import GGUFReader
from quire.models.media import load_media
from tiny_media import AUDIO_FAMILIES, TinyFamily, family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

LENGTHS = [801, 4_001, 12_345, 48_000, 480_000]
# Qwen2-Audio's processor drops what comes after 30 seconds.
LONG = {"qwen3asr": [560_000], "ultravox": [560_000], "voxtral": [560_000]}


@pytest.fixture(scope="module", params=AUDIO_FAMILIES)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, TinyFamily, Any, Path]:
    found = family(request.param)
    model, folder = found.make(), tmp_path_factory.mktemp(request.param)
    found.save(model, folder)
    convert_projector(folder, folder / "mmproj.gguf", "f32")
    return request.param, found, model, folder / "mmproj.gguf"


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
def test_rows(saved: tuple[str, TinyFamily, Any, Path], kernels: Any) -> None:
    name, found, model, file = saved
    encoder = MediaEncoder(load_media(GGUFReader(file))["audio"], find_device("cpu"), threads=2, kernels=kernels)
    # ggml's operators take long for whole windows.
    for length in LENGTHS + LONG.get(name, []) if kernels == "cpu" else LENGTHS[1:2]:
        samples = sound(length)
        with torch.no_grad():
            expected = found.encoded(model, samples)
        rows = np.concatenate([encoder.encode(view) for view in encoder.model.views(samples)])
        assert rows.shape == expected.shape
        assert sum(encoder.model.layout(samples).n_tokens) == len(rows)
        assert np.abs(rows - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
def test_layers(saved: tuple[str, TinyFamily, Any, Path], kernels: Any) -> None:
    _, found, oracle, file = saved
    model = load_media(GGUFReader(file))["audio"]
    assert deviation_of_layers(found, oracle, model, sound(4_001), kernels) <= 1e-3
