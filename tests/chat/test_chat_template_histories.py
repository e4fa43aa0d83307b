"""Every published template renders the histories that clients send back, without losing text."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from awkward_histories import HISTORIES, TOOLS, USER, call, calls, demanded, result, says, tool
from quire.chat import ChatTemplate
from quire.chat.messages import checked_messages
from quire.chat.outlines import outline_of
from quire.errors import CapacityError, RequestError
from small_templates import SMALL

pytestmark = pytest.mark.python_only

SPECIAL_TEXTS = {"bos_token": "<s>", "eos_token": "</s>"}
SHARED = Path(os.environ.get("QUIRE_SHARED", Path(__file__).resolve().parents[3] / "shared"))
SOURCES = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted((SHARED / "templates").glob("*.jinja"))
} | SMALL
LOOKUP = tool({"name": "lookup", "description": "Looks.", "parameters": {"type": "object", "properties": {}}})


@pytest.fixture(scope="module", params=SOURCES)
def template(request: pytest.FixtureRequest) -> ChatTemplate:
    return ChatTemplate(SOURCES[request.param], SPECIAL_TEXTS)


@pytest.mark.parametrize("tools", [None, LOOKUP], ids=["no tools", "tools"])
def test_histories_are_rendered_and_nothing_is_lost(template: ChatTemplate, tools: list[dict[str, object]]) -> None:
    failed = []
    for name, history in HISTORIES.items():
        prompt = template.render(history, tools)
        counts = {text: prompt.count(text) for text in demanded(history)}
        failed += [(name, text, n) for text, n in counts.items() if n != 1]
        failed += [
            (name, call["function"]["name"], 0)
            for message in history
            for call in message.get("tool_calls", [])
            if call["function"]["name"] not in prompt
        ]
    assert not failed


def test_a_probe_out_of_time_is_tried_again() -> None:
    """A busy machine may stop a probe, and this changes one conversation at most."""
    template = ChatTemplate(SOURCES["mistral-v3"], SPECIAL_TEXTS)
    history = [says("assistant", "assistantone"), USER]
    expected = ChatTemplate(SOURCES["mistral-v3"], SPECIAL_TEXTS).render(history)

    def late(*args: object) -> str:
        raise CapacityError("[chat template] rendering exceeds its time limit")

    fitting = template._fitting
    assert fitting is not None
    probe = fitting._probe
    fitting._probe = late
    with pytest.raises(RequestError):
        template.render(history)
    fitting._probe = probe
    assert template.render(history) == expected


def test_incomplete_tool_definitions_are_rendered(template: ChatTemplate) -> None:
    lost = []
    for name, tools in TOOLS.items():
        prompt = template.render([USER], tools)
        lost += [name] if template.reads_tools and "lookup" not in prompt else []
        assert prompt.count("userone") == 1
    assert not lost


def test_a_conversation_that_a_template_accepts_is_unchanged() -> None:
    """Nothing is moved, and the client's null stays null."""
    source = "{% for m in messages %}[{{ m.role }}:{{ 'null' if m.content is none else m.content }}]{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor %}{% endfor %}"
    history = HISTORIES["two calls"]
    rendering = ChatTemplate(source).rendering(history)
    assert "".join(text for text, _ in rendering.segments) == (
        "[system:systemone][user:userone][assistant:null]<callone><calltwo>[tool:resultone][tool:resulttwo]"
    )
    assert rendering.moved == ()


def test_a_long_conversation_without_a_pattern_is_fitted_as_a_short_one() -> None:
    """A template that refuses later system messages is detected in any conversation, at a bounded cost."""
    rng = random.Random(5)
    history = [says("system", "systemone")]
    for i in range(600):
        history.append(says("user", f"user{i:03d}"))
        for j in range(rng.randint(0, 2)):
            ids = [f"call{i:03d}{j}{k}" for k in range(rng.randint(1, 2))]
            history.append(calls(*(call(id=id) for id in ids), content=rng.choice([None, "", "beside"])))
            history += [result(f"result{id}", id) for id in ids]
        history.append(says("assistant", f"answer{i:03d}"))
        if i == 300:
            history.append(says("system", "systemtwo"))
    assert len(outline_of(checked_messages(history))) < 400
    prompt = ChatTemplate(SMALL["qwen3.5"], SPECIAL_TEXTS).render(history)
    assert [text for text in demanded(history) if prompt.count(text) != 1] == []
