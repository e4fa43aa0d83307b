"""The input of templates: forms of a conversation, variables of their publishers, data that they may change."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from typing import Any

import pytest
from quire.chat import ChatTemplate, forms, sandbox
from quire.chat.filters import ALLOWED_FILTERS
from quire.errors import RequestError, UnsupportedError

pytestmark = pytest.mark.python_only

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tools_of(text: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {text(): {"type": "string", "description": text()}}}
    return [{"type": "function", "function": {"name": text(), "description": text(), "parameters": parameters}}]


def test_arguments_are_objects_or_text_as_the_template_requires() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    loop = "{% for m in messages %}{% for c in m.tool_calls %}{{ %s }}{% endfor %}{% endfor %}"
    for expression in (
        "c.function.arguments | tojson",
        "'' + c.function.arguments",
        "'' ~ c.function.arguments",
        "c.function.arguments if c.function.arguments is string else c.function.arguments | tojson",
    ):
        assert ChatTemplate(loop.replace("%s", expression)).render(messages) == '{"a": 1}'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}), (" ", {}), ("null", {}), (None, {}), ("{}", {}), ({"a": 1}, {"a": 1}),
        ('{"city": "Par', {"city": "Par"}), ('{"city": "Par\\', {"city": "Par"}), ('{"a": 1, "b', {"a": 1}), ('{"a": tr', {}),
        ('{"a": [1, {"b": "x', {"a": [1, {"b": "x"}]}), ('{"a": "}", "b": [2, 3', {"a": "}", "b": [2, 3]}), ("{", {}),
        ('"{\\"a\\": 1}"', {"a": 1}), ("[1]", {"arguments": [1]}), ("3", {"arguments": 3}), ("Paris", {"arguments": "Paris"}),
        ("{no", {}), (7, {"arguments": 7}),
    ],
)  # fmt: skip
def test_arguments_of_a_history_are_an_object(arguments: Any, expected: dict[str, Any]) -> None:
    """Arguments may be empty, null, cut off, encoded twice or not an object; templates iterate over members."""
    call = {"function": {"name": "f", "arguments": arguments}}
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    loop = (
        "{% for m in messages %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}{% endfor %}"
    )
    as_object = ChatTemplate(loop + "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}", keeps_turns=True)
    assert json.loads(as_object.render(chat)) == expected
    as_text = ChatTemplate(
        "{% for m in messages %}{% for c in m.tool_calls %}{{ '' + c.function.arguments }}{% endfor %}{% endfor %}",
        keeps_turns=True,
    )
    text = as_text.render(chat)
    assert text == (arguments if isinstance(arguments, str) and arguments.strip() not in ("", "null") else text)
    if not (isinstance(arguments, str) and arguments.strip() not in ("", "null")):
        assert json.loads(text) == (arguments if isinstance(arguments, (dict, int)) else {})


def test_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "a\nb" in ChatTemplate(CHATML).render([{"role": "user", "content": parts}])
    mixed = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}<{{ p.text }}>{% endfor %}"
        "{% else %}{{ m.content + '' }}{% endif %}{% endfor %}"
    )
    chat = [{"role": "system", "content": parts}, {"role": "user", "content": parts}]
    assert mixed.render(chat) == "a\nb<a><b>"
    # Parts are joined for a template that would leave some of them out.
    first = ChatTemplate("{{ messages[0].content if messages[0].content is string else messages[0].content[0].text }}")
    assert first.render([{"role": "user", "content": parts}]) == "a\nb"
    with pytest.raises(UnsupportedError, match=r"messages\[0\].content\[1\].type 'image_url'"):
        ChatTemplate(CHATML).render([{"role": "user", "content": [parts[0], {"type": "image_url"}]}])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": {"value": "hi", "annotations": []}},  # Assistants
        {"type": "input_text", "text": "hi"},  # Responses
        {"type": "output_text", "text": "hi", "annotations": []},
        {"text": "hi"},
        "hi",
    ],
    ids=str,
)
def test_parts_of_other_apis_are_text(part: object) -> None:
    shown = "{% for p in messages[0].content %}{{ p.type }} {{ p.text }}{% endfor %}"
    assert ChatTemplate(shown).render([{"role": "user", "content": [part]}]) == "text hi"


@pytest.mark.parametrize(
    "part", [{"type": "text", "text": {"value": 7}}, {"type": "text"}, {"type": 5}, 7, {}], ids=str
)
def test_parts_without_text_are_named(part: object) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\].content\[0\]"):
        ChatTemplate(CHATML).render([{"role": "user", "content": [part]}])


def test_absent_content_takes_a_form_that_the_template_accepts() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    loop = "{% for m in messages %}{% if m.tool_calls %}{{ %s }}{% endif %}{% endfor %}"
    for expression, texts in (  # first as the client sent it: left out, or null
        ("'absent' if m.content is undefined else 'none' if m.content is none else 'there'", ["absent", "none"]),
        ("m.content.strip() ~ '!'", ["!", "!"]),
        ("'none' if m['content'] is none else m.content + 1", ["none", "none"]),
    ):
        template = ChatTemplate(loop.replace("%s", expression), keeps_turns=True)
        for content, text in zip(({}, {"content": None}), texts, strict=True):
            message = {"role": "assistant", **content, "tool_calls": [call]}
            assert template.render([{"role": "user", "content": "x"}, message]) == text
    strict = ChatTemplate(
        "{{ raise_exception('first') if messages[0].content is undefined else raise_exception('then') }}"
    )
    with pytest.raises(RequestError, match="first"):
        strict.render([{"role": "assistant", "tool_calls": [call]}])


def test_lists_and_dicts_of_the_templates_own_change() -> None:
    call = {"function": {"name": "f", "arguments": {"a": [1]}}}
    chat = [{"role": "assistant", "content": "x", "tool_calls": [call]}]
    source = (
        "{% set l = [1] %}{% set _ = l.append(2) %}{% set _ = l.extend([5, 6]) %}{% set _ = l.insert(0, 0) %}"
        "{{ l.pop(0) }}{{ l.pop() }}{% set _ = l.remove(5) %}{% set _ = l.reverse() %}{{ l }}"
        "{% set d = {'a': 1} %}{% set _ = d.update({'b': 2}, c=3) %}{% set _ = d.update([('e', 5)]) %}"
        "{{ d.setdefault('f', 6) }}{{ d.pop('a') }}{{ d }}{% set copy = messages[:] %}{% set _ = copy.pop() %}{{ copy }}"
    )
    assert ChatTemplate(source).render(chat) == "06[2, 1]61{'b': 2, 'c': 3, 'e': 5, 'f': 6}[]"
    for change in (
        "messages.append(1)", "messages[0].update(a=1)", "messages[0].tool_calls.pop()", "messages[:][0].pop('role')",
        "messages[0].tool_calls[0].function.arguments.a.append(1)", "messages[0].tool_calls[0].function.arguments.clear()",
        "tools.insert(0, 1)", "tools[0].function.pop('name')", "style.append(1)", "(messages | list)[0].update(a=1)",
        "(messages | map(attribute='tool_calls') | first).reverse()", "{'a': tools}.a.pop()", "[style][0].extend([1])",
    ):  # fmt: skip
        template = ChatTemplate("{% set f = " + change + " %}{{ f }}{{ style }}{{ tools }}")
        with pytest.raises(UnsupportedError, match="sandbox"):
            template.render(chat, tools_of(lambda: "f"), style=[1])


@pytest.mark.parametrize("name", sorted(ALLOWED_FILTERS))
def test_no_filter_changes_what_it_is_given(name: str) -> None:
    """Neither a request nor the conversations by which templates are probed, which are common to all."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    known, probes = deepcopy(messages), deepcopy(forms.PARTS)
    for value in ("messages[0].content", "messages[0].content[0]", "messages[0]", "messages"):
        for arguments in ("", "(3)", "('x')", "(messages)"):
            shown = "{% for part in messages[0].content %}{{ part.text }}{% endfor %}"
            template = ChatTemplate(shown + "{% set made = " + f"{value} | {name}{arguments}" + " %}{{ made }}")
            with suppress(RequestError, UnsupportedError):
                template.render(messages)
            assert messages == known
            assert probes == forms.PARTS


def test_variables_of_publishers_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime(2025, 3, 14, 15, 9, 26)

    monkeypatch.setattr(sandbox, "datetime", Frozen)
    user = [{"role": "user", "content": "x"}]
    needs = ChatTemplate("{{ functions + '|' + datetime + '|' + date_string }}")
    assert needs.reads_tools
    tools = tools_of(lambda: "f")
    listed = json.dumps([tools[0]["function"]], indent=4)
    assert needs.render(user, tools) == f"{listed}|Mar 14 2025|14 Mar 2025"
    assert needs.render(user, tools, date_string="a", datetime="b", functions="c") == "c|b|a"
    # A template with its own fallback also gets the date, as from llama.cpp's server.
    able = ChatTemplate("{% if not date_string is defined %}{% set date_string = 'old' %}{% endif %}{{ date_string }}")
    assert able.render(user) == "14 Mar 2025"
    assert able.render(user, date_string="then") == "then"
    assert not ChatTemplate("{{ functions | default('none') }}").reads_tools


def test_empty_tools_and_absent_documents_are_as_in_transformers() -> None:
    user = [{"role": "user", "content": "x"}]
    template = ChatTemplate("{{ tools }}{{ documents is defined }}{{ documents }}")
    assert template.render(user) == "NoneTrueNone"
    assert template.render(user, []) == "[]TrueNone"
