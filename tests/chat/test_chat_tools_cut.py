"""Answers that ``max_tokens`` cuts within a tool call return the partial call in every wire format, as OpenAI's API does.

Oracle: the cut answer is the beginning of the whole one.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from chat_transcripts import FULL, TOOLS, TRANSCRIPTS, Transcript
from hypothesis import given, settings
from hypothesis import strategies as st
from quire.chat import AnswerFormat, AnswerParser, ChatMessage, parse_answer
from quire.chat.reasoning import REASONING_FORMATS
from quire.chat.reply import joined
from quire.chat.tools import TOOL_FORMATS, tool_format
from test_chat_tools import FRAGMENTS

pytestmark = pytest.mark.python_only

IDS = [f"{item.format}-{i}" for i, item in enumerate(TRANSCRIPTS)]


def form_of(item: Transcript) -> AnswerFormat:
    return AnswerFormat.detect("", item.format, item.tags)


def cut_at(item: Transcript, n: int, tools: Any = None) -> ChatMessage:
    return parse_answer(item.text[:n], form_of(item), tools or item.definitions, item.prompt, cut=True)


def is_beginning(part: str | None, whole: str | None) -> bool:
    """White space at the end belongs to the mark that may follow."""
    return (whole or "").startswith((part or "").rstrip())


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_a_cut_answer_is_a_beginning(item: Transcript) -> None:
    whole = parse_answer(item.text, form_of(item), item.definitions, item.prompt)
    seen: set[tuple[int, str]] = set()
    for n in range(len(item.text)):
        message = cut_at(item, n)
        # Within a line, a word is a mark only when it is complete.
        said = (
            re.sub("f(u(n(c(t(o(ol?)?)?)?)?)?)?$", "", message.content or "")
            if item.format == "phi4"
            else message.content
        )
        assert is_beginning(said, whole.content), item.text[:n]
        assert is_beginning(message.reasoning_content, whole.reasoning_content), item.text[:n]
        calls = [call.function for call in message.tool_calls]
        expected = [call.function for call in whole.tool_calls][: len(calls)]
        assert [call.name for call in calls] == [call.name for call in expected]
        assert calls[:-1] == expected[:-1]
        if calls:
            assert expected[-1].arguments.startswith(calls[-1].arguments), item.text[:n]
            seen.add((len(calls), calls[-1].arguments))
    if any(arguments == FULL for _, arguments in item.calls):
        # Arguments grow with the text, in more than a few steps.
        assert len(seen) > 12


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_pieces_do_not_matter(item: Transcript) -> None:
    for n in range(0, len(item.text), 7):
        parser = AnswerParser(form_of(item), item.definitions, item.prompt, new_id=lambda: "id")
        streamed = joined([*map(parser.feed, item.text[:n]), parser.finish(cut=True)])
        parser = AnswerParser(form_of(item), item.definitions, item.prompt, new_id=lambda: "id")
        assert streamed == joined([parser.feed(item.text[:n]), parser.finish(cut=True)])


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_nothing_is_cut_from_a_whole_answer(item: Transcript) -> None:
    """The answer is complete at the last allowed token."""
    whole = parse_answer(item.text, form_of(item), item.definitions, item.prompt)
    cut = cut_at(item, len(item.text))
    assert (cut.content or "", cut.reasoning_content) == (whole.content or "", whole.reasoning_content)
    assert [call.function.name for call in cut.tool_calls] == [call.function.name for call in whole.tool_calls]
    for part, call in zip(cut.tool_calls, whole.tool_calls, strict=True):
        assert call.function.arguments.startswith(part.function.arguments)


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_without_tools_cut_calls_are_content(item: Transcript) -> None:
    for n in range(0, len(item.text), 5):
        message = parse_answer(item.text[:n], form_of(item), None, item.prompt, cut=True)
        assert message.tool_calls == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3", '{"answer": 42'),
        ("llama3", '{"name": "Alice", "age": 7'),
        ("llama3", '[{"x'),
        ("llama3", "a {"),
        ("bare_json", '{"answer": {"name": "weather", '),
        ("bare_json", '[{"a": 1}, {"b'),
        ("bare_json", "[1, 2"),
        ("pythonic", "[1, 2, 3"),
        ("pythonic", "[Note: it"),
        ("pythonic", "[note(x=1"),
        ("pythonic", "[weather(1, 2"),
        ("hermes", "a < b and c"),
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": [1, 2'),
        ("hermes", "<tool_call>\nno JSON"),
        ("command_r", "See Appendix A"),
        ("command_r", "Action: look ou"),
        ("granite", "Here is"),
        ("gemma", "<|tool_call>weather"),
    ],
)
def test_text_that_is_not_a_call_stays_text(name: str, text: str) -> None:
    message = parse_answer(text, AnswerFormat.detect("", name, "none"), TOOLS, cut=True)
    assert (message.content, message.tool_calls) == (text, [])


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Pa', '{"city": "Pa'),
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Pa\\', '{"city": "Pa\\'),
        ("hermes", '<tool_call>{"name": "weather"', ""),
        ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Pa', '{"city": "Pa'),
        ("hermes", '<tool_call>{"function": {"name": "weather", "arguments": {"days": 1', '{"days": 1'),
        ("mistral", "[TOOL_CALLS]weather[ARGS]", ""),
        ("pythonic", "[weather(city='It\\'s", '{"city": "It\'s'),
        ("pythonic", "[weather(city='Paris', days=1", '{"city": "Paris"'),
        ("pythonic", "[weather(days=1.", ""),
        ("glm", "<tool_call>weather<arg_key>city</arg_key><arg_value>Pa</arg", '{"city": "Pa'),
        ("glm", "<tool_call>weather<arg_key>days</arg_key><arg_value>1", ""),
        ("minimax_m3", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Pa]<]mi', '{"city": "Pa'),
    ],
)  # fmt: skip
def test_partial_arguments(name: str, text: str, arguments: str) -> None:
    (call,) = parse_answer(text, AnswerFormat.detect("", name, "none"), TOOLS, cut=True).tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", arguments)
    assert call.id


def test_only_the_length_makes_partial_calls() -> None:
    """If the model itself stops within a call, the text is content."""
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Pa'
    message = parse_answer(text, AnswerFormat.detect("", "hermes", "none"), TOOLS)
    assert (message.content, message.tool_calls) == (text, [])


def test_long_arguments_are_cut_in_linear_work() -> None:
    value = json.dumps({"city": "x" * 1_000_000, "days": [1] * 100_000})
    text = f'<tool_call>[{{"name": "clock", "arguments": {value}}}, {{"name": "weather", "arguments": {value[:-1]}'
    calls = parse_answer(text, AnswerFormat.detect("", "hermes", "none"), TOOLS, cut=True).tool_calls
    assert [call.function.arguments for call in calls] == [value, value[:-1]]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(TOOL_FORMATS), st.lists(st.sampled_from(FRAGMENTS), max_size=30), st.data())
def test_anything_can_be_cut(name: str, fragments: list[str], data: st.DataObject) -> None:
    """Nothing raises, pieces do not matter, and a call has a valid name."""
    text = "".join(fragments)
    form = AnswerFormat(data.draw(st.sampled_from([None, *REASONING_FORMATS])), tool_format(name))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    messages = []
    for pieces in ([text], list(text), [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]):
        parser = AnswerParser(form, TOOLS, new_id=lambda: "id")
        messages.append(joined([*map(parser.feed, pieces), parser.finish(cut=True)]))
    assert messages[0] == messages[1] == messages[2]
    assert all(call.function.name for call in messages[0].tool_calls)
    assert all(call.function.arguments[:1] in ("", "{") for call in messages[0].tool_calls)
