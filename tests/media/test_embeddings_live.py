"""Embeddings of prompts with images.  Oracle: transformers' hidden states of the same model and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import data_url, picture
from quire import LLM, SamplingParams
from quire.engine.requests.prompts import RequestOptions
from quire.errors import RequestError
from quire.params.chat_options import ChatOptions
from served import served
from tiny_media import family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

PICTURES = [picture(64, 96), picture(80, 48)]


def chat(llm: LLM, messages: list[dict[str, Any]], *, begins: bool = False) -> list[int]:
    """Return the ids of a conversation's prompt."""
    options = ChatOptions(add_generation_prompt=begins)
    return list(llm._prompts.chat_draft(messages, None, RequestOptions(), options).engine.token_ids)


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
        url = data_url(PICTURES[1])
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
        messages = [{"role": "system", "content": "Represent it."}, {"role": "user", "content": parts}]
        shown = [
            chat(llm, messages),
            chat(llm, messages, begins=True),
            chat(llm, [{"role": "user", "content": parts[:1]}]),
        ]

    def states_of(ids: list[int], pictures: list[Any]) -> Any:
        tokens = torch.tensor([ids])
        more = found.inputs(oracle, tokens, pictures) if pictures else {}
        with torch.no_grad():
            return oracle(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), output_hidden_states=True, **more
            ).hidden_states[-1][0]

    options = ["-m", str(tmp_path), "--kv-dtype", "f32", "-c", "1024", "-t", "1"]
    with served(tmp_path, options) as server, server.client() as client:
        bodies = [
            {"messages": messages}, {"messages": messages, "add_generation_prompt": True}, {"input": [{"image": url}]},
        ]  # fmt: skip
        for body, ids in zip(bodies, shown, strict=True):
            answer = client.post("/v1/embeddings", json={**body, "normalize": False}).json()
            expected = states_of(ids, PICTURES[1:])[-1].numpy()
            assert np.abs(np.array(answer["data"][0]["embedding"]) - expected).max() <= 1e-3 * np.abs(expected).max()
            assert answer["usage"]["prompt_tokens"] == len(ids)
        assert client.post("/v1/embeddings", json={"input": "x", "messages": messages}).status_code == 400
    for i, ids in enumerate(made):
        states = states_of(ids, PICTURES[i : i + 1])
        assert np.abs(vectors[i] - states[-1].numpy()).max() <= 1e-3 * states[-1].abs().max()
        if i == 0:
            assert np.abs(mean - states.mean(0).numpy()).max() <= 1e-3 * states.mean(0).abs().max()
