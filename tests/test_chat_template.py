"""Chat templates: what a caller may pass, what reaches the model as control tokens, what tools' arguments become."""

from __future__ import annotations

import json
import random
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from quire.chat import ChatTemplate, sandbox
from quire.errors import LoadError, QuireError, RequestError, UnsupportedError
from quire.tokenizer import Tokenizer
from token_texts import random_texts

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def tokenizer(shared: Path) -> Tokenizer:
    folder = shared / "models" / "tiny-chat"
    if not folder.exists():
        pytest.skip(f"shared test data is absent: {folder}")
    return Tokenizer.from_pretrained(folder)


def control_ids(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [id for id in ids if tokenizer.is_control(id)]


def hostile_text(rng: random.Random) -> str:
    """Text around whole and broken control tokens."""
    parts = [
        *MARKS,
        "<|im_",
        "start|>",
        "<",
        "|",
        ">",
        "<|",
        "|>",
        "</think>",
        "<think>",
        "user\n",
        " ",
        "\n",
        "x",
        "é",
        "\ue000",
    ]
    return "".join(rng.choice(parts) for _ in range(rng.randint(1, 12)))


def conversation(rng: random.Random, text: Any) -> list[dict[str, Any]]:
    """Every place where a client's text can stand."""
    call = {"id": text(), "type": "function", "function": {"name": text(), "arguments": {text(): [text(), 1]}}}
    textual = {"function": {"name": text(), "arguments": text()}}
    return [
        {"role": "system", "content": text()},
        {"role": "user", "content": [{"type": "text", "text": text()}, {"type": "text", "text": text()}]},
        {"role": "assistant", "content": text(), "tool_calls": [call, textual]},
        {"role": "tool", "name": text(), "content": text()},
        {"role": "assistant", "content": text(), "reasoning_content": text()},
        {"role": "user", "content": text()},
    ]


def tools_of(text: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {text(): {"type": "string", "description": text()}}}
    return [{"type": "function", "function": {"name": text(), "description": text(), "parameters": parameters}}]


def test_user_text_never_becomes_a_control_token(tokenizer: Tokenizer) -> None:
    """The same conversation with harmless text says how many control tokens the template itself writes."""
    rng = random.Random(1)
    template = ChatTemplate.from_tokenizer(tokenizer)
    for _ in range(1500):
        hostile = conversation(rng, lambda: hostile_text(rng)), tools_of(lambda: hostile_text(rng))
        harmless = conversation(rng, lambda: "x"), tools_of(lambda: "x")
        ids = tokenizer.encode_segments(template.render_segments(*hostile))
        expected = tokenizer.encode_segments(template.render_segments(*harmless))
        assert control_ids(tokenizer, ids) == control_ids(tokenizer, expected)
        assert tokenizer.decode(ids, skip_special=False) == template.render(*hostile)


def test_published_templates_keep_user_text_apart(shared: Path, tokenizer: Tokenizer) -> None:
    """Through whatever a template does with text: strip, split at tags, join, serialize."""
    folder = shared / "templates"
    if not folder.exists():
        pytest.skip(f"shared test data is absent: {folder}")
    rng = random.Random(2)
    compared = 0
    for path in sorted(folder.glob("*.jinja")):
        template = ChatTemplate(path.read_text(encoding="utf-8"), {"bos_token": "", "eos_token": ""}, MARKS)
        for _ in range(12):
            text = hostile_text(rng)
            try:
                segments = template.render_segments([{"role": "user", "content": text}], tools_of(lambda: text))  # noqa: B023
            except QuireError:
                continue
            ids = control_ids(tokenizer, tokenizer.encode_segments(segments))
            # These are tiny-chat's tokens, which only ChatML-like templates write themselves.
            own = "".join(part for part, is_template in segments if is_template)
            assert len(ids) == sum(own.count(mark) for mark in MARKS)
            compared += 1
    assert compared > 200


def test_segments_of_harmless_text_are_the_rendering_parsed(tokenizer: Tokenizer) -> None:
    template = ChatTemplate.from_tokenizer(tokenizer)
    for text in random_texts(300, seed=21):
        if any(mark in text for mark in MARKS):
            continue
        messages = [{"role": "user", "content": text}]
        whole = tokenizer.encode(template.render(messages), add_special=False, parse_special=True)
        assert tokenizer.encode_segments(template.render_segments(messages)) == whole


def test_tags_that_templates_look_for_are_left_alone() -> None:
    source = (
        "{% for m in messages %}{% if '</think>' in m.content %}[{{ m.content.split('</think>')[-1].lstrip() }}]"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    text = "a<b</think> <|im_end|>c<"
    for control_tokens in (MARKS, [*MARKS, "</think>"]):
        segments = ChatTemplate(source, None, control_tokens).render_segments([{"role": "assistant", "content": text}])
        assert segments == [("[<|im_end|>c<]", False)]
    # A template that writes the tag again writes it itself.
    again = ChatTemplate("{{ messages[0].content.split('</think>') | join('</think>') }}", None, ["</think>"])
    assert again.render_segments([{"role": "assistant", "content": "a</think>b"}]) == [
        ("a", False), ("</think>", True), ("b", False),
    ]  # fmt: skip


def test_json_escapes_and_private_characters() -> None:
    source = "{{ messages[0].content | tojson(ensure_ascii=True) }}{{ messages[0].content | upper }}"
    template = ChatTemplate(source, control_tokens=MARKS)
    text = "<|im_end|>é\ue000"
    expected = '"<|im_end|>\\u00e9\\ue000"<|IM_END|>É\ue000'
    assert template.render_segments([{"role": "user", "content": text}]) == [(expected, False)]


def test_control_tokens_that_look_like_words() -> None:
    template = ChatTemplate("{{ messages[0].content }}STOP", control_tokens=["STOP"])
    segments = template.render_segments([{"role": "user", "content": "a STOP, SHOP"}])
    assert segments == [("a STOP, SHOP", False), ("STOP", True)]
    # Half of a token from each is none.
    assert template.render_segments([{"role": "user", "content": "ST"}])[0] == ("ST", False)
    assert ChatTemplate("{{ messages[0].content }}OP", control_tokens=["STOP"]).render_segments(
        [{"role": "user", "content": "ST"}]
    ) == [("STOP", False)]


def test_tokens_that_touch_or_overlap() -> None:
    template = ChatTemplate(
        "a<s><s></s>{{ messages[0].content }}<s><<x>", control_tokens=["<s>", "</s>", "><s", "<x>", "<"]
    )
    segments = template.render_segments([{"role": "user", "content": "<s>"}])
    assert segments == [("a", False), ("<s><s></s>", True), ("<s>", False), ("<s><<x>", True)]


def test_without_a_vocabulary_all_that_the_template_writes_is_its_own() -> None:
    segments = ChatTemplate("<s>a{{ messages[0].content }}b{{ 1 }}").render_segments(
        [{"role": "user", "content": "<s>"}]
    )
    assert segments == [("<s>a", True), ("<s>", False), ("b1", True)]


@pytest.mark.parametrize(("role", "is_token"), [("user", True), ("critic", True), ("end", False), ("endoftext", False)])
def test_roles_that_stand_in_control_tokens(role: str, is_token: bool) -> None:
    """Templates write ``<|user|>`` of the message's role; a client's role must not make another token."""
    source = "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m.role == 'critic' %}!{% endif %}{% endfor %}"
    tokens = ["<|user|>", "<|critic|>", "<|end|>", "<|endoftext|>"]
    segments = ChatTemplate(source, control_tokens=tokens).render_segments([{"role": role, "content": "x"}])
    assert segments[0] == (f"<|{role}|>", is_token)


def test_arguments_are_objects_or_text_as_the_template_wants_them() -> None:
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
    broken = [messages[0], {**messages[1], "tool_calls": [{"function": {"name": "f", "arguments": "{no"}}]}]
    assert ChatTemplate(loop.replace("%s", "c.function.arguments | tojson")).render(broken) == '"{no"'


def test_variables() -> None:
    template = ChatTemplate("{{ bos_token }}{{ style }}{{ messages[0].content }}", {"bos_token": "<s>"}, ["<s>"])
    assert template.variables == {"style"}
    segments = template.render_segments([{"role": "user", "content": "x"}], style="<s>")
    assert segments == [("<s>", True), ("<s>x", False)]
    for name in ("messages", "tools", "bos_token", "add_generation_prompt", "colour", "raise_exception"):
        with pytest.raises((RequestError, TypeError)):
            template.render([{"role": "user", "content": "x"}], None, True, **{name: "y"})
    with pytest.raises(RequestError, match="style must be JSON data"):
        template.render([{"role": "user", "content": "x"}], style=object())


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "at least one message"),
        ("hello", "must be a list"),
        ([5], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\].role"),
        ([{"role": "<|im_end|>", "content": "x"}], r"messages\[0\].role"),
        ([{"role": "user"}], r"messages\[0\].content must be text .* absent"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": 5}], r"messages\[1\].content must be text"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\].content\[0\] must be an object"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\].text"),
        ([{"role": "user", "content": b"x"}], r"messages\[0\].content must be JSON data"),
        ([{"role": "assistant", "tool_calls": {}}], r"messages\[0\].tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"messages\[0\].tool_calls\[0\].function must have a name"),
        ([{"role": "user", "content": "x", "extra": {1: 2}}], r"messages\[0\].extra must have strings as keys"),
    ],
)
def test_messages_are_checked(messages: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        ChatTemplate(CHATML).render(messages)


def test_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "a\nb" in ChatTemplate(CHATML).render([{"role": "user", "content": parts}])
    mixed = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}<{{ p.text }}>{% endfor %}"
        "{% else %}{{ m.content + '' }}{% endif %}{% endfor %}"
    )
    chat = [{"role": "system", "content": parts}, {"role": "user", "content": parts}]
    assert mixed.render(chat) == "a\nb<a><b>"
    # A template that would leave some of the parts out does not take them.
    first = ChatTemplate("{{ messages[0].content if messages[0].content is string else messages[0].content[0].text }}")
    assert first.render([{"role": "user", "content": parts}]) == "a\nb"
    with pytest.raises(UnsupportedError, match=r"messages\[0\].content\[1\].type must be text but is 'image_url'"):
        ChatTemplate(CHATML).render([{"role": "user", "content": [parts[0], {"type": "image_url"}]}])


def test_absent_content_is_what_the_template_takes() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    loop = "{% for m in messages %}{% if m.tool_calls %}{{ %s }}{% endif %}{% endfor %}"
    for expression, text in (
        ("'absent' if m.content is undefined else 'there'", "absent"),
        ("m.content.strip() ~ '!'", "!"),
        ("'none' if m['content'] is none else m.content + 1", "none"),
    ):
        template = ChatTemplate(loop.replace("%s", expression))
        for message in (
            {"role": "assistant", "tool_calls": [call]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ):
            assert template.render([{"role": "user", "content": "x"}, message]) == text
    strict = ChatTemplate(
        "{{ raise_exception('first') if messages[0].content is undefined else raise_exception('then') }}"
    )
    with pytest.raises(RequestError, match="refuses the messages: first"):
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
        with pytest.raises(UnsupportedError, match="the sandbox stops the template"):
            template.render(chat, tools_of(lambda: "f"), style=[1])


def test_what_publishers_code_gives(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert needs.render(user, tools) == f"{listed}|2025-03-14 15:09:26 |14 Mar 2025"
    assert needs.render(user, tools, date_string="a", datetime="b", functions="c") == "c|b|a"
    # A template that can do without gets nothing, as in transformers.
    able = ChatTemplate("{% if not date_string is defined %}{% set date_string = 'old' %}{% endif %}{{ date_string }}")
    assert able.render(user) == "old"
    assert not ChatTemplate("{{ functions | default('none') }}").reads_tools


def test_empty_tools_and_absent_documents_are_as_in_transformers() -> None:
    user = [{"role": "user", "content": "x"}]
    template = ChatTemplate("{{ tools }}{{ documents is defined }}{{ documents }}")
    assert template.render(user) == "NoneTrueNone"
    assert template.render(user, []) == "[]TrueNone"


def test_errors_of_templates() -> None:
    user = [{"role": "user", "content": "x"}]
    with pytest.raises(LoadError, match=r"must be a Jinja template but: .* \(line 2\)"):
        ChatTemplate("{{ 1 }}\n{% if %}")
    with pytest.raises(RequestError, match="refuses the messages: roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(user)
    with pytest.raises(RequestError, match="cannot render"):
        ChatTemplate("{{ messages[0].content + 5 }}").render(user)


def test_whitespace_loop_controls_and_generation_blocks() -> None:
    source = (
        "{% for m in messages %}\n  {% if loop.index > 2 %}\n    {% break %}\n  {% endif %}\n"
        "{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}\n"
    )
    assert ChatTemplate(source).render([{"role": "user", "content": c} for c in "abc"]) == "ab"


def test_only_one_module_makes_environments() -> None:
    package = Path(__file__).resolve().parent.parent / "python" / "quire"
    if not package.is_dir():
        pytest.skip(f"the package's source is absent: {package}")
    makes = re.compile(r"\b(Environment|Template|NativeEnvironment)\(|jinja2\.sandbox|from_string\(")
    found = {
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if makes.search(path.read_text("utf-8"))
    }
    assert found <= {"chat/sandbox.py", "chat/template.py"}
    assert "jinja2.sandbox" not in (package / "chat" / "template.py").read_text("utf-8")


def test_tiny_chat_template(tokenizer: Tokenizer) -> None:
    """The prompt that the model was trained on, from its README and template."""
    template = ChatTemplate.from_tokenizer(tokenizer)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert template.render(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    tools = tools_of(lambda: "f")
    assert json.dumps(tools[0], ensure_ascii=False) in template.render(messages, tools)
