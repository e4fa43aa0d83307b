"""Encoders of images equal transformers', with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_layers import deviation_of_layers
from image_processor_cases import picture
from quire._native.core import find_device
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.files.gguf import GGUFReader
from quire.models.media import load_media
from tiny_media import FAMILIES, TinyFamily, family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SIZES = [(64, 64), (97, 211), (333, 100), (32, 640), (40, 33), (224, 224)]


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyFamily, Any, Path]:
    found = family(request.param)
    model, folder = found.make(), tmp_path_factory.mktemp(request.param)
    found.save(model, folder)
    convert_projector(folder, folder / "mmproj.gguf", "f32")
    return found, model, folder / "mmproj.gguf"


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
def test_rows(saved: tuple[TinyFamily, Any, Path], kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, model, file = saved
    monkeypatch.setattr("quire.engine.media.FIRST_PATCHES", 64)  # larger images make room for themselves
    encoder = MediaEncoder(load_media(GGUFReader(file))["image"], find_device("cpu"), threads=2, kernels=kernels)
    for size in SIZES if kernels == "cpu" else SIZES[:3]:
        image = picture(*size)
        with torch.no_grad():
            expected = found.encoded(model, image)
        views = [encoder.encode(view) for view in encoder.model.views(image)]
        rows = encoder.model.assembled(views, encoder.model.layout(image))
        assert rows.shape == expected.shape
        assert np.abs(rows - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
def test_layers(saved: tuple[TinyFamily, Any, Path], kernels: Any) -> None:
    found, oracle, file = saved
    model = load_media(GGUFReader(file))["image"]
    assert deviation_of_layers(found, oracle, model, picture(97, 211), kernels) <= 1e-3
