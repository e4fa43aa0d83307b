"""Many different requests at once, each compared with itself alone.

By hand: ``PYTHONPATH=python:tests/support python -m mixed_requests 10000``.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.engine import LLM, AsyncLLM

__all__ = ["Figures", "kinds", "run"]

PROMPTS = ["Once upon a time", "The red fox", "A dog and a cat", "One day, " * 12, "Tom said"]
OPTIONS: dict[str, Any] = {"threads": 1, "n_ctx": 256, "kv_dtype": "f32"}


def kinds() -> list[dict[str, Any]]:
    """Return requests of all kinds, as keywords of ``generate``."""
    return [
        {"temperature": 0.0, "max_tokens": 16},
        {"seed": 1, "max_tokens": 24, "top_k": 40, "repetition_penalty": 1.2, "dry_multiplier": 0.5},
        {"seed": 2, "max_tokens": 12, "n": 4},
        {"temperature": 0.0, "max_tokens": 24, "banned_strings": [" a ", "was", "the"]},
        {"seed": 3, "max_tokens": 24, "banned_strings": ["e"], "n": 2, "mirostat": 2},
        {"seed": 4, "max_tokens": 16, "bad_words": ["was", "there", "day"], "logprobs": 3},
        {"seed": 5, "max_tokens": 40, "regex": "[a-z]{3,9}(, [a-z]{3,9}){1,4}"},
        {"seed": 6, "max_tokens": 24, "regex": "[a-z]{2,30}", "banned_strings": ["th", "an", "e"]},
        {"seed": 7, "max_tokens": 16, "adaptive_target": 0.3, "min_p": 0.02, "n": 2},
        {"seed": 8, "max_tokens": 8, "guidance_scale": 2.0, "negative_prompt": "The slow tortoise"},
        {"seed": 9, "max_tokens": 16, "allowed_token_ids": list(range(200, 1500)), "stop": ["and"]},
        {"seed": 10, "max_tokens": 12, "logit_bias": {300: 5.0}, "prompt_logprobs": 1},
        {"temperature": 0.0, "max_tokens": 60, "speculation": "lookup", "prediction": "there was a little girl"},
    ]


@dataclass
class Figures:
    """The figures of a run."""

    n_requests: int
    n_cancelled: int
    n_different: int
    seconds: float
    n_requests_left: int
    n_failed_checks: int
    n_free_blocks: tuple[int, int]  # before and after
    memory_mib: tuple[float, float]  # once every kind has run, and at the end


def _said(result: Any) -> list[tuple[list[int], str]]:
    return [(choice.token_ids, choice.text) for choice in result.choices]


def run(
    n: int, *, n_prompts: int = len(PROMPTS), at_once: int = 32, seed: int = 0,
    tell: Callable[[int], None] = lambda _: None,
) -> Figures:  # fmt: skip
    """Run n requests, a tenth of which are cancelled."""
    wanted = [(prompt, each) for prompt in PROMPTS[:n_prompts] for each in kinds()]
    with LLM(**OPTIONS) as llm:
        alone = [_said(llm.generate(prompt, **each)[0]) for prompt, each in wanted]
    return asyncio.run(_together(wanted, alone, n, at_once, random.Random(seed), tell))


async def _together(
    wanted: list[tuple[str, dict[str, Any]]],
    alone: list[list[tuple[list[int], str]]],
    n: int,
    at_once: int,
    draw: random.Random,
    tell: Callable[[int], None],
) -> Figures:
    different = cancelled = 0
    places = asyncio.Semaphore(at_once)
    async with AsyncLLM(**OPTIONS) as llm:

        async def one(number: int) -> None:
            nonlocal different, cancelled
            prompt, fields = wanted[number]
            leaves = draw.random() < 0.1
            async with places:
                if leaves:
                    n_read = draw.randrange(1, 9)
                    async for _ in (stream := llm.stream(prompt, **fields)):
                        n_read -= 1
                        if not n_read:
                            break
                    await stream.aclose()
                    cancelled += 1
                else:
                    (result,) = await llm.generate(prompt, **fields)
                    different += _said(result) != alone[number]

        async def several(numbers: list[int]) -> None:
            await asyncio.gather(*map(one, numbers))

        before = llm.stats().n_free_blocks
        await several(list(range(len(wanted))))
        start, memory, started = 0, _memory_mib(), time.monotonic()
        while start < n:
            size = min(1000, n - start)
            await several([draw.randrange(len(wanted)) for _ in range(size)])
            start += size
            tell(start)
        seconds = time.monotonic() - started
        for _ in range(100):  # cancelled requests end with the next step
            stats = llm.stats()
            if not stats.n_requests:
                break
            await asyncio.sleep(0.05)
        return Figures(
            n + len(wanted), cancelled, different, seconds, stats.n_requests, stats.n_failed_checks,
            (before, stats.n_free_blocks), (memory, _memory_mib()),
        )  # fmt: skip


def _memory_mib() -> float:
    gc.collect()
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(run(int(sys.argv[1]), tell=lambda n: print(n, flush=True)))
