"""``quire.integrations.lm_eval`` in the harness itself.  Oracle: log-softmax, by NumPy, of the model's own logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quire import LLM
from quire.errors import RequestError

pytest.importorskip("lm_eval", reason="needs lm-eval")

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from quire.integrations.lm_eval import QuireLM


def instance(kind: str, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def scores(llm: LLM, ids: list[int], n: int) -> tuple[float, bool]:
    """Return the log-probability of the last ``n`` tokens, and whether each is the most likely one."""
    logits = llm.logits(ids).astype(np.float64)[:-1]
    logs = logits - logits.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    rows, wanted = logs[-n:], ids[-n:]
    return float(sum(row[i] for row, i in zip(rows, wanted, strict=True))), rows.argmax(-1).tolist() == wanted


def test_scores_and_answers(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    model = get_model("quire").create_from_arg_obj({"pretrained": llm}, {"batch_size": 2, "device": None})
    assert isinstance(model, QuireLM)
    pairs = [
        ("The capital of France is", " Paris"),
        ("The capital of France is", " Rome"),
        ("A fox ", "ran"),
        ("", "Hi"),
    ]
    found = model.loglikelihood([instance("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)
    for (context, continuation), (score, greedy) in zip(pairs, found, strict=True):
        before = context.rstrip()
        n_before = len(model.tok_encode(before)) if before else 1
        ids = model.tok_encode(context + continuation) if before else [model.prefix_token_id]
        ids = ids if before else [*ids, *model.tok_encode(continuation, add_special_tokens=False)]
        expected, is_greedy = scores(llm, ids, len(ids) - n_before)
        assert abs(score - expected) < 1e-3
        assert greedy == is_greedy
    assert [greedy for _, greedy in found[:2]] == [True, False]

    with LLM(threads=1, n_ctx=64, kv_dtype="f32") as small:
        short = QuireLM(small)
        text = "Once upon a time there was a fox. " * 12
        ids = [short.prefix_token_id, *short.tok_encode(text, add_special_tokens=False)]
        assert len(ids) > small.n_ctx
        window, expected = short.max_length - 1, 0.0
        for start in range(1, len(ids), window):  # as the harness cuts: the last window reaches back
            end = min(start + window, len(ids))
            first = max(0, end - window - 1) if start > 1 else 0
            expected += scores(llm, ids[first:end], end - start)[0]
        (total,) = short.loglikelihood_rolling([instance("loglikelihood_rolling", text)], disable_tqdm=True)
        assert abs(total - expected) < 1e-2
        short.loglikelihood([instance("loglikelihood", text, " end")], disable_tqdm=True)
        assert "cut to the last 63" in caplog.text
        with pytest.raises(RequestError, match="a continuation of"):
            short.loglikelihood([instance("loglikelihood", "a", text)], disable_tqdm=True)

    greedy = {"until": ["."], "max_gen_toks": 20, "do_sample": False}
    drawn = {"until": [], "max_gen_toks": 5, "do_sample": True, "temperature": 0.9, "seed": 3}
    asked = [instance("generate_until", "Once upon a time", how) for how in (greedy, drawn, greedy)]
    texts = model.generate_until(asked, disable_tqdm=True)
    expected_texts = [
        llm.generate("Once upon a time", temperature=0.0, max_tokens=20, stop=".")[0].text,
        llm.generate("Once upon a time", temperature=0.9, max_tokens=5, seed=3)[0].text,
    ]
    assert texts == [*expected_texts, expected_texts[0]]
    with pytest.raises(TypeError, match="num_beams"):
        model.generate_until([instance("generate_until", "a", {"num_beams": 4})], disable_tqdm=True)
    with pytest.raises(TypeError, match="'dtype'"):
        QuireLM(llm, dtype="auto")
    chat = model.apply_chat_template([{"role": "user", "content": "Hi"}])
    ids = llm.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert model.tok_encode(chat) == ids
