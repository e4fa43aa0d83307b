"""Models that see and hear: rows of both encoders and answers equal transformers', with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audio_cases import sound
from encoder_layers import deviation_of_layers
from image_processor_cases import picture
from quire import LLM, SamplingParams
from quire._native.core import find_device
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.files.gguf import GGUFReader
from quire.models.media import load_media
from tiny_media import OMNI_FAMILIES, TinyFamily, family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

Saved = tuple[str, TinyFamily, Any, Path]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
ITEMS: dict[str, list[Any]] = {
    "image": [picture(97, 211), picture(32, 640)],
    # In pieces of 2 seconds, which end within, at and behind a frame of another.
    "audio": [sound(4_001), sound(64_000), sound(64_161)],
}
PROMPTS: dict[str, list[Any]] = {
    "both": ["see ", ITEMS["image"][0], " and hear ", sound(40_123), ": what is it?"],
    "sound first": [sound(19_000), ITEMS["image"][1], sound(33_000), picture(64, 64)],
    "sounds": [sound(9_000), "?"],
}


@pytest.fixture(scope="module", params=OMNI_FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    found = family(request.param)
    model, folder = found.make(), tmp_path_factory.mktemp(request.param)
    found.save(model, folder)
    return request.param, found, model, folder


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
def test_encoders(saved: Saved, kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found, oracle, folder = saved
    monkeypatch.setattr("quire.engine.media.FIRST_PATCHES", 128)  # larger items make room for themselves
    file = folder / f"mmproj-{kernels}.gguf"
    convert_projector(folder, file, "f32")
    models = load_media(GGUFReader(file))
    assert set(models) == set(ITEMS)
    for kind, model in models.items():
        encoder = MediaEncoder(model, find_device("cpu"), threads=2, kernels=kernels)
        for item in ITEMS[kind] if kernels == "cpu" else ITEMS[kind][:1]:
            with torch.no_grad():
                expected = found.encoded(oracle, item)
            rows = np.concatenate([encoder.encode(view) for view in model.views(item)])
            assert rows.shape == expected.shape
            assert sum(model.layout(item).n_tokens) == len(rows)
            assert np.abs(rows - expected).max() <= 1e-3 * np.abs(expected).max()
        if any(stage.n_layer for stage in model.stages.values()):  # Gemma 4's encoder of sounds has stages in layers
            assert deviation_of_layers(found, oracle, model, ITEMS[kind][0], kernels) <= 1e-3


def part_of(part: Any) -> dict[str, object]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "image": part} if part.ndim == 3 else {"type": "audio", "audio": (part, 16_000)}


@pytest.fixture(scope="module")
def llm(saved: Saved) -> Iterator[LLM]:
    with LLM(saved[3], mmproj="auto", kv_dtype="f32", threads=1, n_ctx=2048, max_step_tokens=80) as opened:
        yield opened


def test_greedy_answers(saved: Saved, llm: LLM) -> None:
    _, found, oracle, _ = saved
    for name, prompt in PROMPTS.items():
        result = llm.chat([{"role": "user", "content": [part_of(part) for part in prompt]}], GREEDY)
        items = [part for part in prompt if not isinstance(part, str)]
        expected = found.greedy(oracle, result.prompt_token_ids, items)
        assert result.choices[0].token_ids == expected, name
