"""Tools with models whose template has none, in every API.

Oracles: JSON and the tool's schema for calls; the template's own rendering for prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from quire.chat import ChatTemplate
from quire.chat.generic_tools import with_tools_as_text
from quire.engine import LLM
from quire.errors import UnsupportedError
from repackaged import repackaged
from served import Served, served
from weather_tool import ASKED, WEATHER

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like Gemma's: no system message, and user and assistant alternate.
PARTICULAR = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turn') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
TEMPLATES = {"plain": PLAIN, "particular": PARTICULAR}
CALL = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "And Rome?"},
    {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, {**CALL, "id": "b"}]},
    {"role": "tool", "tool_call_id": "a", "content": "21"},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "22"}]},
    {"role": "user", "content": "Thanks."},
]
WRITTEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
RESULTS = "<tool_response>\n21\n</tool_response>\n<tool_response>\n22\n</tool_response>\nThanks."


@pytest.fixture(scope="module", params=TEMPLATES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("generic")
    path = repackaged(folder / "x.gguf", {"tokenizer.chat_template": (TEMPLATES[request.param], "string")})
    with LLM(path, threads=1, n_ctx=1024, kv_dtype="f32") as llm:
        yield llm


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    path = repackaged(folder / "plain.gguf", {"tokenizer.chat_template": (PLAIN, "string")})
    with served(folder, ["--model", str(path)]) as running:
        yield running


def test_all_of_a_conversation_is_text() -> None:
    told = with_tools_as_text(TURNS, [WEATHER])
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert str(told[0]["content"]).startswith("Be brief.\n\nYou can call these functions.")
    assert json.dumps(WEATHER["function"]) in str(told[0]["content"])
    assert told[2]["content"] == f"Let me see.\n{WRITTEN}\n{WRITTEN}"
    assert told[3]["content"] == RESULTS
    assert with_tools_as_text(ASKED, None) == ASKED
    # A template without system messages gets it in the user's first turn.
    prompt = ChatTemplate(PARTICULAR).render(told)
    assert prompt.startswith("<|im_start|>user\nBe brief.\n\nYou can call these functions.")
    assert prompt.count("\n\nAnd Rome?<|im_end|>") == 1


def test_no_call_can_be_copied_from_the_prompt() -> None:
    """Between the tags, the prompt shows a pattern and not a call with made-up arguments."""
    told = str(with_tools_as_text(ASKED, [WEATHER])[0]["content"])
    example = told.partition("<tool_call>\n")[2].partition("\n</tool_call>")[0]
    assert example
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(example)


def test_the_prompt_is_the_templates(model: LLM) -> None:
    result = model.chat(TURNS, tools=[WEATHER], max_tokens=1)
    prompt = model.tokenizer.decode(result.prompt_token_ids, skip_special=False)
    template = ChatTemplate.from_tokenizer(model.tokenizer)
    assert prompt == template.render(with_tools_as_text(TURNS, [WEATHER]))
    # Calls of earlier turns are rendered even if this turn has no tools.
    result = model.chat(TURNS[1:], max_tokens=1)
    assert WRITTEN in model.tokenizer.decode(result.prompt_token_ids)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_calls_are_enforced(model: LLM, choice: Any) -> None:
    for seed in range(4):
        message = model.chat(
            ASKED, tools=[WEATHER], tool_choice=choice, seed=seed, temperature=1.0, max_tokens=96
        ).message
        assert message.tool_calls
        call = message.tool_calls[0]
        assert call.function.name == "get_weather"


def test_a_free_answer_calls_in_form_or_not_at_all(model: LLM) -> None:
    """Once an answer begins a call, the grammar constrains it; anything else is text."""
    forced = {model.tokenizer.encode("<tool_call>", parse_special=True)[0]: 30.0}
    for seed in range(4):
        result = model.chat(
            ASKED, tools=[WEATHER], seed=seed, temperature=1.0, max_tokens=96, logit_bias=forced if seed % 2 else {}
        )
        for call in result.message.tool_calls:
            assert call.function.name == "get_weather"
            if result.finish_reason == "tool_calls":
                assert isinstance(json.loads(call.function.arguments), dict)


def test_no_calls_where_they_are_not_wanted(model: LLM) -> None:
    result = model.chat(ASKED, tools=[WEATHER], tool_choice="none", max_tokens=8)
    prompt = model.tokenizer.decode(result.prompt_token_ids)
    assert "get_weather" not in prompt
    with pytest.raises(UnsupportedError, match="tool_format 'mistral'"):
        model.chat(ASKED, tools=[WEATHER], tool_format="mistral")


def calls_of(client: httpx.Client, dialect: str) -> list[tuple[str, Any]]:
    """Return the calls of an answer that must call, in a dialect."""
    function: dict[str, Any] = WEATHER["function"]  # type: ignore[assignment]
    if dialect == "anthropic":
        tool = {"name": function["name"], "input_schema": function["parameters"]}
        body = {"model": "x", "messages": ASKED, "tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 96}
        answer = client.post("/v1/messages", json=body).json()
        return [(b["name"], b["input"]) for b in answer["content"] if b["type"] == "tool_use"]
    if dialect == "responses":
        body = {"input": "What is the weather in Paris?", "tools": [{"type": "function", **function}]}
        answer = client.post("/v1/responses", json={**body, "tool_choice": "required", "max_output_tokens": 96}).json()
        return [(i["name"], json.loads(i["arguments"])) for i in answer["output"] if i["type"] == "function_call"]
    body = {"messages": ASKED, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 96}
    answer = client.post("/v1/chat/completions", json=body).json()
    calls = [call["function"] for call in answer["choices"][0]["message"]["tool_calls"]]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
def test_every_interface_has_them(client: httpx.Client, dialect: str) -> None:
    (name, arguments), *_ = calls_of(client, dialect)
    assert name == "get_weather"
    assert isinstance(arguments, dict)


def test_ollama_shows_and_takes_tools(client: httpx.Client) -> None:
    assert "tools" in client.post("/api/show", json={"model": "plain"}).json()["capabilities"]
    body = {"model": "plain", "messages": ASKED, "tools": [WEATHER], "stream": False, "options": {"num_predict": 4}}
    assert client.post("/api/chat", json=body).status_code == 200
