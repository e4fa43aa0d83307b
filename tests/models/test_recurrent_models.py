"""Models with recurrent states or latent rows in the engine.

Oracles: transformers' stored greedy answer, each request run alone, and the logits of the whole text without a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from quire.engine import LLM
from quire.errors import UnsupportedError
from quire.params.sampling import SamplingParams
from tiny_checkpoints import write_checkpoint

REFERENCES = Path(__file__).resolve().parents[1] / "references"
NAMES = ["lfm2", "qwen35", "mamba2", "kimi-linear", "rwkv7"]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.8, seed=5, ignore_eos=True)
Opened = Callable[..., LLM]


def texts() -> list[list[int]]:
    """Return ids of random bytes, in several lengths."""
    random = np.random.default_rng(11)
    return [random.integers(0, 256, n).tolist() for n in (40, 3, 77, 33, 64, 1)]


@pytest.fixture(params=NAMES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Return a function that opens the model with engine options, from a checkpoint's folder."""
    write_checkpoint(tmp_path / "model", request.param)
    models: list[LLM] = []

    def make(**options: object) -> LLM:
        models.append(LLM(tmp_path / "model", **{"kv_dtype": "f32", "threads": 1, "n_ctx": 256, **options}))  # type: ignore[arg-type]
        return models[-1]

    yield make
    for model in models:
        model.close()


@pytest.mark.parametrize("name", NAMES)
def test_answers_equal_transformers(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / name, name)
    stored = np.load(REFERENCES / "models" / f"{name}.npz")
    prompt = stored["prompt"].tolist()[:12]
    with LLM(tmp_path / name, kv_dtype="f32", threads=1, n_ctx=64) as model:
        params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
        found = model.generate(prompt, params)[0].token_ids
        expected = stored["greedy"].tolist()
        ends = [i for i, token in enumerate(expected) if token in model.tokenizer.eog_ids]
        n = ends[0] if ends else len(expected)  # end tokens are never chosen if they are ignored
        assert n > 8
        assert found[:n] == expected[:n]


def test_batched_equals_alone(opened: Opened) -> None:
    prompts, model = texts(), opened()
    for params in (GREEDY, SAMPLED):
        together = [result.token_ids for result in model.generate(prompts, params)]
        assert [opened().generate(prompt, params)[0].token_ids for prompt in prompts] == together


def test_cached_and_resumed_equals_fresh(opened: Opened) -> None:
    first, more = texts()[2], texts()[0]
    model = opened(snapshot_tokens=32)
    answer = model.generate(first, GREEDY)[0].token_ids
    assert model.stats().n_prefix_hit_tokens == 0
    turns = [first + answer + more, first + answer + more, first[:64] + more]
    for turn in turns:
        before = model.stats().n_prefix_hit_tokens
        found = model.generate(turn, GREEDY)[0].token_ids
        assert model.stats().n_prefix_hit_tokens - before >= 64
        assert found == opened().generate(turn, GREEDY)[0].token_ids
    rows = model.logits(turns[0] + found)
    assert rows.shape[0] == len(turns[0]) + len(found)


def test_greedy_follows_the_logits(opened: Opened) -> None:
    model, prompt = opened(), texts()[0]
    answer = model.generate(prompt, GREEDY)[0].token_ids
    rows = model.logits(prompt + answer)
    rows[:, sorted(model.tokenizer.eog_ids)] = -np.inf
    assert rows[len(prompt) - 1 : -1].argmax(axis=-1).tolist() == answer


@pytest.mark.parametrize(
    "opened", ["lfm2", "deepseek2-v3"], indirect=True
)  # others have room for a state, or wait for one
def test_preempted_equals_undisturbed(opened: Opened) -> None:
    params = SamplingParams(max_tokens=60, temperature=0.7, seed=2, ignore_eos=True)
    prompts = [prompt + prompt for prompt in texts()]
    undisturbed = [opened().generate(prompt, params)[0].token_ids for prompt in prompts]
    scarce = opened(n_blocks=13)
    # On a busy machine the first answer may end before the others begin.
    for _ in range(10):
        assert [result.token_ids for result in scarce.generate(prompts, params)] == undisturbed
        if scarce.stats().n_preemptions:
            return
    pytest.fail("no answer was preempted")


def test_choices_equal_separate_requests(opened: Opened) -> None:
    """Each choice gets a copy of the state at the end of the prompt."""
    prompt, model = texts()[3], opened()
    choices = model.generate(prompt, SamplingParams(max_tokens=16, n=4, seed=17, ignore_eos=True))[0].choices
    assert len({tuple(choice.token_ids) for choice in choices}) == 4
    for choice in choices:
        rows = model.logits(prompt + choice.token_ids)
        assert np.isfinite(rows).all()
    again = opened().generate([texts()[0], prompt], SamplingParams(max_tokens=16, n=4, seed=17, ignore_eos=True))[1]
    assert [choice.token_ids for choice in choices] == [choice.token_ids for choice in again.choices]
    greedy = model.generate(prompt, SamplingParams(max_tokens=16, n=3, temperature=0.0, ignore_eos=True))[0].choices
    alone = opened().generate(prompt, SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True))[0].token_ids
    assert [choice.token_ids for choice in greedy] == [alone] * 3


def test_quantized_caches_are_rejected_for_models_without_keys(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "mamba2", "mamba2")
    with pytest.raises(UnsupportedError, match=r"kv_dtype q4_0 .* no keys and values"):
        LLM(tmp_path / "mamba2", kv_dtype="q4_0", threads=1, n_ctx=64)
