"""``quire.integrations.llama_index`` in LlamaIndex itself.  Oracle: the same questions put to ``quire.LLM``."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from quire import LLM
from quire.errors import RequestError
from weather_tool import ASKED

pytest.importorskip("llama_index.core", reason="needs llama-index-core")

from capital_question import ANSWER, CAPITAL, Colour
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.llms.types import ImageBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import FunctionTool
from quire.integrations.llama_index import QuireEmbedding, QuireLLM, QuireRerank

QUESTION = [ChatMessage(role="user", content=CAPITAL)]


@pytest.fixture
def model(llm: LLM) -> QuireLLM:
    return QuireLLM(llm, temperature=0.0, max_tokens=64)


def test_answers_are_equal_in_all_calls(llm: LLM, model: QuireLLM) -> None:
    expected = llm.chat([{"role": "user", "content": CAPITAL}], temperature=0.0, max_tokens=64)
    raw = llm.generate("Once upon a time", temperature=0.0, max_tokens=8)[0].text

    async def ask() -> list[Any]:
        grown = [part async for part in await model.astream_chat(QUESTION)]
        texts = [part async for part in await model.astream_complete(CAPITAL)]
        continued = [part async for part in await model.astream_complete("Once upon a time", True, max_tokens=8)]
        assert continued[-1].text == (await model.acomplete("Once upon a time", True, max_tokens=8)).text == raw
        assert texts[-1].text == (await model.acomplete(CAPITAL)).text == ANSWER
        return [grown[-1], await model.achat(QUESTION)]

    grown = list(model.stream_chat(QUESTION))
    assert "".join(part.delta or "" for part in grown) == ANSWER
    for answer in (model.chat(QUESTION), grown[-1], *asyncio.run(ask())):
        assert answer.message.content == expected.message.content == ANSWER
        assert answer.additional_kwargs["prompt_tokens"] == expected.n_prompt_tokens
        assert answer.additional_kwargs["completion_tokens"] == len(expected.token_ids)
        assert answer.raw["finish_reason"] == "stop"
    assert model.complete(CAPITAL).text == list(model.stream_complete(CAPITAL))[-1].text == ANSWER
    assert model.complete("Once upon a time", formatted=True, max_tokens=8).text == raw
    assert list(model.stream_complete("Once upon a time", formatted=True, max_tokens=8))[-1].text == raw
    assert (model.metadata.context_window, model.metadata.num_output) == (llm.n_ctx, 64)


def test_options_are_honoured_or_rejected(llm: LLM, model: QuireLLM) -> None:
    assert model.chat(QUESTION, stop=[" Paris"]).message.content == "The capital of France is"
    assert model.chat(QUESTION, max_tokens=3).raw["finish_reason"] == "length"
    drawn = {"temperature": 1.0, "seed": 5, "max_tokens": 12, "repetition_penalty": 1.3}
    expected = llm.chat([{"role": "user", "content": CAPITAL}], **drawn).message.content  # type: ignore[arg-type]
    assert (QuireLLM(llm, **drawn).chat(QUESTION).message.content or "") == (expected or "")
    scored = model.chat(QUESTION, logprobs=2).logprobs
    assert scored is not None
    assert [len(entry) for entry in scored] == [3] * len(scored)
    assert scored[1][0].logprob == scored[1][1].logprob
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        QuireLLM(llm, temp=0.5)
    with pytest.raises(RequestError, match="top_p"):
        QuireLLM(llm, top_p=2.0)
    with pytest.raises(RequestError, match="n=2"):
        model.chat(QUESTION, n=2)
    with pytest.raises(TypeError, match="'frequency'"):
        model.chat(QUESTION, frequency=1)
    with pytest.raises(TypeError, match="'prefix'"):
        QuireEmbedding(llm, prefix="x")
    with pytest.raises(RequestError, match="image"):  # the model reads text only
        model.chat([ChatMessage(role="user", blocks=[ImageBlock(image=b"x")])])


def test_tools_and_forms(model: QuireLLM) -> None:
    def get_weather(city: str) -> str:
        """Get the weather for a city."""
        return '{"city": "Paris", "temp_c": 21, "sky": "sunny"}'

    tool = FunctionTool.from_defaults(get_weather)
    asked = ChatMessage(role="user", content=ASKED[0]["content"])
    streamed = list(model.stream_chat_with_tools([tool], asked))[-1]
    later = asyncio.run(model.achat_with_tools([tool], asked))
    for answer in (model.chat_with_tools([tool], asked), streamed, later):
        (call,) = model.get_tool_calls_from_response(answer)
        assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Paris"})
    result = ChatMessage(role="tool", content=get_weather("Paris"), additional_kwargs={"tool_call_id": call.tool_id})
    assert "21" in (model.chat_with_tools([tool], chat_history=[asked, answer.message, result]).message.content or "")
    assert "21" in str(model.predict_and_call([tool], asked))
    assert model.get_tool_calls_from_response(model.chat_with_tools([tool], "Hi", tool_required=True))
    with pytest.raises(RequestError, match="calls no tool"):
        model.get_tool_calls_from_response(model.chat(QUESTION))
    prompt = PromptTemplate("Name a colour of {thing}.")
    assert isinstance(model.structured_predict(Colour, prompt, thing="grass"), Colour)
    assert isinstance(asyncio.run(model.astructured_predict(Colour, prompt, thing="grass")), Colour)
    assert isinstance(model.as_structured_llm(Colour).chat(QUESTION).raw, Colour)


def test_vectors_and_ranks(llm: LLM, model: QuireLLM, reranker: LLM) -> None:
    texts = ["The fox ran.", "Paris is the capital of France."]
    made = QuireEmbedding(llm, pooling="mean", query_prefix="query: ")
    expected = llm.embed(texts, pooling="mean")
    assert np.allclose(made.get_text_embedding_batch(texts), expected, atol=1e-6)
    assert np.allclose(asyncio.run(made.aget_text_embedding_batch(texts)), expected, atol=1e-6)
    wanted = llm.embed("query: a", pooling="mean")[0]
    assert np.allclose(made.get_query_embedding("a"), wanted, atol=1e-6)
    assert np.allclose(asyncio.run(made.aget_query_embedding("a")), wanted, atol=1e-6)
    index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=made)
    found = index.as_query_engine(llm=model, similarity_top_k=1).query("Paris is the capital of France.")
    assert len(found.source_nodes) == 1
    assert str(found)
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in ("In the forest.", "A red ball", "fox")]
    scores = reranker.rerank("Where is the fox?", [node.node.get_content() for node in nodes])
    order = np.argsort(-scores, kind="stable")[:2]
    ranker = QuireRerank(reranker, top_n=2)
    for ranked in (
        ranker.postprocess_nodes(nodes, query_str="Where is the fox?"),
        asyncio.run(ranker.apostprocess_nodes(nodes, query_str="Where is the fox?")),
    ):
        assert [node.node.get_content() for node in ranked] == [nodes[i].node.get_content() for i in order]
        assert np.allclose([node.score for node in ranked], scores[order], atol=1e-6)
    with pytest.raises(RequestError, match="no query"):
        ranker.postprocess_nodes(nodes)
