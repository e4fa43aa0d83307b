"""Models that read images or hear sounds, on ggml's Vulkan backend on the CPU (ci/devices).  Oracle: transformers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from audio_cases import sound
from image_processor_cases import picture
from quire import LLM, SamplingParams
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.files.gguf import GGUFReader
from quire.models.media import load_media
from quire.selftest.results import deviation_of
from tiny_media import AUDIO_FAMILIES, FAMILIES, family
from vulkan_device import vulkan

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.device, pytest.mark.python_only]
TOLERANCE = 5e-3  # relative to the norm of the rows; Vulkan's products round activations to F16

# Deep stack; windows; pooling; convolutions over sound.  `ci/devices --whole` runs all.
SOME = ["qwen3vl", "qwen25vl", "gemma3", "qwen3asr"]
NAMES = [*FAMILIES, *AUDIO_FAMILIES] if os.environ.get("QUIRE_DEVICES_WHOLE") == "1" else SOME


@pytest.fixture(scope="module", autouse=True)
def device() -> object:
    return vulkan()


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_an_encoder(name: str, tmp_path: Path) -> None:
    import torch

    found = family(name)
    oracle = found.make()
    found.save(oracle, tmp_path)
    convert_projector(tmp_path, tmp_path / "mmproj.gguf", "f32")
    hears = name in AUDIO_FAMILIES
    model = load_media(GGUFReader(tmp_path / "mmproj.gguf"))["audio" if hears else "image"]
    encoder = MediaEncoder(model, vulkan(), threads=1)
    for item in (sound(4_001), sound(12_345)) if hears else (picture(64, 64), picture(97, 211)):
        with torch.no_grad():
            expected = found.encoded(oracle, item)
        rows = model.assembled([encoder.encode(view) for view in model.views(item)], model.layout(item))
        assert deviation_of(rows, expected) <= TOLERANCE


def test_answers_about_images(tmp_path: Path) -> None:
    found = family("qwen3vl")
    oracle = found.make()
    found.save(oracle, tmp_path)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(tmp_path, device="vulkan", mmproj="auto", kv_dtype="f32", n_ctx=512) as llm:
        for image in (picture(97, 211), picture(211, 97)):
            chat = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "?"}]}]
            result = llm.chat(chat, greedy)
            assert result.choices[0].token_ids == found.greedy(oracle, result.prompt_token_ids, [image])
