"""Histories in the form in which clients send them back, in every API.  Without a model."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engine import FakeEngine
from one_call import post
from quire.server.worker.protocol import Chat

pytestmark = pytest.mark.python_only

USER = {"role": "user", "content": "Hi"}


def asked(path: str, body: dict[str, Any]) -> tuple[Chat, str]:
    """Return the engine's work for a body, and the names of ignored fields."""
    engine = FakeEngine()
    response = post(path, {"model": "fake", "max_tokens": 4, **body}, engine=engine)
    assert response.status_code == 200, response.text
    (work,) = engine.asked
    assert isinstance(work, Chat)
    return work, response.headers.get("x-quire-ignored", "")


def line(cch: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.37.{cch}; cc_entrypoint=cli; cch={cch};"


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("/v1/messages", lambda cch: {"system": [text(line(cch)), text("Code."), text("Well.")]}),
        ("/v1/messages", lambda cch: {"system": [text(line(cch)), text("Code.")]}),
        ("/v1/messages", lambda cch: {"system": f"{line(cch)}\nCode."}),
        ("/v1/messages", lambda cch: {"system": [text(f"{line(cch)}\n\nCode.")]}),
        ("/v1/messages", lambda cch: {"system": line(cch)}),
        ("/v1/chat/completions", lambda cch: {"messages": [{"role": "system", "content": f"{line(cch)}\nCode."}, USER]}),
        ("/v1/chat/completions", lambda cch: {"messages": [{"role": "system", "content": line(cch)}, {"role": "system", "content": "Code."}, USER]}),
    ],
)  # fmt: skip
def test_the_billing_line_is_removed(path: str, make: Any) -> None:
    works = [asked(path, {"messages": [USER], **make(cch)}) for cch in ("fa690", "1c8b4")]
    assert works[0][0].messages == works[1][0].messages
    assert "billing" not in str(works[0][0].messages)
    assert works[0][0].messages[-1]["content"] == "Hi"
    assert ("Code." in str(works[0][0].messages)) is ("Code." in str(make("")))
    assert "x-anthropic-billing-header" in works[0][1]


def test_text_about_the_billing_line_stays() -> None:
    said = f"What is {line('1')}?"
    work, ignored = asked("/v1/messages", {"messages": [{"role": "user", "content": line("1")}], "system": said})
    assert [message["content"] for message in work.messages] == [said, line("1")]
    assert not ignored


def test_extra_fields_of_answers_may_be_sent_back() -> None:
    answer = {"role": "assistant", "content": None, "refusal": "No.", "annotations": [{"type": "url_citation"}]}
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}, "tool_calls": []}
    work, ignored = asked("/v1/chat/completions", {"messages": [USER, answer, USER, call, USER]})
    assert work.messages[1]["refusal"] == "No."
    assert work.messages[3]["function_call"] == {"name": "f", "arguments": ""}
    assert ignored == "'messages[1].annotations'"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_prompt_may_end_with_an_unfinished_message(wanted: bool) -> None:
    work, _ = asked("/v1/chat/completions", {"messages": [USER], "add_generation_prompt": wanted})
    assert work.options.get("add_generation_prompt", True) is wanted
