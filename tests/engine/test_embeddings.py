"""Embeddings: the hidden states that logits are made of.

Oracles: the package's output matrix, dequantized by the gguf package, which makes logits of a hidden state; a causal
model's own prefixes, of whose last states the mean is taken in NumPy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from quire._native.engine import Decoder, DecoderConfig, Request, SamplingParams, VocabInfo
from quire._native.testing import FakeExecutor
from quire.engine import LLM, AsyncLLM
from quire.engine.loading.loader import packaged_model
from quire.errors import RequestError, UnsupportedError
from quire.params.sampling import SamplingParams as Params

STORY = "Once upon a time there was a fox"
LONG = "The capital of France is Paris. " * 100


@pytest.fixture(scope="module", params=[pytest.param("stock", marks=pytest.mark.slow), "auto"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(threads=1, kv_dtype="f32", kernels=request.param) as model:
        yield model


@pytest.fixture(scope="module")
def head() -> npt.NDArray[np.float32]:
    """The output matrix, ``[n_vocab, n_hidden]``."""
    tensors = {tensor.name: tensor for tensor in GGUFReader(packaged_model()).tensors}
    tensor = tensors.get("output.weight", tensors["token_embd.weight"])
    weights: npt.NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
    return weights


def cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_logits_are_made_of_the_last_state(llm: LLM, head: npt.NDArray[np.float32]) -> None:
    ids = llm.tokenizer.encode(STORY)
    (hidden,) = llm.embed([ids], pooling="last", normalize=False)
    logits = llm.logits(ids)[-1]
    # With Q8_0 weights, products round the activations to 8 bits.
    assert np.abs(head @ hidden - logits).max() < 0.02 * np.abs(logits).max()
    assert cosine(head @ hidden, logits) > 0.9999


def test_the_mean_covers_all_tokens(llm: LLM) -> None:
    ids = llm.tokenizer.encode(STORY)
    last = llm.embed([ids[: i + 1] for i in range(len(ids))], pooling="last", normalize=False)
    (mean,) = llm.embed(ids, pooling="mean", normalize=False)
    assert mean == pytest.approx(last.astype(np.float64).mean(axis=0), abs=2e-3 * float(np.abs(last).max()))


@pytest.mark.slow
def test_prompts_longer_than_a_step(llm: LLM) -> None:
    ids = llm.tokenizer.encode(LONG)
    assert len(ids) > llm.sizes.max_step_tokens
    for pooling in ("last", "mean"):
        long, short = llm.embed([ids, ids[:600]], pooling=pooling, normalize=False)  # type: ignore[arg-type]
        alone = llm.embed(ids[:600], pooling=pooling, normalize=False, salt=b"another")[0]  # type: ignore[arg-type]
        assert cosine(short, alone) > 0.9999
        assert long.shape == short.shape == (256,)


@pytest.mark.slow
def test_a_prompt_may_fill_the_context(llm: LLM) -> None:
    assert llm.embed([[5] * llm.n_ctx]).shape == (1, 256)
    with pytest.raises(RequestError, match=f"context of {llm.n_ctx} tokens"):
        llm.embed([[5] * (llm.n_ctx + 1)])


def test_vectors_have_length_one_unless_told_otherwise(llm: LLM) -> None:
    vectors = llm.embed([STORY, LONG])
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-6)
    raw = llm.embed([STORY, LONG], normalize=False)
    assert vectors == pytest.approx(raw / np.linalg.norm(raw, axis=1, keepdims=True), abs=1e-6)
    # Without a pooling in the file, the last token's is used.
    assert raw == pytest.approx(llm.embed([STORY, LONG], pooling="last", normalize=False), abs=1e-6)


def test_answers_beside_embeddings_are_those_without(llm: LLM) -> None:
    params = Params(temperature=0.0, max_tokens=24)
    (expected,) = llm.generate(STORY, params)

    async def both() -> tuple[list[int], npt.NDArray[np.float32]]:
        model = AsyncLLM(threads=1, kv_dtype="f32", kernels=llm.config.kernels)
        async with model:
            answer, vectors = await asyncio.gather(
                model.generate(STORY, params), model.embed([STORY, LONG], pooling="mean")
            )
            return answer[0].token_ids, vectors

    token_ids, vectors = asyncio.run(both())
    assert token_ids == expected.token_ids
    for ours, theirs in zip(vectors, llm.embed([STORY, LONG], pooling="mean"), strict=True):
        assert cosine(ours, theirs) > 0.9999
    assert llm.stats().n_free_blocks == llm.stats().n_usable_blocks


def test_bad_arguments_are_rejected(llm: LLM) -> None:
    with pytest.raises(RequestError, match="pooling 'none'"):
        llm.embed(STORY, pooling="none")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="no prompts"):
        llm.embed([])
    with pytest.raises(RequestError, match="empty prompt"):
        llm.embed([""])
    with pytest.raises(RequestError, match="1000000"):
        llm.embed([[10**6]])


def test_requests_that_the_decoder_refuses() -> None:
    with pytest.raises(RequestError, match="unknown embedding"):
        Request([1], embedding="sum")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"embedding .*prompt_logits"):
        Request([1], embedding="last", prompt_logits=True)
    vocab = VocabInfo(64, [], [b""] * 64)
    decoder = Decoder(FakeExecutor(), vocab, DecoderConfig(n_ctx=32))
    try:
        with pytest.raises(UnsupportedError, match="hidden states"):
            decoder.submit(Request([1], embedding="last"))
    finally:
        decoder.close()
    with LLM(threads=1) as model:
        engine = model._engine._decoder
        assert engine is not None
        for request, word in (
            (Request([1], SamplingParams(), embedding="last"), "params"),
            (Request([1], embedding="last", grammar=True), "grammar cannot be combined with embedding"),
            (Request([1], embedding="last", external_logits=True), "external_logits cannot be combined with embedding"),
        ):
            with pytest.raises(RequestError, match=word):
                engine.submit(request)
