"""Continuous batching changes no answer of the packaged model: each request, run alone, is its own oracle."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest
from quire import LLM, GenerationResult, SamplingParams

# Prefixes that several requests share, longer than a block of 32 tokens.
PREFIXES = [
    "Once upon a time there was a little fox who lived in the forest with her mother and her two brothers. Every morning "
    "she walked to the river and looked at the fish. ",
    "<|im_start|>system\nYou are a helpful assistant. You answer questions about animals, cities and days of the week, and "
    "you are kind to everybody who asks you something.<|im_end|>\n<|im_start|>user\n",
    "",
]
ENDINGS = [
    "One day",
    "What is the capital of France?",
    "The bird said",
    "Tell me a story",
    "But then",
    "Who",
    "It was",
    "In the",
]


def requests(n: int) -> tuple[list[str], list[SamplingParams]]:
    """Return prompts of mixed lengths, greedy and sampled, with penalties, log-probabilities and several choices among them."""
    rng = np.random.default_rng(3)
    prompts, params = [], []
    for i in range(n):
        prompts.append(PREFIXES[i % 3] + ENDINGS[i % len(ENDINGS)] + " and" * int(rng.integers(0, 20)))
        params.append(
            SamplingParams(
                max_tokens=int(rng.integers(4, 120)),
                temperature=0.0 if i % 2 else 0.9,
                seed=1000 + i,
                ignore_eos=i % 4 != 0,
                frequency_penalty=0.3 if i % 5 == 0 else 0.0,
                logprobs=2 if i % 4 == 0 else None,
                n=3 if i % 11 == 0 else 1,
            )
        )
    return prompts, params


def contents(result: GenerationResult) -> list[tuple[object, ...]]:
    """Return everything but the timings: tokens, text, reasons and the bits of log-probabilities."""
    return [(c.token_ids, c.text, c.finish_reason, c.stop_reason, c.logprobs) for c in result.choices]


SLOW = [pytest.param(slow, marks=pytest.mark.slow) for slow in ("f16", "f32", "q8_0")]


@pytest.mark.parametrize("kv_dtype", [*SLOW, "q8_0/q4_0"])
def test_32_requests_through_a_pool_that_is_too_small(kv_dtype: str) -> None:
    prompts, params = requests(32)
    with LLM(threads=1, n_ctx=256, kv_dtype=kv_dtype) as alone:  # type: ignore[arg-type]
        expected = [contents(alone.generate(prompt, one)[0]) for prompt, one in zip(prompts, params, strict=True)]
    # 14 blocks hold 448 tokens; the requests together need ten times as many.
    with LLM(threads=1, n_ctx=256, kv_dtype=kv_dtype, n_blocks=15) as small:  # type: ignore[arg-type]
        found = [contents(result) for result in small.generate(prompts, params)]
        stats = small.stats()
        assert found == expected
        assert stats.n_preemptions > 0
        assert stats.n_prefix_hit_tokens > 0
        assert stats.n_free_blocks == stats.n_usable_blocks
        assert stats.n_requests == 0
        assert stats.n_failed_checks == 0, stats.failed_check


def test_decoding_goes_on_while_the_gil_is_held() -> None:
    sleep_holding_the_gil = ctypes.PyDLL(None).usleep  # PyDLL does not release the GIL
    with LLM(threads=1, n_ctx=2048) as llm:
        started = threading.Event()

        def consume() -> None:
            for _ in llm.stream("Once upon a time", SamplingParams(max_tokens=1900, temperature=0.0, ignore_eos=True)):
                started.set()

        thread = threading.Thread(target=consume)
        thread.start()
        started.wait(20)
        before, begin = llm.stats().n_steps, time.monotonic()
        sleep_holding_the_gil(1_000_000)
        after, seconds = llm.stats().n_steps, time.monotonic() - begin
        llm.close()
        thread.join()
    assert seconds >= 1
    assert after - before > 20  # the GIL was held, so Python could not have run
