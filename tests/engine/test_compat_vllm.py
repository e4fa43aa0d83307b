"""vLLM's classes in ``quire.compat.vllm``; tests/compatibility runs scripts of its users.

Oracles: the names of vLLM's results, and the same model in ``quire.LLM``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire.compat import vllm
from quire.engine import LLM
from quire.engine.loading.loader import packaged_model
from quire.errors import QuireError, RequestError, UnsupportedError
from tiny_adapters import write_gguf_adapter
from tiny_checkpoints import write_checkpoint, write_reranker
from word_pieces import write_word_pieces


@pytest.fixture(scope="module")
def opened() -> Iterator[vllm.LLM]:
    llm = vllm.LLM(model=str(packaged_model()), max_model_len=512)
    yield llm
    llm.close()


def test_answers_equal_those_of_the_engine(opened: vllm.LLM, llm: LLM) -> None:
    params = vllm.SamplingParams(temperature=0.0, max_tokens=12, logprobs=1)
    (found,) = opened.generate("Once upon a time", params)
    (expected,) = llm.generate("Once upon a time", temperature=0.0, max_tokens=12)
    assert (found.outputs[0].text, list(found.outputs[0].token_ids)) == (expected.text, expected.token_ids)


def test_lora_requests_choose_adapters(tmp_path: Path, opened: vllm.LLM, llm: LLM) -> None:
    random = np.random.default_rng(1)
    halves = {
        f"blk.{i}.ffn_down.weight.lora_{half}": 0.3 * random.standard_normal(shape).astype(np.float32)
        for i in range(4)
        for half, shape in (("a", (4, 768)), ("b", (256, 4)))
    }
    style = write_gguf_adapter(tmp_path / "style.gguf", halves, {"general.architecture": "qwen3"})
    params = vllm.SamplingParams(temperature=0.0, max_tokens=8)
    asked = [vllm.LoRARequest("style", 1, str(style)), None]
    plain = opened.generate("Once upon a time", params)[0].outputs[0].text
    adapted, same = (each.outputs[0].text for each in opened.generate(["Once upon a time"] * 2, params, True, asked))
    (expected,) = llm.generate("Once upon a time", temperature=0.0, max_tokens=8, adapter="")
    assert (same, plain) == (expected.text, expected.text)
    assert adapted != plain
    with pytest.raises(QuireError, match="2 entries for 1"):
        opened.generate("x", params, True, asked)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"best_of": 2}, "best_of"), ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"skip_special_tokens": False}, "skip_special_tokens"), ({"bad_words": [3]}, "bad_words"),
        ({"guided_decoding": vllm.GuidedDecodingParams(json={}, regex="a")}, "exactly one of"),
        ({"structured_outputs": vllm.StructuredOutputsParams(structural_tag="x")}, "structural_tag"),
        ({"temperature": -1.0}, "temperature"),
    ],
)  # fmt: skip
def test_unsupported_sampling_params_are_rejected(opened: vllm.LLM, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(QuireError, match=text):
        opened.generate("x", vllm.SamplingParams(**wrong))


def test_unsupported_options_are_rejected(opened: vllm.LLM) -> None:
    for options, text in (
        ({"rope_scaling": {"a": 1}}, "rope_scaling"),
        ({"quantization": "awq"}, "quantization"), ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=rf"\[vllm\.LLM\] {text}"):
            vllm.LLM(str(packaged_model()), **options)
    with pytest.raises(TypeError, match="max_model_length"):
        vllm.LLM(str(packaged_model()), max_model_length=3)
    with pytest.raises(RequestError, match="text only"):
        opened.generate({"prompt": "x", "multi_modal_data": {"image": b"x"}})
    with pytest.raises(UnsupportedError, match="classifier"):
        opened.classify("x")
    with pytest.raises(RequestError, match="for 3 in data_2"):
        opened.score(["a", "b"], ["c", "d", "e"])


def test_scores_of_a_cross_encoder(tmp_path: Path) -> None:
    """Oracles: transformers' logits; vLLM's pooler, which takes the sigmoid of a single class unless told otherwise."""
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    write_reranker(tmp_path / "xlm")
    query, texts = "Where is the fox?", ["In the forest.", "A red ball"]
    model = transformers.XLMRobertaForSequenceClassification.from_pretrained(tmp_path / "xlm").eval()
    llm = vllm.LLM(str(tmp_path / "xlm"), task="score")
    pairs = [llm.get_tokenizer().encode_pair(query, text).token_ids for text in texts]
    with torch.no_grad():
        logits = [float(model(torch.tensor([ids])).logits[0, 0]) for ids in pairs]
    shown = [output.outputs.score for output in llm.score(query, texts)]
    assert shown == pytest.approx([1 / (1 + exp(-logit)) for logit in logits], abs=1e-3)
    assert [output.outputs.score for output in llm.score([query] * 2, texts)] == pytest.approx(shown)
    for params in (vllm.PoolingParams(use_activation=False), vllm.PoolingParams(activation=False)):
        raw = [output.outputs.score for output in llm.score(query, texts, pooling_params=params)]
        assert raw == pytest.approx(logits, rel=1e-3)
    with pytest.raises(UnsupportedError, match="dimensions="):
        llm.score(query, texts, pooling_params=vllm.PoolingParams(dimensions=3))
    llm.close()


def test_scores_of_other_models(tmp_path: Path, opened: vllm.LLM) -> None:
    """An embedding model scores by cosine; a classifier with several classes cannot score a pair."""
    query, texts = "Where is the fox?", ["In the forest.", "A red ball"]
    with pytest.raises(UnsupportedError, match="classifier"):
        opened.score(query, texts)
    llm = vllm.LLM(str(packaged_model()), max_model_len=256, runner="pooling", convert="embed")
    rows = np.array([output.outputs.embedding for output in llm.embed([query, *texts])])
    assert [one.outputs.score for one in llm.score(query, texts)] == pytest.approx(
        (rows[1:] @ rows[0]).tolist(), abs=1e-5
    )
    (short,) = llm.embed(query, pooling_params=vllm.PoolingParams(dimensions=8))
    expected = rows[0, :8] / np.linalg.norm(rows[0, :8])
    assert short.outputs.embedding == pytest.approx(expected.tolist(), abs=1e-5)
    (raw,) = llm.embed(query, pooling_params=vllm.PoolingParams(normalize=False))
    assert np.array(raw.outputs.embedding) / np.linalg.norm(raw.outputs.embedding) == pytest.approx(rows[0], abs=1e-5)
    llm.close()
    write_checkpoint(tmp_path / "bert", "bert-rank")
    write_word_pieces(tmp_path / "bert")
    three = vllm.LLM(str(tmp_path / "bert"))
    with pytest.raises(UnsupportedError, match="3 classes"):
        three.score(query, texts)
    three.close()
