"""Three kinds of fields: constraints on the answer are honoured or refused, hints are taken and named, unknown names, too.

Oracles: the names of the engines' documentation; transformers for a message that goes on.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from one_call import post
from quire.engine import LLM
from quire.server.worker.protocol import Chat, Generate
from quire.structured import StructuredOutputsParams

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
# A field, and the form that it means.
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
def test_constraints_are_honoured_in_every_dialect(
    path: str, fields: dict[str, Any], form: StructuredOutputsParams | None
) -> None:
    engine = FakeEngine()
    response = post(path, {**BODIES[path], **fields}, engine=engine)
    assert response.status_code == 200, response.text
    given = work_of(path, fields, engine).params.get("structured_outputs")
    assert (None if given is None else StructuredOutputsParams(**given)) == form
    assert "x-quire-ignored" not in response.headers


@pytest.mark.parametrize("path", BODIES)
def test_constraints_that_do_not_hold_are_refused_by_name(path: str) -> None:
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


# Fields that change the answer and are not there: never dropped.
REFUSED: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"modalities": ["audio"]}, {"audio": {}}, {"web_search_options": {}}, {"documents": [{}]}, {"lora": [{"id": 0, "scale": 1}]},
        {"use_beam_search": True}, {"skip_special_tokens": False}, {"chat_template": "x"}, {"post_sampling_probs": True},
        {"min_keep": 5}, {"add_generation_prompt": False}, {"bad_words": ["x"]}, {"functions": [{}]},
        {"continue_final_message": True, "add_generation_prompt": True}, {"truncate_prompt_tokens": 5},
    ],
    "/v1/completions": [{"use_beam_search": True}, {"lora": [{"id": 0, "scale": 1}]}, {"truncate_prompt_tokens": 5}],
    "/v1/responses": [{"background": True}, {"conversation": "x"}, {"prompt": {"id": "x"}}, {"top_logprobs": 3}],
    "/v1/messages": [{"mcp_servers": [{}]}, {"container": "x"}],
    "/api/generate": [{"template": "x"}, {"context": [1]}, {"images": ["x"]}, {"options": {"vocab_only": True}}],
    "/completion": [{"adaptive_target": 0.5}, {"lora": [{"id": 0, "scale": 1}]}, {"n_indent": 4}, {"grammar_lazy": True}],
}  # fmt: skip


@pytest.mark.parametrize("path", REFUSED)
def test_what_would_change_the_answer_is_never_dropped(path: str) -> None:
    for fields in REFUSED[path]:
        engine = FakeEngine()
        response = post(path, {**BODIES[path], **fields}, engine=engine)
        assert response.status_code == 400, fields
        assert any(name in response.text for name in [*fields, "vocab_only"])
        assert engine.asked == []


# Hints that cannot be followed, by the name that the header says.
HINTS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "/v1/chat/completions": [
        ({"store": True}, "store"), ({"verbosity": "low"}, "verbosity"), ({"num_thread": 4}, "num_thread"),
        ({"num_gpu": 1}, "num_gpu"), ({"id_slot": 3}, "id_slot"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"), ({"unheard_of": 1}, "unheard_of"),
        ({"tool_choice": "required"}, "tool_choice"), ({"keep_alive": "5m"}, "keep_alive"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
    ],
    "/v1/responses": [
        ({"include": ["x"]}, "include"), ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"), ({"truncation": "auto"}, "truncation"),
        ({"client_metadata": {}}, "client_metadata"),
    ],
    "/v1/messages": [
        ({"context_management": {}}, "context_management"), ({"metadata": {"team": "a"}}, "metadata.team"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
    "/api/chat": [
        ({"truncate": True}, "truncate"), ({"options": {"num_gpu": 99}}, "num_gpu"), ({"shift": True}, "shift"),
        ({"options": {"num_thread": 8, "use_mmap": True}}, "use_mmap"),
    ],
    "/completion": [({"id_slot": 1}, "id_slot"), ({"n_keep": 5}, "n_keep"), ({"n_cache_reuse": 256}, "n_cache_reuse")],
}  # fmt: skip


@pytest.mark.parametrize("path", HINTS)
def test_hints_are_taken_and_named(path: str) -> None:
    for fields, name in HINTS[path]:
        engine = FakeEngine()
        response = post(path, {**BODIES[path], **fields}, engine=engine)
        assert response.status_code == 200, (fields, response.text)
        assert name in response.headers["x-quire-ignored"], fields
        assert len(engine.asked) >= 1


@pytest.mark.parametrize("path", BODIES)
def test_unknown_names_are_named_or_refused(path: str) -> None:
    body = {**BODIES[path], "temprature": 1}
    response = post(path, body)
    assert (response.status_code, response.headers["x-quire-ignored"]) == (200, "'temprature'")
    response = post(path, body, options={"strict": True})
    assert response.status_code == 400
    assert "temprature" in response.text


# With the package's model, whose template reads no variables and which does not think.


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "high"}, "reasoning_effort"),
        ("/v1/chat/completions", {"reasoning_effort": "none"}, "reasoning_effort"),
        ("/v1/chat/completions", {"enable_thinking": False}, "enable_thinking"),
        ("/v1/chat/completions", {"think": True}, "think"),
        ("/v1/chat/completions", {"thinking": {"type": "disabled"}}, "thinking"),
        ("/v1/chat/completions", {"chat_template_kwargs": {"depth": 1}}, "chat_template_kwargs.depth"),
        ("/v1/chat/completions", {"reasoning_budget": 5}, "reasoning_budget"),
        ("/v1/responses", {"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking.budget_tokens"),
        ("/api/chat", {"think": True}, "think"),
        ("/api/generate", {"think": "high"}, "think"),
        ("/apply-template", {"enable_thinking": True}, "enable_thinking"),
    ],
)
def test_what_a_model_cannot_follow_is_named(
    client: httpx.Client, path: str, fields: dict[str, Any], name: str
) -> None:
    base = {"messages": ASKED} if path == "/apply-template" else BODIES[path]
    short = {"options": {"num_predict": 2}} if "/api/" in path else {}
    response = client.post(path, json={**base, **short, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["x-quire-ignored"] == repr(name)


def test_the_last_message_goes_on(client: httpx.Client, llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = llm.chat(messages, max_tokens=32, temperature=0.0)
    begun = whole.text[:12]
    ids = llm.tokenizer.encode(begun, add_special=False)
    n_same = len(ids) if whole.token_ids[: len(ids)] == ids else 0
    said = [*messages, {"role": "assistant", "content": begun}]
    rest = llm.chat(said, max_tokens=32, temperature=0.0, continue_final_message=True)
    assert rest.prompt_token_ids == [*whole.prompt_token_ids, *ids]
    if n_same:
        assert begun + rest.text == whole.text
    body = {"messages": said, "temperature": 0, "max_tokens": 32, "continue_final_message": True}
    answer = client.post("/v1/chat/completions", json={**body, "add_generation_prompt": False}).json()
    assert answer["choices"][0]["message"]["content"] == rest.text
    for wrong in (messages, [*messages, {"role": "assistant", "content": ""}]):
        response = client.post("/v1/chat/completions", json={**body, "messages": wrong})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


def test_a_message_goes_on_as_in_transformers(llm: LLM) -> None:
    """Its text may stand in the template's own text as well."""
    pytest.importorskip("transformers", reason="needs transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    for begun in ("assistant", "i", "The <|im_end|> of", "Paris"):
        said = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": begun}]
        rendered, _ = render_jinja_template(
            conversations=[said], chat_template=llm.tokenizer.chat_template, continue_final_message=True
        )
        result = llm.chat(said, max_tokens=1, continue_final_message=True)
        assert llm.tokenizer.decode(result.prompt_token_ids, skip_special=False) == rendered[0]
