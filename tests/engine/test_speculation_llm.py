"""Speculation with real models: the package's, and a smaller one trained on the same texts.

Oracle: the same requests without it, bit for bit, as only the order of computation differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from quire.engine import LLM, EngineConfig
from quire.engine.requests.results import GenerationResult
from quire.errors import RequestError, UnsupportedError
from quire.params.sampling import SamplingParams
from tiny_checkpoints import write_checkpoint

OPENINGS = ["Once upon a time", "The fox went to", "Tell me about a bird.", "Why is the sky blue?", "A", "One day, the"]
WORDS = ["river", "house", "tree", "cat", "sun", "king", "bread", "song", "boat", "road", "bird"]
PROMPTS = [f"{OPENINGS[i % 6]} {WORDS[i % 8]}" for i in range(48)]
PROMPTS += [f"The list: red, blue, green, {colour}. Again: red, blue," for colour in ("black", "white")]
# With PROMPTS, 200 different prompts.
MORE = [f"{opening} {word} and {other}" for opening in OPENINGS for word in WORDS[:5] for other in WORDS[6:]]
GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True, "logprobs": 2}


def opened(**options: Any) -> LLM:
    return LLM(threads=1, n_ctx=512, deterministic=True, **options)


def comparable(result: GenerationResult) -> object:
    return [(c.token_ids, c.text, c.logprobs, c.finish_reason) for c in result.choices]


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with opened() as llm:
        yield llm


Answers = Callable[[list[str], SamplingParams], list[object]]


@pytest.fixture(scope="module")
def without_drafts(plain: LLM) -> Answers:
    """Each prompt is answered once for all tests; the answers do not depend on others beside them."""
    known: dict[tuple[str, str], object] = {}

    def answers(prompts: list[str], params: SamplingParams) -> list[object]:
        new = [prompt for prompt in prompts if (prompt, repr(params)) not in known]
        known.update({(p, repr(params)): comparable(r) for p, r in zip(new, plain.generate(new, params), strict=True)})
        return [known[prompt, repr(params)] for prompt in prompts]

    return answers


@pytest.fixture(scope="module")
def draft(shared: Path) -> Path:
    return shared / "models" / "tiny-draft"


@pytest.mark.parametrize("kind", ["lookup", "draft", "auto"])
@pytest.mark.parametrize(
    "n_at_once", [1, pytest.param(8, marks=pytest.mark.slow), pytest.param(32, marks=pytest.mark.slow)]
)
def test_drafts_change_no_bit(without_drafts: Answers, draft: Path, kind: str, n_at_once: int) -> None:
    with opened(draft=draft, speculation=kind, draft_max=4, draft_min=4, max_sequences=n_at_once, n_blocks=60) as llm:
        prompts = PROMPTS[:10] if n_at_once == 1 else PROMPTS + MORE
        for params in (SamplingParams(**GREEDY), SamplingParams(max_tokens=24, temperature=0.8, n=2, seed=3)):
            results = llm.generate(prompts, params)
            assert [comparable(result) for result in results] == without_drafts(prompts, params)
            choices = [choice for result in results for choice in result.choices]
            assert sum(choice.n_accepted_tokens for choice in choices) > 0
        for stats in llm.stats().drafters:
            assert stats.failure == ""
            assert (stats.n_drafted_tokens > 0) == (stats.name != "grammar" and kind in (stats.name, "auto"))
        draft_stats = llm.stats().drafters[2]
        # "auto" drafts deeper where larger steps cost little, so fewer of its tokens are right.
        least = 0.3 if kind == "draft" else 0.2
        assert kind == "lookup" or draft_stats.n_accepted_tokens > least * draft_stats.n_drafted_tokens


def test_a_draft_model_has_a_folder_of_its_own_in_the_cache(draft: Path, tmp_path: Path) -> None:
    for n_ctx in (256, 256):
        with LLM(
            draft=draft,
            threads=1,
            n_ctx=n_ctx,
            draft_min=2,
            speculation="draft",
            cache_disk=tmp_path,
            cache_ram=1 << 20,
        ) as llm:
            prompt = [1 + i % 99 for i in range(101)]
            (result,) = llm.generate([prompt], max_tokens=8, temperature=0, ignore_eos=True)
            assert all(not drafter.failure for drafter in llm.stats().drafters)
    assert result.n_disk_tokens == 96
    sizes = [len(list(folder.rglob("*.kv"))) for folder in tmp_path.iterdir() if folder.name != "digests"]
    assert [size > 2 for size in sizes] == [True, True]


def test_depth_by_cost_changes_no_answer(plain: LLM, draft: Path) -> None:
    expected = [comparable(result) for result in plain.generate(PROMPTS, **GREEDY)]
    with opened(draft=draft) as llm:  # auto, because a draft model is given
        assert [comparable(result) for result in llm.generate(PROMPTS, **GREEDY)] == expected


def test_a_request_chooses_its_drafter(plain: LLM) -> None:
    with opened(draft_min=4, draft_max=8) as llm:  # off by default, on request
        (expected,) = plain.generate("Once upon a time", **GREEDY)
        assert llm.generate("Once upon a time", **GREEDY)[0].choices[0].n_drafted_tokens == 0
        (found,) = llm.generate("Once upon a time", prediction=expected.text, **GREEDY)
        assert comparable(found) == comparable(expected)
        assert found.choices[0].n_accepted_tokens > 10
        (off,) = llm.generate("Once upon a time", prediction=expected.text, speculation="off", **GREEDY)
        assert off.choices[0].n_drafted_tokens == 0
        with pytest.raises(RequestError, match=r"'draft'.* auto, off, grammar, lookup"):
            llm.generate("A", speculation="draft", max_tokens=4)


def test_answers_of_a_form_with_drafts(plain: LLM, draft: Path) -> None:
    fields: dict[str, Any] = {
        "regex": r"(one|two|three)( and (one|two|three)){6}",
        "temperature": 0.0,
        "max_tokens": 60,
    }
    (expected,) = plain.generate("Count: ", **fields)
    with opened(draft=draft, draft_max=4, draft_min=4) as llm:
        (found,) = llm.generate("Count: ", **fields)
        assert comparable(found) == comparable(expected)
        assert found.choices[0].n_drafted_tokens > 0


def test_a_draft_with_another_tokenizer_is_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    with pytest.raises(UnsupportedError, match=r"tokenizer .*token 0 "):
        LLM(draft=tmp_path, n_ctx=64)


def test_options_are_checked() -> None:
    for options, text in (
        ({"speculation": "draft"}, "speculation 'draft' needs a draft"),
        ({"speculation": "eagle"}, "speculation 'eagle' needs a draft"),
        ({"speculation": "medusa"}, "speculation 'medusa'"),
        ({"draft_max": 2, "draft_min": 3}, "draft_min 3 .* draft_max 2"),
    ):
        with pytest.raises(RequestError, match=text):
            EngineConfig(**options)  # type: ignore[arg-type]
    for fields, text in (({"speculation": "medusa"}, "one of auto"), ({"prediction": 3}, "prediction 3")):
        with pytest.raises(RequestError, match=text):
            SamplingParams(**fields)  # type: ignore[arg-type]
