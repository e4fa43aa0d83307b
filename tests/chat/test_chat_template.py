"""Chat templates: accepted messages and variables, control tokens in prompts, arguments of tools."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from quire.chat import ChatTemplate
from quire.errors import LoadError, QuireError, RequestError
from quire.tokenizer import Tokenizer
from token_texts import random_texts

pytestmark = pytest.mark.python_only

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def control_ids(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [id for id in ids if tokenizer.is_control(id)]


def hostile_text(rng: random.Random) -> str:
    """Return text around whole and broken control tokens."""
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
    """Return a conversation with the text in every place that a client controls."""
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
    """A conversation with harmless text shows how many control tokens the template itself writes."""
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
    """Templates strip, split at tags, join and serialize text."""
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
            # The tokens of tiny-chat, which only templates like ChatML write themselves.
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
    # The tag is the template's if the template writes it again.
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
    # Two halves from different authors are not a token.
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
    """Templates write ``<|user|>`` from the message's role.  A client's role cannot make another token."""
    source = "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m.role == 'critic' %}!{% endif %}{% endfor %}"
    tokens = ["<|user|>", "<|critic|>", "<|end|>", "<|endoftext|>"]
    segments = ChatTemplate(source, control_tokens=tokens).render_segments([{"role": role, "content": "x"}])
    assert segments[0] == (f"<|{role}|>", is_token)


def test_variables() -> None:
    template = ChatTemplate("{{ bos_token }}{{ style }}{{ messages[0].content }}", {"bos_token": "<s>"}, ["<s>"])
    assert template.variables == {"style"}
    segments = template.render_segments([{"role": "user", "content": "x"}], style="<s>")
    assert segments == [("<s>", True), ("<s>x", False)]
    for name in ("messages", "tools", "bos_token", "add_generation_prompt", "colour", "raise_exception"):
        with pytest.raises((RequestError, TypeError)):
            template.render([{"role": "user", "content": "x"}], None, True, **{name: "y"})
    with pytest.raises(RequestError, match="style"):
        template.render([{"role": "user", "content": "x"}], style=object())


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "messages"),
        ("hello", "messages .*str|messages: .*str"),
        ([5], r"messages\[0\]: .*int"),
        ([{"content": "x"}], r"messages\[0\].role"),
        ([{"role": "<|im_end|>", "content": "x"}], r"messages\[0\].role"),
        ([{"role": "user"}], r"messages\[0\].content.*absent"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": 5}], r"messages\[1\].content: .*int"),
        ([{"role": "user", "content": [5]}], r"messages\[0\].content\[0\]"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\].text"),
        ([{"role": "user", "content": b"x"}], r"messages\[0\].content .*bytes"),
        ([{"role": "assistant", "tool_calls": {}}], r"messages\[0\].tool_calls: .*dict"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"messages\[0\].tool_calls\[0\].function"),
        ([{"role": "user", "content": "x", "extra": {1: 2}}], r"messages\[0\].extra .*int"),
    ],
)
def test_messages_are_checked(messages: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        ChatTemplate(CHATML).render(messages)


def test_errors_of_templates() -> None:
    user = [{"role": "user", "content": "x"}]
    with pytest.raises(LoadError, match=r"\(line 2\)"):
        ChatTemplate("{{ 1 }}\n{% if %}")
    with pytest.raises(RequestError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(user)
    with pytest.raises(RequestError, match=r"\[chat\]"):
        ChatTemplate("{{ messages[0].content + 5 }}").render(user)


def test_whitespace_loop_controls_and_generation_blocks() -> None:
    source = (
        "{% for m in messages %}\n  {% if loop.index > 2 %}\n    {% break %}\n  {% endif %}\n"
        "{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}\n"
    )
    template = ChatTemplate(source, keeps_turns=True)
    assert template.render([{"role": "user", "content": c} for c in "abc"]) == "ab"


def test_only_one_module_makes_environments() -> None:
    package = Path(__file__).resolve().parents[2] / "python" / "quire"
    if not package.is_dir():
        pytest.skip(f"the package's source is absent: {package}")
    makes = re.compile(r"\b(Environment|Template|NativeEnvironment)\(|jinja2\.sandbox|\.from_string\(")
    found = {
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if makes.search(path.read_text("utf-8"))
    }
    assert found <= {"chat/sandbox.py", "chat/template.py"}
    assert "jinja2.sandbox" not in (package / "chat" / "template.py").read_text("utf-8")


def test_tiny_chat_template(tokenizer: Tokenizer) -> None:
    """Oracle: the prompt that the model was trained on, from its README and template."""
    template = ChatTemplate.from_tokenizer(tokenizer)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert template.render(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    tools = tools_of(lambda: "f")
    assert json.dumps(tools[0], ensure_ascii=False) in template.render(messages, tools)
