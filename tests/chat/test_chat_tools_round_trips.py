"""Calls with arguments that are easily lost, rendered by published templates and parsed back.

Oracle: the rendered calls.  Arguments that a template cannot express are listed with its name.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest
from call_templates import END, FORMS, START
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty_arguments import SETS, TEXT, Nasty
from quire.chat import AnswerFormat, AnswerParser, ChatMessage, ChatTemplate, parse_answer
from quire.chat.detection import detect_tools
from quire.chat.reply import joined
from quire.chat.tools import tool_format
from quire.errors import CapacityError
from test_chat_tools_templates import BEGINNINGS, DETECTED, ENDS_OF_TURNS, WITHOUT_CALLS, source_of

pytestmark = pytest.mark.python_only

QUESTION = "How is it?"
STARTS = {**BEGINNINGS, "functionary": ("do_it\n",), "muse": (" to=do_it",)}
PUBLISHED = sorted(name for name, (tools, _) in DETECTED.items() if tools and name not in WITHOUT_CALLS)
# Line ends around a value belong to the format if one precedes it.
LOST = {("seed oss", "line ends around"), ("seed oss", "a line end")}


@cache
def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})


def rendered(source: str, case: Nasty) -> str:
    call = {"id": "call00000", "type": "function", "function": {"name": "do_it", "arguments": case.arguments}}
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = template_of(source).render(messages, case.tools, False)
    return text[text.index(QUESTION) + len(QUESTION) :]


def answer_of_template(source: str, format: str, case: Nasty) -> str:
    """Return the assistant's turn as a published template writes it, without its end."""
    answer = rendered(source, case)
    starts = STARTS.get(format, tool_format(format).starts)
    answer = answer[min(i for start in starts if (i := answer.find(start)) >= 0) :]
    for _ in range(3):
        answer = ENDS_OF_TURNS.sub("", answer)
    return answer


def answer_of_form(source: str, case: Nasty) -> str:
    answer = rendered(source, case)
    return answer[answer.index(START) + len(START) :].removesuffix(END)


def meaning(message: ChatMessage) -> tuple[str, list[tuple[str, str]]]:
    """Return the text, and the calls with their arguments' types."""
    calls = [(call.function.name, json.dumps(json.loads(call.function.arguments))) for call in message.tool_calls]
    return (message.content or "").strip(), calls


def check(format: str, answer: str, case: Nasty, rng: random.Random) -> None:
    """Check parsing whole, in pieces, and cut."""
    form = AnswerFormat(None, tool_format(format))
    whole = parse_answer(answer, form, case.tools)
    # Gemma's templates sort the keys.
    assert [(name, json.loads(text)) for name, text in meaning(whole)[1]] == [("do_it", case.arguments)], answer
    assert meaning(whole)[0] == ""
    (call,) = whole.tool_calls
    found = json.loads(call.function.arguments)
    assert {key: type(value) for key, value in found.items()} == {k: type(v) for k, v in case.arguments.items()}
    cuts = sorted(rng.randrange(len(answer) + 1) for _ in range(6))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    parser = AnswerParser(form, case.tools)
    assert meaning(joined([*map(parser.feed, pieces), parser.finish()])) == meaning(whole)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates(shared: Path, name: str) -> None:
    source = source_of(shared, name)
    form = detect_tools(source)
    assert form is not None
    rng = random.Random(name)
    n_checked = 0
    for case in SETS:
        try:
            answer = answer_of_template(source, form.name, case)
        except CapacityError:  # Hermes 3's template does not end with a null
            continue
        check(form.name, answer, case, rng)
        n_checked += 1
    assert n_checked >= len(SETS) - 1


@pytest.mark.parametrize("label", FORMS)
def test_forms_of_other_templates(label: str) -> None:
    format, source = FORMS[label]
    rng = random.Random(label)
    for case in SETS:
        if (label, case.label) not in LOST:
            check(format, answer_of_form(source, case), case, rng)


# Any arguments


SIGNS = st.sampled_from(
    [
        *"aZ09_-.$@/:=,;#%&*+?!|~^()[]{}<>\"'`\\ \t\n",
        "\r\n",
        "城市",
        "Ä",
        "ъ",
        "🗼",
        "\u0301",
        "</parameter>",
        "</arg_value>",
        "</function>",
        "</tool_call>",
        "<tool_call>",
        "</param>",
        "null",
        "007",
        ".5",
        "True",
    ]
)
KEYS = st.lists(SIGNS, min_size=1, max_size=6).map("".join).filter(lambda key: key == key.strip() and "\n" not in key)
TEXTS = st.lists(SIGNS, max_size=12).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.dictionaries(KEYS, TEXTS, min_size=1, max_size=3), st.integers(0, 2**32))
def test_any_texts_under_any_names(label: str, arguments: dict[str, str], seed: int) -> None:
    format, source = FORMS[label]
    if label == "seed oss":
        arguments = {key: "a" + value for key, value in arguments.items()}
    case = Nasty("made", arguments, dict.fromkeys(arguments, TEXT))
    check(format, answer_of_form(source, case), case, random.Random(seed))
