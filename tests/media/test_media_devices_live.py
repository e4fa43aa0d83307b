"""A model and its encoder on the counting device: answers equal transformers', and weights are uploaded once."""

from __future__ import annotations

from pathlib import Path

import pytest
from counting_device import CountingDevice, counting_device
from image_processor_cases import picture
from quire import LLM, SamplingParams
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture
def counting() -> CountingDevice:
    return counting_device()


# Deep stack; windows; images that are seen both ways.
@pytest.mark.parametrize("name", ["qwen3vl", "qwen25vl", "gemma3"])
def test_images_on_a_device(name: str, tmp_path: Path, counting: CountingDevice) -> None:
    found = family(name)
    oracle = found.make()
    found.save(oracle, tmp_path)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    uploaded = []
    with LLM(tmp_path, device="Counting0", fit_target=0, mmproj="auto", kv_dtype="f32", n_ctx=512) as llm:
        for image in (picture(97, 211), picture(211, 97)):
            chat = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "?"}]}]
            counting.reset()
            result = llm.chat(chat, greedy)
            uploaded.append(counting.counts().upload_bytes)
            # The language model computes one graph for each token, the encoder at least one.
            assert counting.counts().computes > greedy.max_tokens
            assert result.choices[0].token_ids == found.greedy(oracle, result.prompt_token_ids, [image])
    weights = sum(4 * x.numel() for part, x in oracle.named_parameters() if "vis" in part)
    assert uploaded[0] - uploaded[1] > weights / 3  # or f16


def test_the_cache_leaves_room_for_the_encoder(tmp_path: Path, counting: CountingDevice) -> None:
    found = family("qwen3vl")
    found.save(found.make(), tmp_path)
    chat = [{"role": "user", "content": [{"type": "image", "image": picture(64, 64)}]}]
    with counting.memory(64 << 20), LLM(tmp_path, device="Counting0", fit_target=0, mmproj="auto") as llm:
        before = counting.held_bytes()
        llm.chat(chat, SamplingParams(max_tokens=1))
        assert counting.held_bytes() > before
