"""Steps with a target duration.

Oracles: the same requests without one, and numbers of steps worked out by hand.
"""

from __future__ import annotations

import pytest
from quire.engine import LLM, EngineConfig
from quire.errors import RequestError
from quire.params.sampling import SamplingParams

PROMPT = [(7 * i) % 200 + 30 for i in range(1500)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def answered(step_s: float | None, max_sequences: int = 32) -> tuple[list[int], int]:
    """Return the tokens of the answer, and the number of steps of the prompt."""
    with LLM(threads=1, kv_dtype="f32", step_s=step_s, max_sequences=max_sequences) as llm:
        (result,) = llm.generate(PROMPT, GREEDY)
        return result.token_ids, llm.stats().n_steps - 7


@pytest.mark.slow  # sanitizers change the duration of steps
def test_a_prompt_is_read_in_parts_that_fit_the_time() -> None:
    expected, n_steps = answered(None)
    assert n_steps == 3  # 512 + 512 + 476
    # No step is fast enough: 23 parts of 64 tokens, and one of 28.
    assert answered(1e-9) == (expected, 24)
    # Every step is fast enough: each part doubles, 64 + 128 + 256 + 512 + 512 + 28.
    assert answered(1000.0) == (expected, 6)
    # A part is at least max_sequences tokens.
    assert answered(1e-9, max_sequences=100) == (expected, 15)


@pytest.mark.parametrize("step_s", [0, -1.0, 1e9, float("nan"), True, "1"])
def test_an_invalid_time_is_rejected(step_s: object) -> None:
    with pytest.raises(RequestError, match=r"^\[engine\] step_s "):
        EngineConfig(step_s=step_s)  # type: ignore[arg-type]
