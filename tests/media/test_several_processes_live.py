"""Images in front of a model in several processes: the first one encodes them, and all read their rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import picture
from quire import LLM, SamplingParams
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")


@pytest.mark.parametrize(
    ("name", "option"), [("gemma3", "tensor_parallel_size"), ("qwen3vl", "pipeline_parallel_size")]
)
def test_log_probabilities_are_those_of_one_process(name: str, option: str, tmp_path: Path) -> None:
    found = family(name)
    found.save(found.make(), tmp_path)
    content: list[dict[str, object]] = [
        {"type": "image", "image": picture(90, 200)},
        {"type": "text", "text": "compare " * 20},
    ]

    def top(**options: Any) -> dict[int, float]:
        with LLM(tmp_path, kv_dtype="f32", threads=1, n_ctx=1024, **options) as llm:
            chat = [{"role": "user", "content": content}]
            result = llm.chat(chat, SamplingParams(temperature=0, max_tokens=1, logprobs=20))
        return dict(result.choices[0].logprobs[0].top)

    expected, made = top(), top(**{option: 2})
    assert made.keys() == expected.keys()
    np.testing.assert_allclose(list(made.values()), [expected[token] for token in made], rtol=0, atol=1e-3)
