"""Phrases that answers must not contain.

Oracle: the rule in Python, over the model's logits of every text that is tried: where a phrase is complete, the token
that began it is forbidden in its place, and the text goes on from there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from quire.engine import LLM
from quire.errors import RequestError
from quire.params.sampling import SamplingParams
from tiny_checkpoints import write_checkpoint

STORY = "Once upon a time"
N = 24


def expected_ids(llm: LLM, prompt: Sequence[int], phrases: Sequence[str], n: int = N) -> tuple[list[int], int]:
    """Return the greedy answer, and how often the text went back over more than one token."""
    forbidden: dict[tuple[int, ...], list[int]] = defaultdict(list)
    ids: list[int] = []
    n_back = 0
    while len(ids) < n:
        logits = llm.logits([*prompt, *ids])[-1]
        logits[forbidden[tuple(ids)]] = -np.inf
        ids.append(int(np.argmax(logits)))
        ends = np.cumsum([len(llm.tokenizer.token_bytes(id_)) for id_ in ids])
        text = b"".join(llm.tokenizer.token_bytes(id_) for id_ in ids).lower()
        starts = [at for phrase in phrases if (at := text.find(phrase.lower().encode())) >= 0]
        if starts:
            place = int(np.searchsorted(ends, min(starts), side="right"))
            n_back += len(ids) - place > 1
            forbidden[tuple(ids[:place])].append(ids[place])
            del ids[place:]
    return ids, n_back


def phrases_of(llm: LLM) -> list[str]:
    """Phrases of several tokens in the answers that the model gives as more and more of them are forbidden."""
    phrases: list[str] = []
    for first in (2, 5, 1):
        (found,) = llm.generate(STORY, temperature=0.0, max_tokens=N, banned_strings=phrases)
        words = found.text.split()
        phrases.append(" ".join(words[first : first + 2]).upper())
    return phrases


@pytest.fixture(scope="module")
def phrases(llm: LLM) -> list[str]:
    return phrases_of(llm)


@pytest.mark.parametrize("speculation", ["off", "auto"])
def test_answers_follow_the_rule_in_any_company(llm: LLM, phrases: list[str], speculation: str) -> None:
    prompt = llm.tokenizer.encode(STORY)
    expected, n_back = expected_ids(llm, prompt, phrases)
    assert n_back >= 3
    (plain,) = llm.generate(STORY, temperature=0.0, max_tokens=N)
    params = SamplingParams(temperature=0.0, max_tokens=N, banned_strings=phrases, logprobs=1, speculation=speculation)
    others = [SamplingParams(temperature=0.0, max_tokens=N, speculation=speculation) for _ in range(3)]
    found = llm.generate([STORY, STORY, STORY, "The fox"], [others[0], params, others[1], others[2]])
    assert found[1].token_ids == expected
    assert found[1].text == llm.tokenizer.decode(expected)
    assert [token.token_id for token in found[1].logprobs or []] == expected
    assert found[0].token_ids == found[2].token_ids == plain.token_ids
    (both,) = llm.generate(STORY, params, n=2)
    assert [one.token_ids for one in both.choices] == [expected] * 2


def test_streams_hold_back_what_may_be_taken_back(llm: LLM, phrases: list[str]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=N, banned_strings=phrases, stop=[" the"])
    (whole,) = llm.generate(STORY, params)
    shown, ids = "", []
    for delta in llm.stream(STORY, params):
        shown, ids = shown + delta.text, ids + list(delta.token_ids)
        assert whole.text.startswith(shown)
    assert (shown, ids) == (whole.text, whole.token_ids)


def test_drawn_answers_differ_only_where_they_went_back(llm: LLM, phrases: list[str]) -> None:
    """A seed gives the same answer alone and beside others; logits processors see every token; penalties start anew."""
    params = SamplingParams(
        seed=5, max_tokens=40, banned_strings=["a", "Th"], mirostat=2, repetition_penalty=1.2, dry_multiplier=0.5
    )
    (alone,) = llm.generate(STORY, params)
    seen: list[int] = []

    def processor(ids, logits):  # type: ignore[no-untyped-def]
        seen[:] = ids
        return logits

    beside = llm.generate([STORY, STORY], [params, SamplingParams(max_tokens=40, seed=5)])
    (processed,) = llm.generate(STORY, params, logits_processors=[processor])
    assert alone.token_ids == beside[0].token_ids == processed.token_ids
    assert seen == [*alone.prompt_token_ids, *alone.token_ids[:-1]]
    assert not re.search("a|th", alone.text, re.IGNORECASE)
    assert re.search("a|th", beside[1].text, re.IGNORECASE)


def test_a_form_that_forces_a_phrase_keeps_it(llm: LLM) -> None:
    (forced,) = llm.generate(STORY, choice=["the red fox"], banned_strings=["red f", "x"], temperature=0.0)
    assert forced.text == "the red fox"
    (free,) = llm.generate(STORY, choice=["the red fox", "the red hen"], banned_strings=["red f"], temperature=0.0)
    assert free.text == "the red hen"
    (digits,) = llm.generate(
        STORY, regex="[0-9]{12}", banned_strings=[str(d) * 2 for d in range(10)] + ["1", "2"], temperature=0.0
    )
    assert re.fullmatch(r"(?:([03-9])(?!\1)){12}", digits.text)


def test_a_phrase_in_every_token_ends_the_request(llm: LLM) -> None:
    letters = [chr(c) for c in range(32, 127)]
    with pytest.raises(RequestError, match="banned_strings"):
        llm.generate(STORY, max_tokens=4, banned_strings=letters, logit_bias=dict.fromkeys(llm.tokenizer.eog_ids, -100))
    assert len(llm.generate(STORY, max_tokens=4)[0].token_ids) == 4


def test_recurrent_states_and_windows_go_back(tmp_path: Path) -> None:
    """Also over a block's end, where the state's snapshot is, and beside other requests."""
    for name in ("lfm2", "gemma3"):
        write_checkpoint(tmp_path / name, name)
        with LLM(str(tmp_path / name), threads=1, n_ctx=256, kv_dtype="f32") as llm:
            prompt = list(range(5, 62))  # the answer crosses positions 64 and 96
            greedy = SamplingParams(temperature=0.0, max_tokens=44, ignore_eos=True)
            (plain,) = llm.generate(prompt, greedy)
            shown = [llm.tokenizer.token_bytes(id_).decode("utf-8", "replace") for id_ in plain.token_ids]
            pairs = [(at, "".join(shown[at : at + 3])) for at in range(len(shown) - 3)]
            phrases = [text for at, text in pairs if at in (3, 6, 20, 36) and "�" not in text and len(text) > 1]
            expected, n_back = expected_ids(llm, prompt, phrases, 44)
            assert n_back, (name, shown)
            steered = replace(greedy, banned_strings=phrases)
            found = llm.generate([prompt, prompt[:20], prompt], [steered, greedy, greedy])
            assert (found[0].token_ids, found[2].token_ids) == (expected, plain.token_ids)
