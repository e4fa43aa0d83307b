"""Classifier-free guidance.

Oracle: transformers' ``generate`` with ``guidance_scale`` and ``negative_prompt_ids``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quire.engine import LLM
from quire.errors import QuireError
from quire.params.sampling import SamplingParams
from tiny_checkpoints import write_checkpoint

PROMPT, NEGATIVE = "The red fox", "A slow and quiet tortoise"
OPTIONS: dict[str, Any] = {"threads": 1, "n_ctx": 128, "kv_dtype": "f32"}


@pytest.mark.filterwarnings("ignore")  # torch and transformers warn
def test_greedy_tokens_equal_those_of_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="needs transformers")
    from oracle_models import oracle_of

    write_checkpoint(tmp_path, "llama")
    model = oracle_of("llama").model
    with LLM(str(tmp_path), **OPTIONS) as llm:
        ids, negative = (llm.tokenizer.encode(text) for text in (PROMPT, NEGATIVE))
        greedy = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
        requests = [(1.5, NEGATIVE), (4.0, NEGATIVE), (3.0, None), (1.0, None)]
        params = [SamplingParams(guidance_scale=scale, negative_prompt=text, **greedy) for scale, text in requests]
        together = [found.token_ids for found in llm.generate([PROMPT] * 4, params)]
        for (scale, text), found in zip(requests, together, strict=True):
            more = {} if text is None else {"negative_prompt_ids": torch.tensor([negative])}
            expected = model.generate(
                torch.tensor([ids]), max_new_tokens=12, do_sample=False, guidance_scale=scale, eos_token_id=None,
                pad_token_id=0, attention_mask=torch.ones(1, len(ids), dtype=torch.long), **more,
            )[0, len(ids) :]  # fmt: skip
            assert found == expected.tolist()
        assert len({tuple(found) for found in together}) > 2
        assert llm.stats().n_requests == 0


def test_choices_forms_and_processors(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, seed=3, guidance_scale=2.0, negative_prompt=NEGATIVE, n=2)
    (both,) = llm.generate(PROMPT, params)
    (again,) = llm.generate(PROMPT, params, logits_processors=[lambda ids, logits: logits])
    assert [c.token_ids for c in both.choices] == [c.token_ids for c in again.choices]
    assert both.choices[0].token_ids != both.choices[1].token_ids
    (form,) = llm.generate(PROMPT, regex="[a-z]{6}", guidance_scale=3.0, temperature=0)
    assert form.text.isalpha()
    stream = llm.stream(PROMPT, guidance_scale=2.0, negative_prompt=NEGATIVE)
    next(iter(stream))
    del stream
    assert llm.generate(PROMPT, max_tokens=2)[0].text


def test_what_guidance_cannot_do_is_refused(llm: LLM) -> None:
    for wrong, text in (
        ({"guidance_scale": -1}, "guidance_scale"), ({"guidance_scale": 2, "banned_strings": ["x"]}, "banned_strings"),
        ({"guidance_scale": 2, "max_tokens": 100, "negative_prompt": "a b " * 2000}, "context"),
    ):  # fmt: skip
        with pytest.raises(QuireError, match=text):
            llm.generate(PROMPT, **wrong)  # type: ignore[arg-type]
