"""``quire.integrations.langchain`` in LangChain itself.  Oracle: the same questions put to ``quire.LLM``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from quire import LLM
from quire.errors import RequestError, UnsupportedError
from weather_tool import ASKED, WEATHER

pytest.importorskip("langchain_core", reason="needs langchain-core")

from capital_question import ANSWER, CAPITAL, Colour
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from quire.integrations.langchain import ChatQuire, QuireEmbeddings, QuireReranker

WEATHER_QUESTION = ASKED[0]["content"]
RESULT = '{"city": "Paris", "temp_c": 21, "sky": "sunny"}'


@pytest.fixture
def chat(llm: LLM) -> ChatQuire:
    return ChatQuire(llm, temperature=0.0, max_tokens=64)


def joined(chunks: list[Any]) -> Any:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


def test_answers_are_equal_in_all_calls(llm: LLM, chat: ChatQuire) -> None:
    turns = [SystemMessage("Be brief."), HumanMessage("Hi"), AIMessage("Hello."), HumanMessage(CAPITAL)]
    as_dicts = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}, {"role": "user", "content": CAPITAL},
    ]  # fmt: skip
    expected = llm.chat(as_dicts, temperature=0.0, max_tokens=64)
    usage = {"input_tokens": expected.n_prompt_tokens, "output_tokens": len(expected.token_ids)}
    streamed = joined(list(chat.stream(turns)))

    async def ask() -> list[Any]:
        chunks = [chunk async for chunk in chat.astream(turns)]
        return [joined(chunks), await chat.ainvoke(turns)]

    for answer in (chat.invoke(turns), streamed, *asyncio.run(ask()), *chat.batch([turns, turns])):
        assert answer.content == expected.message.content
        assert {name: answer.usage_metadata[name] for name in usage} == usage
        assert answer.usage_metadata["total_tokens"] == sum(usage.values())
        assert answer.response_metadata["finish_reason"] == "stop"
        assert answer.response_metadata["model_name"] == "tiny-chat"
    assert chat.get_num_tokens_from_messages(turns) == expected.n_prompt_tokens
    assert len(list(chat.stream(turns))) > 2


def test_options_are_honoured_or_rejected(llm: LLM, chat: ChatQuire) -> None:
    assert chat.invoke(CAPITAL, stop=[" Paris"]).content == "The capital of France is"
    cut = chat.invoke(CAPITAL, max_tokens=3)
    assert (cut.response_metadata["finish_reason"], cut.usage_metadata["output_tokens"]) == ("length", 3)
    story = "Tell me a story about a fox."
    drawn = {"temperature": 1.0, "seed": 5, "max_tokens": 12, "repetition_penalty": 1.3}
    expected = llm.chat([{"role": "user", "content": story}], **drawn).message.content  # type: ignore[arg-type]
    assert ChatQuire(llm, **drawn).invoke(story).content == expected
    several = chat.generate([[HumanMessage(story)]], n=2, temperature=1.0, seed=1, max_tokens=8).generations[0]
    assert len({generation.text for generation in several}) == 2
    scored = chat.invoke(CAPITAL, logprobs=1).response_metadata["logprobs"]["content"]
    assert scored[1]["token"].strip(" ▁Ġ") == "capital"
    assert scored[1]["top_logprobs"][0]["logprob"] == scored[1]["logprob"] <= 0
    (first, *_) = chat.stream(CAPITAL, logprobs=1)
    assert first.response_metadata["logprobs"]["content"] == scored[:1]
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        ChatQuire(llm, temp=0.5)
    with pytest.raises(RequestError, match="top_p"):
        ChatQuire(llm, top_p=2.0)
    with pytest.raises(TypeError, match="'frequency'"):
        chat.invoke(CAPITAL, frequency=1)
    with pytest.raises(TypeError, match="leave out n_ctx"):
        ChatQuire(llm, n_ctx=64)
    with pytest.raises(RequestError, match="n=2"):
        list(chat.stream(CAPITAL, n=2))
    with pytest.raises((RequestError, UnsupportedError), match="image"):
        chat.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}])])


def test_a_cache_of_langchain_tells_options_apart(llm: LLM) -> None:
    cache = InMemoryCache()
    short = ChatQuire(llm, temperature=0.0, max_tokens=2, cache=cache).invoke(CAPITAL).content
    assert ChatQuire(llm, temperature=0.0, max_tokens=64, cache=cache).invoke(CAPITAL).content == ANSWER != short


def test_tools_are_called(chat: ChatQuire) -> None:
    def get_weather(city: str) -> str:
        """Get the weather for a city."""
        return RESULT

    question = HumanMessage(WEATHER_QUESTION)
    for given in (get_weather, WEATHER):
        model = chat.bind_tools([given])
        streamed = joined(list(model.stream([question])))
        for answer in (model.invoke([question]), streamed, asyncio.run(model.ainvoke([question]))):
            (call,) = answer.tool_calls
            assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
            assert answer.response_metadata["finish_reason"] == "tool_calls"
        after = model.invoke([question, answer, ToolMessage(RESULT, tool_call_id=call["id"])])
        assert "21" in after.content
        assert after.tool_calls == []
    for choice in ("any", True, "get_weather"):
        assert chat.bind_tools([WEATHER], tool_choice=choice).invoke("Hi").tool_calls
    assert not chat.bind_tools([WEATHER], tool_choice="none").invoke([question]).tool_calls
    with pytest.raises(RequestError, match="tool_choice 'other'"):
        chat.bind_tools([WEATHER], tool_choice="other")
    cut = chat.bind_tools([WEATHER], tool_choice="any").invoke([question], max_tokens=10)
    assert cut.tool_calls == []
    assert cut.invalid_tool_calls or cut.content


def test_answers_have_a_form(chat: ChatQuire) -> None:
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Colour, method=method).invoke(CAPITAL), Colour)
    schema = {"title": "Colour", **Colour.model_json_schema()}
    assert set(chat.with_structured_output(schema).invoke(CAPITAL)) == {"colour"}
    both = chat.with_structured_output(Colour, include_raw=True)
    found = both.invoke(CAPITAL)
    assert found["parsed"] == Colour(**json.loads(found["raw"].content))
    assert found["parsing_error"] is None
    cut = chat.with_structured_output(Colour, include_raw=True, max_tokens=2)
    assert cut.invoke(CAPITAL)["parsing_error"] is not None
    with pytest.raises(UnsupportedError, match="method"):
        chat.with_structured_output(Colour, method="xml")


def test_vectors_and_ranks(llm: LLM, reranker: LLM) -> None:
    texts = ["The fox ran.", "Paris is the capital."]
    made = QuireEmbeddings(llm, pooling="mean", query_prefix="query: ")
    assert np.allclose(made.embed_documents(texts), llm.embed(texts, pooling="mean"), atol=1e-6)
    assert np.allclose(made.embed_query("a"), llm.embed("query: a", pooling="mean")[0], atol=1e-6)
    assert np.allclose(asyncio.run(made.aembed_documents(texts)), made.embed_documents(texts), atol=1e-6)
    assert np.allclose(asyncio.run(made.aembed_query("a")), made.embed_query("a"), atol=1e-6)
    assert made.embed_documents([]) == []
    documents = [Document(text, metadata={"n": n}) for n, text in enumerate(("In the forest.", "A red ball", "fox"))]
    scores = reranker.rerank("Where is the fox?", [document.page_content for document in documents])
    order = np.argsort(-scores, kind="stable")[:2]
    ranker = QuireReranker(reranker, top_n=2)
    for ranked in (
        ranker.compress_documents(documents, "Where is the fox?"),
        asyncio.run(ranker.acompress_documents(documents, "Where is the fox?")),
    ):
        assert [document.metadata["n"] for document in ranked] == order.tolist()
        assert np.allclose([document.metadata["relevance_score"] for document in ranked], scores[order], atol=1e-6)
    assert documents[0].metadata == {"n": 0}
    with pytest.raises(UnsupportedError, match="classifier"):
        QuireReranker(llm).compress_documents(documents, "x")
