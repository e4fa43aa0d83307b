"""Tokens and words that answers must not have, and log-probabilities of the whole vocabulary.

Oracles: vLLM's rule as a logits processor; NumPy's log-softmax of the model's logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from quire.engine import LLM
from quire.errors import RequestError
from quire.params.sampling import SamplingParams

STORY = "Once upon a time"


def rule_of(llm: LLM, words: Sequence[str], n_prompt: int) -> object:
    """vLLM's rule for bad words: the spelling, and the one after a space if it is as long and begins otherwise."""
    spellings: list[list[int]] = []
    for word in words:
        bare = llm.tokenizer.encode(word.lstrip(), add_special=False)
        spaced = llm.tokenizer.encode(" " + word.lstrip(), add_special=False)
        spellings.append(bare)
        if spaced[0] != bare[0] and len(spaced) == len(bare):
            spellings.append(spaced)

    def rule(ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        answer, changed = list(ids[n_prompt:]), logits.copy()
        for spelling in spellings:
            n = len(spelling) - 1
            if len(answer) >= n and answer[len(answer) - n :] == spelling[:n]:
                changed[spelling[-1]] = -np.inf
        return changed

    return rule


@pytest.mark.parametrize("speculation", ["off", "lookup"])
def test_bad_words_follow_the_rule(llm: LLM, speculation: str) -> None:
    options = SamplingParams(temperature=0.0, max_tokens=24, speculation=speculation)
    (plain,) = llm.generate(STORY, options)
    words = [plain.text.split()[2], " ".join(plain.text.split()[3:5]), plain.text.split()[5]]
    n_prompt = len(plain.prompt_token_ids)
    (found,) = llm.generate(STORY, options, bad_words=words)
    (expected,) = llm.generate(STORY, options, logits_processors=[rule_of(llm, words, n_prompt)])  # type: ignore[list-item]
    assert found.token_ids == expected.token_ids != plain.token_ids


def test_log_probabilities_of_the_whole_vocabulary(llm: LLM) -> None:
    (found,) = llm.generate(STORY, temperature=0.0, max_tokens=1, logprobs=-1, prompt_logprobs=30)
    logits = llm.logits(found.prompt_token_ids).astype(np.float64)
    expected = (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - logits.max(1, keepdims=True)
    )
    assert found.logprobs is not None
    assert found.prompt_logprobs is not None
    top = dict(found.logprobs[0].top)
    assert list(top.values()) == sorted(top.values(), reverse=True)
    assert [top[id_] for id_ in range(llm.n_vocab)] == pytest.approx(expected[-1].tolist(), abs=1e-4)
    for row, token in zip(expected, found.prompt_logprobs[1:], strict=False):
        assert token is not None
        assert [p for _, p in token.top] == pytest.approx(np.sort(row)[::-1][:30].tolist(), abs=1e-4)


@pytest.mark.parametrize("wrong", [{"bad_words": [""]}, {"bad_words": "x"}, {"logprobs": -2}])
def test_invalid_values_are_refused(llm: LLM, wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))):
        llm.generate(STORY, **wrong)  # type: ignore[arg-type]
