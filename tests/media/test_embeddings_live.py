"""Embeddings of prompts with images.  Oracle: transformers' hidden states of the same model and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from image_processor_cases import picture
from quire import LLM, SamplingParams
from quire.errors import RequestError
from tiny_media import family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

PICTURES = [picture(64, 96), picture(80, 48)]


def test_texts_with_images(tmp_path: Path) -> None:
    found = family("qwen2vl")
    oracle = found.make()
    found.save(oracle, tmp_path)
    texts = ["look: <__media__> what?", "<__media__>", "no picture"]
    prompts = [{"prompt": text, "images": [image]} for text, image in zip(texts, PICTURES, strict=False)]
    with LLM(tmp_path, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=1024) as llm:
        vectors = llm.embed([*prompts, texts[2]], normalize=False)
        (mean,) = llm.embed(prompts[0], pooling="mean", normalize=False)
        one_token = SamplingParams(max_tokens=1)
        made = [result.prompt_token_ids for result in llm.generate([*prompts, texts[2]], one_token)]
        with pytest.raises(RequestError, match="places for 0 of 1"):
            llm.embed({"prompt": texts[2], "images": [PICTURES[0]]})
    for i, ids in enumerate(made):
        tokens = torch.tensor([ids])
        more = found.inputs(oracle, tokens, PICTURES[i : i + 1]) if i < 2 else {}
        with torch.no_grad():
            states = oracle(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), output_hidden_states=True, **more
            ).hidden_states[-1][0]
        assert np.abs(vectors[i] - states[-1].numpy()).max() <= 1e-3 * states[-1].abs().max()
        if i == 0:
            assert np.abs(mean - states.mean(0).numpy()).max() <= 1e-3 * states.mean(0).abs().max()
