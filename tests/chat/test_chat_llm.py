"""Chats with the package's model: messages, tool calls and reasoning in its real answers.

Oracles: the text of the answer, checked by hand; the model without the options; the same answer whole and in pieces.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire.chat import AnswerFormat, parse_answer
from quire.chat.reasoning import CHANNELS, REASONING_FORMATS
from quire.chat.reasoning_budget import ReasoningBudget
from quire.chat.reply import joined
from quire.engine import LLM, AsyncLLM, ChatDelta
from quire.errors import RequestError
from quire.gguf import GGUFReader
from quire.params.sampling import SamplingParams
from repackaged import PACKAGED, repackaged
from weather_tool import ASKED, WEATHER

GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
CALL_TEXT = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOL_CALL_IDS = (3, 4)
CONTROL = 3  # the token type of GGUF


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The model in the package."""
    with LLM(threads=1, n_ctx=512, kv_dtype="f32") as model:
        yield model


def test_a_tool_is_called_and_its_result_read(llm: LLM) -> None:
    result = llm.chat(ASKED, GREEDY, tools=[WEATHER])
    assert result.text == CALL_TEXT
    assert result.finish_reason == "tool_calls"
    assert result.message.content is None
    (call,) = result.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    answered = [
        *ASKED,
        result.message.as_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": '{"city": "Paris", "temp_c": 21, "sky": "sunny"}'},
    ]
    second = llm.chat(answered, GREEDY, tools=[WEATHER])
    assert second.finish_reason == "stop"
    assert second.message.tool_calls == []
    assert "Paris" in (second.message.content or "")
    assert "sunny" in (second.message.content or "")
    assert "21" in (second.message.content or "")
    # The template renders the message as the model wrote it, so the first turn is in the cache.
    assert second.n_cached_tokens >= (result.n_prompt_tokens // 32) * 32


def test_a_stream_adds_up_to_the_whole(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=4, n=2)
    for tools in (None, [WEATHER]):
        whole = llm.chat(ASKED, params, tools=tools)
        deltas = list(llm.chat_stream(ASKED, params, tools=tools))
        for choice in whole.choices:
            own = [delta for delta in deltas if delta.choice == choice.index]
            assert "".join(delta.text for delta in own) == choice.text
            assert own[-1].finish_reason == choice.finish_reason
            assert without_ids(joined(own)) == without_ids(choice.message)  # type: ignore[arg-type]


def test_a_call_that_is_cut_is_a_beginning(llm: LLM) -> None:
    """At every length, it has the name, the arguments so far and no markup."""
    whole = llm.chat(ASKED, GREEDY, tools=[WEATHER])
    function = whole.message.tool_calls[0].function
    seen = set()
    for n_tokens in range(1, len(whole.token_ids)):
        params = SamplingParams(max_tokens=n_tokens, temperature=0.0)
        result = llm.chat(ASKED, params, tools=[WEATHER])
        assert result.finish_reason == "length"
        assert not result.message.content
        for call in result.message.tool_calls:
            assert call.function.name == "get_weather"
            assert function.arguments.startswith(call.function.arguments)
            seen.add(call.function.arguments)
        deltas = list(llm.chat_stream(ASKED, params, tools=[WEATHER]))
        assert without_ids(joined(deltas)) == without_ids(result.message)  # type: ignore[arg-type]
    assert len(seen) > 3


def without_ids(message: Any) -> tuple[Any, ...]:
    return message.content, message.reasoning_content, [call.function for call in message.tool_calls]


def test_async(llm: LLM) -> None:
    async def run() -> None:
        async with AsyncLLM(threads=1, n_ctx=512, kv_dtype="f32") as model:
            result = await model.chat(ASKED, GREEDY, tools=[WEATHER])
            assert result.text == CALL_TEXT
            deltas: list[ChatDelta] = [delta async for delta in model.chat_stream(ASKED, GREEDY, tools=[WEATHER])]
            assert without_ids(joined(deltas)) == without_ids(result.message)  # type: ignore[arg-type]
            assert deltas[-1].finish_reason == "tool_calls"

    asyncio.run(run())


def test_a_chat_without_tools_is_its_text(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    result = llm.chat(question, GREEDY)
    assert result.message.content == result.text
    assert result.message.as_dict() == {"role": "assistant", "content": result.text}
    assert "Paris" in result.text


def test_tool_choice_and_formats(llm: LLM) -> None:
    none = llm.chat(ASKED, GREEDY, tools=[WEATHER], tool_choice="none")
    assert none.prompt_token_ids == llm.chat(ASKED, GREEDY).prompt_token_ids
    assert none.message.tool_calls == []
    left = llm.chat(ASKED, GREEDY, tools=[WEATHER], tool_format="none")
    assert (left.message.content, left.finish_reason) == (CALL_TEXT, "stop")
    other = llm.chat(ASKED, GREEDY, tools=[WEATHER], tool_format="mistral")
    assert other.message.content == CALL_TEXT
    for wrong, error, text in [
        ({"tool_format": "hermas"}, RequestError, "tool_format .*'hermas'"),
        ({"reasoning_format": "thinks"}, RequestError, "reasoning_format .*'thinks'"),
        (
            {"tool_choice": "some"},
            RequestError,
            "tool_choice .*'some'",
        ),
        ({"tool_choice": {"type": "function"}}, RequestError, "tool_choice"),
        ({"reasoning_budget": -1}, RequestError, "reasoning_budget"),
        ({"reasoning_budget": True}, RequestError, "reasoning_budget"),
    ]:
        with pytest.raises(error, match=text):
            llm.chat(ASKED, GREEDY, tools=[WEATHER], **wrong)  # type: ignore[arg-type]
        with pytest.raises(error, match=text):
            list(llm.chat_stream(ASKED, GREEDY, tools=[WEATHER], **wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ("{{ tools }}", 1),
        ("{{ tools }}<tool_call> arguments </tool_call>", 0),
        ("", 0),
    ],
)
def test_an_unknown_tool_format_is_logged_when_loading(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tail: str, said: int
) -> None:
    template = "{% for m in messages %}{{ m.role }}\n{{ m.content }}\n{% endfor %}" + tail
    path = repackaged(tmp_path / "x.gguf", {"tokenizer.chat_template": (template, "string")})
    with LLM(path, threads=1, n_ctx=256) as model:
        for _ in range(2):
            model.chat(ASKED, SamplingParams(max_tokens=1))
    assert sum("calls in no known format" in record.message for record in caplog.records) == said


def test_marks_that_are_control_tokens(tmp_path: Path, llm: LLM) -> None:
    """Generated text does not show marks that are control tokens, as in many vocabularies; a chat still finds the call."""
    types = np.array(GGUFReader(PACKAGED).metadata["tokenizer.ggml.token_type"], dtype=np.int32)
    types[list(TOOL_CALL_IDS)] = CONTROL
    path = repackaged(tmp_path / "x.gguf", {"tokenizer.ggml.token_type": (types, "i32[]")})
    with LLM(path, threads=1, n_ctx=512, kv_dtype="f32") as model:
        assert "<tool_call>" in model.tokenizer.control_tokens
        result = model.chat(ASKED, GREEDY, tools=[WEATHER])
        assert result.token_ids == llm.chat(ASKED, GREEDY, tools=[WEATHER]).token_ids
        assert result.text == CALL_TEXT
        assert [call.function.name for call in result.message.tool_calls] == ["get_weather"]
        raw = model.generate([result.prompt_token_ids], GREEDY)[0]
        assert raw.token_ids == result.token_ids
        assert raw.text == CALL_TEXT.removeprefix("<tool_call>").removesuffix("</tool_call>")


# Reasoning


THINKING = "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The package's model with a template that begins reasoning, which the model was not trained to end."""
    source = str(GGUFReader(PACKAGED).metadata["tokenizer.chat_template"])
    assert THINKING in source
    source = source.replace(THINKING, THINKING.replace("assistant\\n", "assistant\\n<think>\\n")) + "{# </think> #}"
    path = repackaged(tmp_path_factory.mktemp("thinker") / "x.gguf", {"tokenizer.chat_template": (source, "string")})
    with LLM(path, threads=1, n_ctx=512, kv_dtype="f32") as model:
        yield model


STORY = [{"role": "user", "content": "Tell me a story about a fox"}]


def test_reasoning_that_the_prompt_begins(thinker: LLM) -> None:
    result = thinker.chat(STORY, GREEDY)
    assert result.message.content == ""
    assert result.message.reasoning_content == result.text.lstrip()
    left = thinker.chat(STORY, GREEDY, reasoning_format="none")
    assert (left.message.content, left.message.reasoning_content) == (result.text, None)


@pytest.mark.parametrize("budget", [0, 1, 9])
def test_a_budget_ends_reasoning(thinker: LLM, budget: int) -> None:
    free = thinker.chat(STORY, GREEDY)
    result = thinker.chat(STORY, GREEDY, reasoning_budget=budget)
    tokenizer = thinker.tokenizer
    end = tokenizer.encode("\n</think>\n\n", add_special=False, parse_special=True)
    assert result.token_ids[: budget + len(end)] == free.token_ids[:budget] + end
    assert (result.message.reasoning_content or "") == tokenizer.decode(free.token_ids[:budget]).strip()
    assert result.message.content
    assert "</think>" not in result.message.content
    several = thinker.chat(STORY, SamplingParams(max_tokens=30, n=3, seed=2), reasoning_budget=budget)
    for choice in several.choices:
        assert choice.token_ids[budget : budget + len(end)] == end


def test_a_budget_that_is_not_reached_changes_nothing(thinker: LLM) -> None:
    assert thinker.chat(STORY, GREEDY, reasoning_budget=64).token_ids == thinker.chat(STORY, GREEDY).token_ids


def test_a_budget_ends_a_channel(tmp_path: Path) -> None:
    """gpt-oss's channels in the tokens of the package's model, which was not trained on them."""
    begun = "<|start|>assistant<|channel|>analysis<|message|>"
    source = str(GGUFReader(PACKAGED).metadata["tokenizer.chat_template"])
    source = source.replace(THINKING, THINKING.replace("assistant\\n", "assistant\\n" + begun))
    path = repackaged(tmp_path / "x.gguf", {"tokenizer.chat_template": (source, "string")})
    with LLM(path, threads=1, n_ctx=512, kv_dtype="f32") as model:
        long = SamplingParams(max_tokens=48, min_tokens=48, temperature=0.0)
        result = model.chat(STORY, long, tool_format="harmony", reasoning_budget=5)
        free = model.chat(STORY, long, tool_format="harmony")
        closing = "<|end|><|start|>assistant<|channel|>final<|message|>"
        end = model.tokenizer.encode(closing, add_special=False, parse_special=True)
        assert result.token_ids[: 5 + len(end)] == free.token_ids[:5] + end


def test_when_a_budget_forces_what() -> None:
    """Ids are characters here, so the tokens read like the text."""

    def next_sign(answer: str, opened: bool, n_tokens: int = 3) -> str | None:
        budget = ReasoningBudget(
            form=REASONING_FORMATS[-1]
            if answer.startswith("Here")
            else next(f for f in REASONING_FORMATS if f.name == "think"),
            n_tokens=n_tokens,
            n_prompt=2,
            opened=opened,
            end_ids=[ord(sign) for sign in "</think>"],
            decode=lambda ids: "".join(map(chr, ids)),
        )
        forced = budget.forced([ord(sign) for sign in answer])
        row = np.arange(300, dtype=np.float32)
        made = budget([0, 0, *map(ord, answer)], row)
        if forced is None:
            assert made is row
        else:
            assert made.argmax() == forced
            assert np.isneginf(np.delete(made, forced)).all()
        return None if forced is None else chr(forced)

    assert next_sign("ab", True) is None
    assert next_sign("abc", True) == "<"
    assert next_sign("abc<", True) == "/"
    assert next_sign("abc</think", True) == ">"
    assert next_sign("abc</think>", True) is None
    assert next_sign("abc</think>Yes, it is.", True) is None
    assert next_sign("a</think>", True, 10) is None
    assert next_sign("a</think>Yes.", True, 10) is None
    assert next_sign("", True, 0) == "<"
    # If the prompt does not open reasoning, it counts from after the tag.
    assert next_sign("Yes, it is.", False) is None
    assert next_sign("<think>ab", False) is None
    assert next_sign("\n<think>abc", False) == "<"
    assert next_sign("<think>abc<", False) == "/"
    assert next_sign("", False, 0) is None


def test_a_budget_ends_the_channel_that_a_model_began() -> None:
    form = CHANNELS["harmony"]
    begun, reasoning = form.start, "Hm, so."
    budget = ReasoningBudget(
        form=form,
        n_tokens=len(reasoning),
        n_prompt=0,
        opened=False,
        end_ids=[ord(sign) for sign in form.written_end],
        decode=lambda ids: "".join(map(chr, ids)),
    )
    # The start must be among the first sixteen tokens; ids stand for characters here.
    start = [0xE000]
    budget.decode = lambda ids: "".join(begun if id == 0xE000 else chr(id) for id in ids)
    text = [*start, *map(ord, reasoning)]
    assert budget.forced(text[:-1]) is None
    written = []
    while (forced := budget.forced([*text, *written])) is not None:
        written.append(forced)
    assert "".join(map(chr, written)) == form.written_end
    answer = AnswerFormat.detect("", "harmony", "none")
    message = parse_answer(budget.decode([*text, *written]) + "Yes.", answer)
    assert (message.reasoning_content, message.content) == (reasoning, "Yes.")
