"""Heads and predicting layers change no answer of 200 requests, in steps of 1, 8 and 32 sequences.

Greedy and drawn answers, some of a form, with sequences that are preempted and others that are cancelled meanwhile.
Oracle: the same requests without drafts, bit for bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from eagle_heads import write_agreeing
from quire.checkpoints.conversion import convert
from quire.engine import AsyncLLM
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredOutputsParams
from test_mtp_llm import write_agreeing as write_agreeing_layer

pytestmark = pytest.mark.python_only
WORDS = ("river", "tree", "cat", "sun", "boat", "road", "king", "song")
FORM = r"(one|two|three)( and (one|two|three)){4}"


def request(i: int) -> tuple[str, SamplingParams]:
    text = f"{'A text of some length. ' * (i % 2)}{WORDS[i % 8]} {i}"
    # The first 60, which start together, are long, so that they fill the cache.
    fields: dict[str, Any] = {"max_tokens": 90 if i < 60 else 10 + i % 31, "temperature": 0.0}
    if i % 3 == 0 and i >= 60:
        return text, SamplingParams(**fields, structured_outputs=StructuredOutputsParams(regex=FORM))
    if i % 5 == 0:
        fields |= {"temperature": 0.9, "seed": i, "n": 2}
    return text, SamplingParams(**fields, ignore_eos=True, logprobs=1)


REQUESTS = [request(i) for i in range(200)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """A model and its options, by drafter."""
    folder = tmp_path_factory.mktemp("models")
    write_agreeing(folder / "llama", folder / "head", "llama")
    convert(folder / "llama", folder / "llama.gguf", "f32")
    write_agreeing_layer(folder / "glm4moe", "glm4moe")
    convert(folder / "glm4moe", folder / "glm4moe.gguf", "f32")
    return {
        "eagle": (folder / "llama.gguf", {"draft": folder / "head"}),
        "mtp": (folder / "glm4moe.gguf", {}),
    }


async def answers(llm: AsyncLLM, *, n_cancelled: int) -> list[object]:
    """Return the answers to all requests while others are cancelled after their first tokens."""

    async def begin(text: str) -> None:
        async for _ in llm.stream(text, SamplingParams(max_tokens=100, ignore_eos=True)):
            return

    doomed = [asyncio.create_task(begin(f"{word} and on")) for word in WORDS * n_cancelled]
    results = await llm.generate([text for text, _ in REQUESTS], [params for _, params in REQUESTS])
    for task in doomed:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return [[(c.token_ids, c.text, c.logprobs, c.finish_reason) for c in result.choices] for result in results]


def answered(path: Path, n_cancelled: int = 0, **options: Any) -> tuple[list[object], Any]:
    async def run() -> tuple[list[object], Any]:
        llm = await asyncio.to_thread(AsyncLLM, path, threads=1, n_ctx=192, deterministic=True, **options)
        async with llm:
            return await answers(llm, n_cancelled=n_cancelled), llm.stats()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def plain(models: dict[str, tuple[Path, dict[str, Any]]]) -> dict[str, list[object]]:
    return {name: answered(path)[0] for name, (path, _) in models.items()}


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("kind", ["eagle", "mtp"])
@pytest.mark.parametrize("n_at_once", [1, 8, 32])
def test_200_answers_equal_those_without_a_head(
    models: dict[str, tuple[Path, dict[str, Any]]],
    plain: dict[str, Sequence[object]],
    n_at_once: int,
    kind: str,
    chained: bool,
) -> None:
    path, options = models[kind]
    more = {"draft_max": 4, "draft_min": 4, "max_sequences": n_at_once, "n_blocks": {1: 8, 8: 13, 32: 36}[n_at_once]}
    found, stats = answered(path, 2, speculation="auto" if chained else kind, **options, **more)
    assert found == plain[kind]
    (drafter,) = [each for each in stats.drafters if each.name == kind]
    assert drafter.failure == ""
    assert drafter.n_accepted_tokens > 0.05 * drafter.n_drafted_tokens > 20
    assert (stats.n_preemptions > 0) == (n_at_once > 1)
    assert all(each.n_drafted_tokens > 0 for each in stats.drafters if chained)
