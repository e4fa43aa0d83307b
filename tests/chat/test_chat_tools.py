"""Parsing tool calls and reasoning.

Oracles: transcripts with their meaning (chat_transcripts.py), published templates' renderings of calls and, for texts in
pieces, the whole text.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from chat_transcripts import BROKEN, FULL, PARIS, TOOLS, TRANSCRIPTS, Transcript
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quire.chat import AnswerFormat, AnswerParser, ChatMessage, parse_answer
from quire.chat.reasoning import REASONING_FORMATS, reasoning_format
from quire.chat.reply import joined
from quire.chat.tools import TOOL_FORMATS, tool_format
from quire.chat.tools.call_reader import python_calls
from quire.chat.tools.calls import Text, Tools
from quire.chat.tools.literals import python_value
from quire.chat.tools.parser import ToolParser
from quire.chat.tools.scanner import Malformed
from quire.chat.tools.values import typed_value
from quire.errors import RequestError

pytestmark = pytest.mark.python_only

FORMATS = [tool_format(name) for name in TOOL_FORMATS]
NAMES = [form.name for form in FORMATS]
IDS = [f"{item.format}-{i}" for i, item in enumerate(TRANSCRIPTS)]


def form_of(item: Transcript) -> AnswerFormat:
    return AnswerFormat.detect("", item.format, item.tags)


def streamed(form: AnswerFormat, pieces: list[str], prompt: str = "", tools: Any = TOOLS) -> ChatMessage:
    parser = AnswerParser(form, tools, prompt)
    return joined([*map(parser.feed, pieces), parser.finish()])


def meaning(message: ChatMessage) -> tuple[str | None, str | None, list[tuple[str, str]]]:
    """Return a message without its ids, which are random."""
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    return message.content, message.reasoning_content, calls


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_transcripts(item: Transcript) -> None:
    message = parse_answer(item.text, form_of(item), item.definitions, item.prompt)
    found = [
        (
            call.function.name,
            call.function.arguments if isinstance(arguments, str) else json.loads(call.function.arguments),
        )
        for call, (_, arguments) in zip(message.tool_calls, item.calls, strict=True)
    ]
    assert found == item.calls
    assert (message.content or "", message.reasoning_content or "") == (item.content, item.reasoning)
    ids = [call.id for call in message.tool_calls]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    assert tuple(ids[: len(item.ids)]) == item.ids


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_a_text_cut_anywhere_is_the_same(item: Transcript) -> None:
    form, text = form_of(item), item.text
    tools = item.definitions
    whole = meaning(parse_answer(text, form, tools, item.prompt))
    for cut in range(1, len(text)):
        assert meaning(streamed(form, [text[:cut], text[cut:]], item.prompt, tools)) == whole, cut
    assert meaning(streamed(form, list(text), item.prompt, tools)) == whole
    rng = random.Random(3)
    for _ in range(20):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(12)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert meaning(streamed(form, pieces, item.prompt, tools)) == whole


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_an_answer_that_breaks_off_anywhere_loses_nothing(item: Transcript) -> None:
    """The text of an incomplete call is content, and every word of it is in the message."""
    form = form_of(item)
    for n in range(len(item.text)):
        part = item.text[:n]
        message = streamed(form, [part], item.prompt)
        assert [call.function.name for call in message.tool_calls] == [name for name, _ in item.calls][
            : len(message.tool_calls)
        ]
        if not message.tool_calls and form.tools is not None and not form.tools.frames_content and item.tags == "none":
            assert message.content == part


def test_every_format_has_transcripts() -> None:
    assert {item.format for item in TRANSCRIPTS} == set(NAMES)
    full = {item.format for item in TRANSCRIPTS if any(arguments == FULL for _, arguments in item.calls)}
    assert full >= set(NAMES) - {"bare_json"}
    parallel = {item.format for item in TRANSCRIPTS if len(item.calls) > 1}
    assert parallel >= set(NAMES) - {"bare_json", "gigachat", "harmony"}  # one call each in the last two


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BROKEN.items() for text in texts])
def test_malformed_calls_are_content(name: str, text: str) -> None:
    form = AnswerFormat.detect("", name, "none")
    for pieces in ([text], list(text), [f"Well.\n{text}"] if name not in ("functionary", "harmony") else [text]):
        message = streamed(form, pieces)
        assert message.tool_calls == []
        assert message.content == "".join(pieces)


def test_a_call_behind_a_malformed_one_is_found() -> None:
    form = AnswerFormat.detect("", "hermes", "none")
    good = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
    bad = '<tool_call>\n{"name": oh dear}\n</tool_call>'
    message = parse_answer(f"{bad}\n{good}\nDone. ", form, TOOLS)
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [PARIS]
    assert message.content == f"{bad}\nDone. "


def test_calls_come_when_they_are_complete() -> None:
    parser = AnswerParser(AnswerFormat.detect("", "hermes", "none"), TOOLS)
    seen = []
    for (
        sign
    ) in 'Hi. <tool_call>{"name": "clock", "arguments": {}}</tool_call> <tool_call>{"name": "clock"}</tool_call>':
        delta = parser.feed(sign)
        seen += [call.index for call in delta.tool_calls]
        assert not (delta.content and seen)
        assert sign == ">" or not delta.tool_calls
    assert seen == [0, 1]
    assert not parser.finish()


def test_without_tools_calls_are_content() -> None:
    for item in TRANSCRIPTS:
        form = form_of(item)
        message = parse_answer(item.text, form, None, item.prompt)
        assert message.tool_calls == []
        assert message.reasoning_content == (item.reasoning or None)
        if form.tools is not None and not form.tools.frames_content and item.tags == "none":
            assert message.content == item.text
        for _, arguments in item.calls:
            if arguments == PARIS:
                assert "Paris" in (message.content or "")


# Reasoning


@pytest.mark.parametrize("form", REASONING_FORMATS, ids=lambda form: form.name)
def test_reasoning(form: Any) -> None:
    answer = AnswerFormat(reasoning=form)
    start, end = form.start, form.end
    for text, prompt, expected in [
        (f"{start}\nHm.\n\n{end}\n\nYes. {start}", "", (f"Yes. {start}", "Hm.")),
        (f"\n{start}{end}Yes.", "", ("Yes.", None)),
        (f"Hm.\n{end}\nYes.\n", f"x{start}\n", ("Yes.\n", "Hm.")),
        (f"{start}Hm.{end}Yes.", f"x{start}", ("Yes.", "Hm.")),
        (f"{start}Hm. ", "", ("", "Hm. ")),
        ("Hm.", f"{start}\n", ("", "Hm.")),
        ("Yes.", f"{start}\n{end}\n\n", ("Yes.", None)),
        (f" Yes. {start}Hm.{end}", "", (f" Yes. {start}Hm.{end}", None)),
        (" ", "", (" ", None)),
        (start[:-1], "", (start[:-1], None)),
    ]:
        for pieces in ([text], list(text), [text[: len(text) // 2], text[len(text) // 2 :]]):
            message = streamed(answer, pieces, prompt, None)
            assert (message.content, message.reasoning_content) == expected, (text, prompt)


# Arbitrary text


FRAGMENTS = sorted(
    {mark for form in FORMATS for mark in form.visible}
    | {tag for form in REASONING_FORMATS for tag in (form.start, form.end)}
    | {
        '{"name": "f", "arguments": {}}',
        '{"name": "f", "arguments": {"a": "',
        '[{"name": "f"}]',
        "[f(a=1)]",
        "call:f{a:1}",
    }
    | {'"', "{", "}", "[", "]", "(", ")", "\\", "'", ":", ",", "\n", " ", "f", "1", "é", "\U0001f5fc", "\ud800", "\x00"}
    | {
        "<function=f>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        '<invoke name="f">',
        '<parameter name="a">',
        "</invoke>",
    }
    | {
        "function",
        "```json\n",
        "```",
        "bare_json",
        "all\n",
        "to=functions.f",
        "analysis",
        "final",
        "commentary",
        "assistant",
    }
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.sampled_from(FRAGMENTS), max_size=30), st.data())
def test_pieces_of_arbitrary_text_do_not_matter(name: str, fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    form = AnswerFormat(data.draw(st.sampled_from([None, *REASONING_FORMATS])), tool_format(name))
    whole = meaning(parse_answer(text, form, TOOLS))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert meaning(streamed(form, pieces)) == whole
    assert meaning(streamed(form, list(text))) == whole
    if not whole[2] and form.reasoning is None and form.tools is not None and not form.tools.frames_content:
        assert whole[0] == text
    for _, arguments in whole[2]:
        assert isinstance(json.loads(arguments), dict)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(NAMES), st.text(max_size=200))
def test_text_without_marks_is_content(name: str, text: str) -> None:
    form = AnswerFormat(None, tool_format(name))
    assert form.tools is not None
    assume(not any(start[0] in text for start in form.tools.starts))
    assert streamed(form, list(text)).content == text


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.text(), JSON_VALUES, max_size=4),
    st.booleans(),
    st.sampled_from(["hermes", "mistral", "kimi_k2"]),
)
def test_json_arguments_are_kept(arguments: dict[str, Any], ascii: bool, name: str) -> None:
    raw = json.dumps(arguments, ensure_ascii=ascii)
    text = {
        "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {raw}}}\n</tool_call>',
        "mistral": f"[TOOL_CALLS]weather[ARGS]{raw}",
        "kimi_k2": f"<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{raw}<|tool_call_end|>",
    }[name]
    message = streamed(AnswerFormat.detect("", name, "none"), list(text))
    assert [call.function.arguments for call in message.tool_calls] == [raw]


@settings(max_examples=200, deadline=None)
@given(JSON_VALUES)
def test_python_literals(value: Any) -> None:
    """Oracle: Python's repr."""
    if "-0.0" in repr(value) or re.search(r"\d{4000}", repr(value)):
        return
    assert python_value(repr(value)) == value
    assert python_calls(f"f(a={value!r})") == [("f", {"a": value})]


def test_literals_are_not_evaluated() -> None:
    for text in (
        "__import__('os')",
        "f()",
        "1+1",
        "(",
        "[" * 1000,
        "'",
        "'\\x4'",
        "{1: 2}",
        "a.b",
        "1_0",
        "--1",
        "b'x'",
        "1" * 9999,
    ):
        with pytest.raises(Malformed):
            python_value(text)


def test_values_have_the_types_of_their_schemas() -> None:
    for text, schema, expected in [
        ("2", {"type": "string"}, "2"),
        ("2", {"type": "integer"}, 2),
        ("2.0", {"type": "integer"}, 2.0),
        ("2.5", {"type": "integer"}, "2.5"),
        ("two", {"type": "integer"}, "two"),
        (" true ", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("1", {"type": "boolean"}, "1"),
        ("None", {"type": ["string", "null"]}, None),
        ("x", {"type": ["string", "null"]}, "x"),
        ("5", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 5),
        ("[1]", {"anyOf": [{"type": "string"}, {}]}, [1]),
        ('"x"', {"type": "string"}, '"x"'),
        ('"x"', {"type": "object"}, "x"),
        ("{'a': 1}", {"type": "object"}, {"a": 1}),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"const": 2}, 2),
        ("2", None, 2),
        ("Paris", None, "Paris"),
        ('"x"', None, '"x"'),
        ("", {"type": "integer"}, ""),
    ]:
        assert typed_value(text, schema) == expected, (text, schema)
        assert type(typed_value(text, schema)) is type(expected)
    assert typed_value("2", None, as_text=True) == "2"
    assert typed_value("2", {"type": "string"}, as_text=False) == "2"


def test_held_text_stays_short() -> None:
    """In long texts, the part that is examined again with each token does not grow, so the work is linear."""
    value = "x" * 100_000
    for name, text in [
        ("hermes", f'<tool_call>{{"name": "weather", "arguments": {{"city": "{value}"}}}}</tool_call>'),
        ("glm", f"<tool_call>weather<arg_key>city</arg_key><arg_value>{value}</arg_value></tool_call>"),
        ("hermes", "<tool_call>" * 10_000),
        ("hermes", '<tool_call>{"a": "' * 6_000),
        ("qwen3_coder", "<function=f><parameter=a>" * 5_000),
        ("hermes", " " * 100_000),
        ("mistral", value),
    ]:
        parser = ToolParser(tool_format(name), Tools(TOOLS))
        parts = []
        for i in range(0, len(text), 4):
            parts += parser.feed(text[i : i + 4])
            assert parser.n_held < 100
        parts += parser.finish()
        assert sum(len(part.text if isinstance(part, Text) else part.arguments) for part in parts) >= 100_000


def test_unknown_format_names_are_refused() -> None:
    assert list(TOOL_FORMATS) == NAMES
    assert len({form.name for form in REASONING_FORMATS}) == len(REASONING_FORMATS)
    assert all(tool_format(name).name == name for name in NAMES)
    assert reasoning_format("think").end == "</think>"
    assert AnswerFormat.detect("<tool_call></tool_call> arguments </think>", "none", "none") == AnswerFormat()
    for wrong in ({"tools": "hermas"}, {"reasoning": "thinks"}):
        with pytest.raises(RequestError, match=r"(tool|reasoning)_format 'h?"):
            AnswerFormat.detect("", **wrong)


def test_no_mark_begins_another_of_its_format() -> None:
    """Otherwise the result would depend on how much of the text has arrived."""
    for form in FORMATS:
        for a in form.starts:
            assert not any(b != a and b.startswith(a) for b in form.starts), form.name


def test_messages_as_dicts() -> None:
    form = AnswerFormat.detect("", "hermes", "think")
    text = '<think>Hm.</think>Hi.<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    message = parse_answer(text, form, TOOLS)
    call = message.tool_calls[0]
    assert message.as_dict() == {
        "role": "assistant",
        "content": "Hi.",
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": call.id, "type": "function", "function": {"name": "clock", "arguments": "{}"}}],
    }
    assert parse_answer("", AnswerFormat()).as_dict() == {"role": "assistant", "content": ""}
