"""Constraints on the answer work or are rejected in every dialect; unknown names are reported or rejected.

The effects of single fields are tested in tests/compatibility.

Oracles: the engines' documented names; transformers for continuing a message.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import FakeEngine
from one_call import post
from quire.engine import LLM
from quire.params.structured import StructuredOutputsParams
from quire.server.worker.protocol import Chat, Generate

ASKED = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GRAMMAR = 'root ::= "a"'
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASKED},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"model": "fake", "messages": ASKED, "max_tokens": 9},
    "/api/chat": {"model": "fake", "messages": ASKED, "stream": False},
    "/api/generate": {"model": "fake", "prompt": "Hi", "stream": False},
    "/v1/generate": {"prompt": "Hi", "stream": False},
    "/completion": {"prompt": "Hi"},
}
# A field, and the form that it sets.
CONSTRAINTS: list[tuple[dict[str, Any], StructuredOutputsParams]] = [
    ({"guided_json": SCHEMA}, StructuredOutputsParams(json=SCHEMA)),
    ({"guided_json": json.dumps(SCHEMA)}, StructuredOutputsParams(json=SCHEMA)),
    ({"guided_json_object": True}, StructuredOutputsParams(json_object=True)),
    ({"guided_regex": "a+"}, StructuredOutputsParams(regex="a+")),
    ({"regex": "a+"}, StructuredOutputsParams(regex="a+")),
    ({"guided_choice": ["a", "b"]}, StructuredOutputsParams(choice=["a", "b"])),
    ({"guided_grammar": GRAMMAR}, StructuredOutputsParams(grammar=GRAMMAR)),
    ({"grammar": GRAMMAR}, StructuredOutputsParams(grammar=GRAMMAR)),
    ({"ebnf": GRAMMAR}, StructuredOutputsParams(grammar=GRAMMAR)),
    ({"json_schema": SCHEMA}, StructuredOutputsParams(json=SCHEMA)),
    ({"structured_outputs": {"regex": "a"}}, StructuredOutputsParams(regex="a")),
    ({"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
    ({"response_format": SCHEMA}, StructuredOutputsParams(json=SCHEMA)),
    ({"response_format": {"type": "text"}, "grammar": "", "guided_json": None}, None),  # type: ignore[list-item]
]


def work_of(path: str, body: dict[str, Any], engine: FakeEngine) -> Chat | Generate:
    (work,) = [one for one in engine.asked if isinstance(one, Chat | Generate)]
    return work


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("fields", "form"), CONSTRAINTS, ids=lambda value: str(value)[:30])
def test_constraints_work_in_every_dialect(
    path: str, fields: dict[str, Any], form: StructuredOutputsParams | None
) -> None:
    engine = FakeEngine()
    response = post(path, {**BODIES[path], **fields}, engine=engine)
    assert response.status_code == 200, response.text
    given = work_of(path, fields, engine).params.get("structured_outputs")
    assert (None if given is None else StructuredOutputsParams(**given)) == form
    assert "x-quire-ignored" not in response.headers


@pytest.mark.parametrize("path", BODIES)
def test_invalid_constraints_are_named(path: str) -> None:
    for fields, name in (
        ({"guided_json": {"type": 5}, "regex": "a"}, "guided_json"),
        ({"guided_regex": "a", "grammar": GRAMMAR}, "g"),
        ({"guided_choice": []}, "choice"),
        ({"guided_json": "{"}, "json"),
        ({"guided_regex": "a" * 40_000}, "regex"),
    ):
        engine = FakeEngine()
        response = post(path, {**BODIES[path], **fields}, engine=engine)
        assert response.status_code == 400
        assert name in response.text
        assert engine.asked == []


@pytest.mark.parametrize("path", BODIES)
def test_unknown_names_are_reported_or_rejected(path: str) -> None:
    body = {**BODIES[path], "temprature": 1}
    response = post(path, body)
    assert (response.status_code, response.headers["x-quire-ignored"]) == (200, "'temprature'")
    response = post(path, body, options={"strict": True})
    assert response.status_code == 400
    assert "temprature" in response.text


def test_continuing_a_message_matches_transformers(llm: LLM) -> None:
    """Its text may also occur in the template's own text."""
    pytest.importorskip("transformers", reason="needs transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    for begun in ("assistant", "i", "The <|im_end|> of", "Paris"):
        said = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": begun}]
        rendered, _ = render_jinja_template(
            conversations=[said], chat_template=llm.tokenizer.chat_template, continue_final_message=True
        )
        result = llm.chat(said, max_tokens=1, continue_final_message=True)
        assert llm.tokenizer.decode(result.prompt_token_ids, skip_special=False) == rendered[0]
