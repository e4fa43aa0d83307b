"""Broken answers in every wire format lose no text and raise nothing.

Oracles: text inserted into a transcript is in the message; the whole text for text in pieces.
"""

from __future__ import annotations

import codecs
import json
import random
from typing import Any

import pytest
from chat_transcripts import PARIS_JSON, TRANSCRIPTS, Transcript
from quire.chat import AnswerFormat, AnswerParser, ChatMessage, parse_answer
from quire.chat.reply import joined

pytestmark = pytest.mark.python_only

IDS = [f"{item.format}-{i}" for i, item in enumerate(TRANSCRIPTS)]
ADDED = "ZQ"
SCRAPS = [
    '"',
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    "\\",
    "<",
    ">",
    "|",
    "\n",
    " ",
    "=",
    "'",
    "1",
    "ü",
    "🗼",
    "\x00",
    "null",
]


def form_of(item: Transcript) -> AnswerFormat:
    return AnswerFormat.detect("", item.format, item.tags)


def streamed(item: Transcript, pieces: list[str]) -> ChatMessage:
    parser = AnswerParser(form_of(item), item.definitions, item.prompt)
    return joined([*map(parser.feed, pieces), parser.finish()])


def meaning(message: ChatMessage) -> tuple[str, str, list[tuple[str, str]]]:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    return message.content or "", message.reasoning_content or "", calls


def said(message: ChatMessage) -> tuple[str, list[tuple[str, str]]]:
    """Return a message's text, including reasoning, and its calls."""
    content, reasoning, calls = meaning(message)
    return reasoning + content, calls


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_inserted_text_is_kept(item: Transcript) -> None:
    """Inserted text ends up in a text, a name or an argument, or turns the call into content.

    Only in a part without meaning, such as the number of a call, it may leave the message unchanged.
    """
    form = form_of(item)
    before = said(parse_answer(item.text, form, item.definitions, item.prompt))
    for at in range(len(item.text) + 1):
        text = item.text[:at] + ADDED + item.text[at:]
        message = parse_answer(text, form, item.definitions, item.prompt)
        everything, calls = said(message)
        ids = [call.id for call in message.tool_calls]
        assert ADDED in everything + str(calls) + str(ids) or (everything, calls) == before, text


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_bytes_cut_anywhere(item: Transcript) -> None:
    """Networks and vocabularies cut within characters, too."""
    whole = meaning(parse_answer(item.text, form_of(item), item.definitions, item.prompt))
    data = item.text.encode()
    for cut in range(len(data) + 1):
        decode = codecs.getincrementaldecoder("utf-8")().decode
        assert meaning(streamed(item, [decode(data[:cut]), decode(data[cut:], True)])) == whole, cut


def mutated(rng: random.Random, item: Transcript) -> str:
    """Return a transcript with parts removed, doubled, moved, or replaced by scraps and parts of others."""
    text = item.text
    for _ in range(rng.randint(1, 4)):
        a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        b = min(b, a + rng.choice([1, 3, 20, 200]))
        other = rng.choice(TRANSCRIPTS).text
        start = rng.randrange(len(other) + 1)
        text = rng.choice(
            [
                text[:a] + text[b:],
                text[:b] + text[a:],
                text[b:] + text[:a],
                text[:a] + rng.choice(SCRAPS) + text[b:],
                text[:a] + rng.choice(SCRAPS) + text[a:],
                text[:a] + other[start : start + rng.choice([5, 40])] + text[a:],
            ]
        )
    return text


@pytest.mark.parametrize("item", TRANSCRIPTS, ids=IDS)
def test_mutated_transcripts(item: Transcript) -> None:
    rng = random.Random(item.text)
    form = form_of(item)
    for _ in range(60):
        text = mutated(rng, item)
        message = parse_answer(text, form, item.definitions, item.prompt)
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randint(1, 9)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert meaning(streamed(item, pieces)) == meaning(message), text
        for call in message.tool_calls:
            assert isinstance(json.loads(call.function.arguments), dict)
            assert call.id
        if not message.tool_calls and form.reasoning is None and form.tools and not form.tools.frames_content:
            assert message.content == text


def call(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        call(f'{{"name": "weather", "argments": {PARIS_JSON}}}'),
        call('{"name": "weather", "city": "Paris"}'),
        call(f'{{"name": "weather", "arguments": {PARIS_JSON}, "arguments": {{}}}}'),
        call(f'{{"name": "weather", "name": "clock", "arguments": {PARIS_JSON}}}'),
    ],
)
def test_arguments_under_another_name_are_not_dropped(text: str) -> None:
    message = parse_answer(text, AnswerFormat.detect("", "hermes", "none"), TRANSCRIPTS[0].definitions)
    assert (message.content, message.tool_calls) == (text, [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (call('{"name": "clock", "id": "x1"}'), ("clock", "{}")),
        (call('{"type": "function", "function": {"name": "clock"}}'), ("clock", "{}")),
        (call(f'{{"name": "weather", "arguments": {PARIS_JSON}, "why": "it rains"}}'), ("weather", PARIS_JSON)),
    ],
)
def test_members_that_are_no_arguments(text: str, found: Any) -> None:
    message = parse_answer(text, AnswerFormat.detect("", "hermes", "none"), TRANSCRIPTS[0].definitions)
    assert meaning(message) == ("", "", [found])


def test_headers_that_are_not_the_assistants_are_shown() -> None:
    form = AnswerFormat.detect("", "harmony", "none")
    for header in ("<|start|>user", "Well"):
        text = f"{header}<|channel|>final<|message|>Hi.<|end|>"
        assert meaning(parse_answer(text, form, TRANSCRIPTS[0].definitions)) == (f"{header}Hi.", "", [])
