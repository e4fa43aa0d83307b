"""Prompts of embeddings.

Oracle: the same prompt as token ids; the rows are those of the checkpoint's matrix.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from quire.engine import LLM
from quire.errors import QuireError, UnsupportedError
from quire.files.safetensors import SafetensorsFile
from served import served
from tiny_checkpoints import write_checkpoint

IDS = np.random.default_rng(2).integers(0, 256, 70).tolist()
GREEDY = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}


def test_rows_equal_their_tokens(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "llama")
    (file,) = (tmp_path / "hf").glob("*.safetensors")
    matrix = SafetensorsFile(file).tensor("model.embed_tokens.weight").numpy().astype(np.float32)
    rows = matrix[IDS]
    options = {"threads": 1, "n_ctx": 128, "kv_dtype": "f32"}
    with LLM(tmp_path / "hf", **options) as plain:  # type: ignore[arg-type]
        expected = plain.generate([IDS, IDS[:33]], **GREEDY)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="enable_prompt_embeds"):
            plain.generate({"prompt_embeds": rows})
    with LLM(tmp_path / "hf", enable_prompt_embeds=True, **options) as llm:  # type: ignore[arg-type]
        prompts = [{"prompt_embeds": rows}, {"prompt_embeds": rows[:33]}, IDS]
        for _ in range(2):
            found = llm.generate(prompts, **GREEDY)  # type: ignore[arg-type]
            assert [each.token_ids for each in found] == [e.token_ids for e in (*expected, expected[0])]
        assert found[0].n_cached_tokens == 64
        for wrong, text in (
            (rows[:, :3], r"shape \[70, 3\]"), (rows * np.inf, "not finite"), (b"PK\x03\x04", "pickle"),
            (b"x" * 20, "neither"), ("x", "no array"),
        ):  # fmt: skip
            with pytest.raises(QuireError, match=text):
                llm.generate({"prompt_embeds": wrong})
    file_of = io.BytesIO()
    np.save(file_of, rows)
    body = {"prompt_embeds": base64.b64encode(file_of.getvalue()).decode(), **GREEDY}
    with (
        served(tmp_path, [str(tmp_path / "hf"), "--enable-prompt-embeds", "--kv-dtype", "f32"]) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        answer = client.post("/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"] == expected[0].text
        assert client.post("/v1/completions", json={**body, "echo": True}).status_code == 400
