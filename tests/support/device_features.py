"""The features of the table in docs/devices.md, tried on the simulated device and on Vulkan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import LLM
from quire.engine.loading.loader import packaged_model
from quire.errors import UnsupportedError

__all__ = ["REFUSED", "ROWS", "TABLE", "Use", "check_refused", "check_same"]

PROMPT = "Tell me a story about a fox. The fox said: a fox, a fox, a fox"
OPTIONS: dict[str, Any] = {"threads": 1, "n_ctx": 256, "n_blocks": 24, "max_step_tokens": 32, "max_sequences": 4}
TABLE = (Path(__file__).parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")
Use = Callable[[LLM], Any]


def tokens(llm: LLM, **more: Any) -> list[int]:
    return list(llm.generate(PROMPT, max_tokens=8, temperature=0, **more)[0].token_ids)


def structured(llm: LLM) -> Any:
    form = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    (result,) = llm.generate(
        PROMPT, max_tokens=24, temperature=0, response_format={"type": "json_schema", "json_schema": {"schema": form}}
    )
    return json.loads(result.text).keys()


def scored(llm: LLM) -> Any:
    (result,) = llm.generate(PROMPT, max_tokens=3, temperature=0, logprobs=2)
    assert result.choices[0].logprobs is not None
    return [[value for _, value in each.top] for each in result.choices[0].logprobs]


# The row in docs, options, a result that is the same on the CPU.
ROWS: list[tuple[str, dict[str, Any], Use]] = [
    ("lookup speculation", {"speculation": "lookup"}, tokens),
    ("KV cache in F32, F16, BF16", {"kv_dtype": "bf16"}, lambda llm: tokens(llm)[:2]),
    ("structured output", {}, structured),
    ("logits processors", {}, lambda llm: tokens(llm, logits_processors=[lambda ids, logits: logits])),
    ("log probabilities", {}, scored),
    ("vectors of texts", {}, lambda llm: llm.embed(PROMPT)),
    ("hidden states (`taps`)", {"taps": [1]}, lambda llm: np.asarray(llm.hidden_states([[1, 2, 3]], layers=[1])[0])),
    ("cache in host memory (`cache_ram`)", {"cache_ram": 1 << 24}, tokens),
    ("cache on disk (`cache_disk`)", {"cache_disk": "cache"}, tokens),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("draft model, EAGLE-3", {"draft": str(packaged_model())}, "drafts"),
    ("layers that predict later tokens (`mtp`)", {"speculation": "mtp"}, "mtp"),
    ("KV cache in Q8_0, Q5_1, Q4_0", {"kv_dtype": "q8_0"}, "q8_0"),
    ("packed weights on disk (`packed_cache`)", {"packed_cache": "packed"}, "packed"),
]


def check_same(name: str, options: dict[str, Any], use: Use, device: str) -> None:
    """Check that a feature has the same result on a device as on the CPU."""
    made = []
    for place in ("cpu", device):
        with LLM(**OPTIONS, **options, device=place) as llm:
            made.append(use(llm))
    if isinstance(made[0], np.ndarray) or name == "log probabilities":
        np.testing.assert_allclose(made[1], made[0], atol=0.03 * np.abs(np.asarray(made[0])).max())
    else:
        assert made[1] == made[0]


def check_refused(options: dict[str, Any], words: str, device: str) -> None:
    """Check that a device refuses options by name."""
    with pytest.raises(UnsupportedError, match=words):
        LLM(**OPTIONS, **options, device=device)
