"""The server with the package's model, over loopback.

Oracles: the same model in this process without the server; the formats of OpenAI's API.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from quire.engine import LLM
from quire.params.sampling import SamplingParams
from served import Served, served, wait_until
from weather_tool import ASKED, WEATHER

STORY = "Once upon a time"
LONG_STORY = STORY + " there was a fox" * 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a server of the package's model, with a cache on disk that another process has filled."""
    folder = tmp_path_factory.mktemp("server")
    with LLM(threads=1, n_ctx=256, kv_dtype="f32", cache_disk=folder / "cache") as model:
        model.generate(LONG_STORY, max_tokens=1)
    with served(folder, ["--alias", "gpt-x", "--cache-disk", str(folder / "cache"), "-cram", "1"]) as running:
        yield running


def events_of(response: httpx.Response) -> list[Any]:
    """Parse the events of a stream, which must end with [DONE]."""
    assert response.status_code == 200, response.text
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    return [json.loads(item) for item in data[:-1]]


def free_blocks(client: httpx.Client) -> tuple[int, int]:
    cache = client.get("/v1/status").json()["models"][0]["cache"]
    return cache["free"], cache["blocks"]


def test_a_chat_matches_the_engine(client: httpx.Client, llm: LLM) -> None:
    body = {"messages": ASKED, "temperature": 0, "max_tokens": 48}
    answer = client.post("/v1/chat/completions", json=body).json()
    expected = llm.chat(ASKED, SamplingParams(temperature=0.0, max_tokens=48))
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.message.content}
    assert choice["finish_reason"] == expected.finish_reason
    assert answer["usage"]["prompt_tokens"] == expected.n_prompt_tokens
    assert answer["usage"]["completion_tokens"] == len(expected.token_ids)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny-chat"


def test_a_stream_adds_up_to_the_whole_answer(client: httpx.Client) -> None:
    body = {"messages": ASKED, "tools": [WEATHER], "max_tokens": 64, "seed": 7, "n": 2, "temperature": 1.0}
    whole = client.post("/v1/chat/completions", json=body).json()
    events = events_of(
        client.post("/v1/chat/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}})
    )
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        mine = [c for e in events[:-1] for c in e["choices"] if c["index"] == choice["index"]]
        assert mine[0]["delta"]["role"] == "assistant"
        assert "".join(c["delta"].get("content") or "" for c in mine) == (choice["message"]["content"] or "")
        calls = [call for c in mine for call in c["delta"].get("tool_calls", [])]
        written = [call["function"] for call in choice["message"].get("tool_calls", [])]
        assert [call["function"] for call in calls] == written
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]


def test_a_tool_is_called(client: httpx.Client) -> None:
    body = {"messages": ASKED, "tools": [WEATHER], "temperature": 0, "max_completion_tokens": 64}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["type"] == "function"
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_parallel_tool_calls_can_be_turned_off(client: httpx.Client) -> None:
    asked = [{"role": "user", "content": "What is the weather in Paris and in Rome?"}]
    body = {"messages": asked, "tools": [WEATHER], "max_tokens": 64, "parallel_tool_calls": False, "n": 4, "seed": 1}
    for choice in ("auto", "required"):
        answer = client.post("/v1/chat/completions", json={**body, "tool_choice": choice}).json()
        calls = [len(c["message"].get("tool_calls", [])) for c in answer["choices"]]
        assert set(calls) <= ({1} if choice == "required" else {0, 1})


def test_an_answer_has_the_requested_form(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    forms: list[dict[str, object]] = [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        {"type": "json_object", "schema": schema},  # llama.cpp's format, which instructor sends up to version 1.7
    ]
    for form in forms:
        asked = {"messages": ASKED, "response_format": form, "max_tokens": 64}
        answer = client.post("/v1/chat/completions", json=asked).json()
        assert json.loads(answer["choices"][0]["message"]["content"])["a"] in (1, 2)
    body = {"messages": ASKED, "structured_outputs": {"choice": ["red", "blue"]}, "max_tokens": 64}
    assert client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] in ("red", "blue")


def test_logprobs_match_the_engine(client: httpx.Client, llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=3)
    expected = llm.chat(ASKED, params).logprobs
    assert expected is not None
    body = {"messages": ASKED, "temperature": 0, "max_tokens": 8, "logprobs": True, "top_logprobs": 3}
    shown = client.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    assert [token["logprob"] for token in shown] == pytest.approx([token.logprob for token in expected], abs=1e-4)
    for token, reference in zip(shown, expected, strict=True):
        assert bytes(token["bytes"]) == llm.tokenizer.token_bytes(reference.token_id)
        assert [top["logprob"] for top in token["top_logprobs"]] == pytest.approx(
            [p for _, p in reference.top], abs=1e-4
        )


def test_completions_of_several_prompts(client: httpx.Client, llm: LLM) -> None:
    ids = llm.tokenizer.encode("The capital of France")
    params = SamplingParams(temperature=0.0, max_tokens=12)
    expected = [result.text for result in llm.generate([STORY, ids], params)]
    for prompt, texts in (([STORY], expected[:1]), (STORY, expected[:1]), (ids, expected[1:]), ([ids], expected[1:])):
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 12}
        answer = client.post("/v1/completions", json=body).json()
        assert [choice["text"] for choice in answer["choices"]] == texts
    body = {"prompt": [STORY, "The capital of France"], "temperature": 0, "max_tokens": 12, "stream": True}
    events = events_of(client.post("/v1/completions", json=body))
    for i, text in enumerate(expected):
        assert "".join(c["text"] for e in events for c in e["choices"] if c["index"] == i) == text


def test_echo_with_logprobs_of_the_prompt(client: httpx.Client, llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=1, prompt_logprobs=1)
    (expected,) = llm.generate(STORY, params)
    assert expected.prompt_logprobs is not None
    assert expected.logprobs is not None
    body = {"prompt": STORY, "temperature": 0, "max_tokens": 4, "echo": True, "logprobs": 1}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"] == STORY + expected.text
    reference = [token.logprob if token else None for token in [*expected.prompt_logprobs, *expected.logprobs]]
    table = choice["logprobs"]
    assert table["token_logprobs"][0] is None
    assert table["token_logprobs"][1:] == pytest.approx(reference[1:], abs=1e-3)
    assert "".join(table["tokens"]) == choice["text"]
    for offset, token in zip(table["text_offset"], table["tokens"], strict=True):
        assert choice["text"][offset:].startswith(token)
    events = events_of(client.post("/v1/completions", json={**body, "stream": True}))
    assert "".join(c["text"] for e in events for c in e["choices"]) == choice["text"]
    shown = [t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["tokens"]]
    assert shown == table["tokens"]


def test_top_logprobs_include_the_drawn_token(client: httpx.Client) -> None:
    """Even if it is not among the most likely tokens, as in OpenAI and vLLM."""
    body = {"prompt": STORY, "max_tokens": 24, "temperature": 2, "seed": 1, "logprobs": 1, "echo": True}
    table = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    rows = list(zip(table["tokens"], table["token_logprobs"], table["top_logprobs"], strict=True))[1:]
    assert {len(top) for *_, top in rows} == {1, 2}
    assert all(top[token] == pytest.approx(logprob) for token, logprob, top in rows)


def test_log_probabilities_of_a_chats_prompt(client: httpx.Client, llm: LLM) -> None:
    """Oracle: the engine's own; the format is vLLM's."""
    expected = llm.chat(ASKED, temperature=0, max_tokens=1, prompt_logprobs=2).prompt_logprobs
    assert expected is not None
    body = {"messages": ASKED, "temperature": 0, "max_tokens": 1, "prompt_logprobs": 2}
    first, *others = client.post("/v1/chat/completions", json=body).json()["prompt_logprobs"]
    assert (first, expected[0]) == (None, None)
    for shown, token in zip(others, expected[1:], strict=True):
        assert token is not None
        assert next(iter(shown)) == str(token.token_id)
        ranks = {str(id_): rank for rank, (id_, _) in enumerate(token.top, 1)}
        assert {id_: one["rank"] for id_, one in shown.items()} == {str(token.token_id): None, **ranks}
        assert shown[str(token.token_id)]["logprob"] == pytest.approx(token.logprob, abs=1e-3)
    refused = client.post("/v1/chat/completions", json={**body, "stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")


def test_bad_words_of_a_request(client: httpx.Client, llm: LLM) -> None:
    (plain,) = llm.generate(STORY, temperature=0, max_tokens=8)
    words = plain.text.split()[:2]
    (expected,) = llm.generate(STORY, temperature=0, max_tokens=8, bad_words=words)
    body = {"prompt": STORY, "temperature": 0, "max_tokens": 8}
    one = client.post("/v1/completions", json={**body, "bad_words": words}).json()
    assert one["choices"][0]["text"] == expected.text != plain.text
    (expected,) = llm.generate(STORY, temperature=0, max_tokens=8, banned_strings=[" ".join(words)])
    body["banned_strings"] = [" ".join(words), ""]
    assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == expected.text != plain.text
    streamed = events_of(client.post("/v1/completions", json={**body, "stream": True}))
    assert "".join(event["choices"][0]["text"] for event in streamed) == expected.text
    assert client.post("/completion", json={**body, "repeat_penalty": 1}).json()["content"] == expected.text


@pytest.mark.parametrize(
    ("path", "fields", "n_top"),
    [
        ("/v1/completions", {"logprobs": True}, 1),
        ("/v1/completions", {"logprobs": False}, None),
        ("/v1/chat/completions", {"logprobs": 1, "top_logprobs": 2}, 2),
        ("/v1/chat/completions", {"logprobs": 0, "top_logprobs": 0}, None),
        ("/v1/chat/completions", {"top_logprobs": 0}, None),
    ],
)
def test_logprobs_may_be_a_number_or_a_boolean(
    client: httpx.Client, path: str, fields: dict[str, Any], n_top: int | None
) -> None:
    prompt = {"prompt": STORY} if path == "/v1/completions" else {"messages": ASKED}
    body = {**prompt, **fields, "max_tokens": 2, "temperature": 0}
    shown = client.post(path, json=body).json()["choices"][0]["logprobs"]
    if n_top is None:
        assert shown is None
    elif "prompt" in prompt:
        assert [len(top) for top in shown["top_logprobs"]] == [n_top] * 2
    else:
        assert [len(token["top_logprobs"]) for token in shown["content"]] == [n_top] * 2


@pytest.mark.parametrize("prompt", ["Warsaw is é😀.", "😀😀 日本 fox", "a👩‍👩‍👧b"])
def test_offsets_count_characters(client: httpx.Client, prompt: str) -> None:
    """Including tokens that are only parts of a character."""
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 0}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert "\ufffd" in "".join(tokens)
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(choice["text"])
    for offset, token in zip(offsets, tokens, strict=True):
        if "\ufffd" not in token:
            assert choice["text"].startswith(token, offset)
    events = events_of(client.post("/v1/completions", json={**body, "stream": True}))
    assert [t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["text_offset"]] == offsets


def test_max_tokens_zero_scores_the_prompt(client: httpx.Client, llm: LLM) -> None:
    (expected,) = llm.generate(STORY, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1))
    assert expected.prompt_logprobs is not None
    body = {"prompt": STORY, "max_tokens": 0, "echo": True, "logprobs": 1}
    answer = client.post("/v1/completions", json=body).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], answer["usage"]["completion_tokens"]) == (STORY, "length", 0)
    reference = [token.logprob for token in expected.prompt_logprobs if token]
    assert choice["logprobs"]["token_logprobs"] == [None, *(pytest.approx(p, abs=1e-3) for p in reference)]
    events = events_of(
        client.post("/v1/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}})
    )
    assert [
        t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["token_logprobs"]
    ] == choice["logprobs"]["token_logprobs"]
    assert "".join(c["text"] for e in events for c in e["choices"]) == STORY
    assert events[-1]["usage"] == answer["usage"]


def test_best_of_returns_the_most_likely_choice(client: httpx.Client) -> None:
    body = {"prompt": STORY, "max_tokens": 6, "seed": 3, "temperature": 1.5, "logprobs": 0}
    drawn = client.post("/v1/completions", json={**body, "n": 4}).json()["choices"]
    means = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"]) for c in drawn]
    best = client.post("/v1/completions", json={**body, "n": 1, "best_of": 4}).json()["choices"]
    assert [c["text"] for c in best] == [drawn[means.index(max(means))]["text"]]


def test_v1_generate_and_its_events(client: httpx.Client, llm: LLM) -> None:
    (expected,) = llm.generate(STORY, SamplingParams(temperature=0.0, max_tokens=10))
    body = {"prompt": STORY, "sampling_params": {"temperature": 0, "max_tokens": 10}}
    response = client.post("/v1/generate", json=body)
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.strip().split("\n\n")]
    assert "".join(event["token"] for event in events) == expected.text
    assert [event["done"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["usage"]["completion_tokens"] == len(expected.token_ids)
    whole = client.post("/v1/generate", json={**body, "stream": False}).json()
    assert whole["text"] == expected.text


def test_tokenize_and_detokenize_round_trip(client: httpx.Client, llm: LLM) -> None:
    ids = llm.tokenizer.encode("Ein Haus, 家 🦊", add_special=False)
    assert client.post("/tokenize", json={"content": "Ein Haus, 家 🦊"}).json() == {"tokens": ids}
    assert client.post("/detokenize", json={"tokens": ids}).json() == {"content": "Ein Haus, 家 🦊"}
    pairs = client.post("/tokenize", json={"content": "Ein Haus, 家 🦊", "with_pieces": True}).json()["tokens"]
    pieces = [p.encode() if isinstance(p := pair["piece"], str) else bytes(p) for pair in pairs]
    assert b"".join(pieces).decode() == "Ein Haus, 家 🦊"
    marked = "<|im_start|>user<|im_end|>"  # llama-server parses names of control tokens by default
    for body in ({"content": marked}, {"content": marked, "parse_special": False}):
        pairs = client.post("/tokenize", json={**body, "with_pieces": True}).json()["tokens"]
        assert "".join(pair["piece"] for pair in pairs) == marked


def test_a_common_prefix_hits_the_cache(client: httpx.Client) -> None:
    system = {"role": "system", "content": "Tell stories. " * 40}
    body = {"messages": [system, *ASKED], "max_tokens": 4}
    cached = [
        client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for _ in range(2)
    ]
    assert cached[0] == 0
    assert cached[1] >= 96
    # Requests with another salt do not hit.
    salted = client.post("/v1/chat/completions", json={**body, "cache_salt": "other"}).json()
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_prompt_that_is_too_long_is_rejected_before_the_stream(client: httpx.Client) -> None:
    for stream in (False, True):
        response = client.post("/v1/completions", json={"prompt": [5] * 2048, "stream": stream})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (2048, 2048)
    answer = client.post("/v1/completions", json={"prompt": [5] * 2047, "max_tokens": 9, "ignore_eos": True}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1


def test_integers_of_any_size_in_free_form_fields(client: httpx.Client) -> None:
    for number in (2**64, -(2**63) - 1, 10**40):
        body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"more": number}}
        response = client.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_value")
    wait_until(lambda: client.get("/v1/status").json()["models"][0]["requests"] == 0)


PUBLISHED = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "format": "uint32", "minimum": 0, "maximum": 9},
        "b": {"oneOf": [{"const": 1, "x-name": "one"}, {"const": 2}], "discriminator": {"propertyName": "k"}},
        "c": {"type": "object", "propertyNames": {"enum": ["d"]}, "additionalProperties": {"const": 3}},
    },
    "required": ["a", "b", "c"],
}
CALL = {"type": "function", "function": {"name": "f", "parameters": PUBLISHED}}
QUESTION = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100, "temperature": 1.0}
PLACES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": PUBLISHED}}}),
    ("/v1/chat/completions", {"structured_outputs": {"json": PUBLISHED, "disable_any_whitespace": True}}),
    ("/v1/chat/completions", {"guided_json": PUBLISHED}),
    ("/v1/chat/completions", {"json_schema": PUBLISHED}),
    ("/v1/chat/completions", {"tools": [CALL], "tool_choice": "required", "parallel_tool_calls": False}),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": PUBLISHED}}}),
    ("/api/chat", {"model": "tiny-chat", "stream": False, "format": PUBLISHED}),
    ("/completion", {"json_schema": PUBLISHED}),
]


@pytest.mark.parametrize(
    ("path", "form"), PLACES, ids=lambda value: value if isinstance(value, str) else next(iter(value))
)
def test_every_schema_field_is_read_the_same_way(client: httpx.Client, path: str, form: dict[str, Any]) -> None:
    asked = {"/v1/responses": {"input": "x", "temperature": 1.0}, "/completion": {"prompt": "x", "n_predict": 100}}
    response = client.post(path, json={**asked.get(path, QUESTION), **form})
    assert response.status_code == 200, response.text
    answer = response.json()
    if "choices" in answer:
        message = answer["choices"][0]["message"]
        text = message["content"] or message["tool_calls"][0]["function"]["arguments"]
    elif path == "/v1/responses":
        text = answer["output"][-1]["content"][0]["text"]
    else:
        text = answer["message"]["content"] if "message" in answer else answer["content"]
    value = json.loads(text)
    assert value.keys() == {"a", "b", "c"}
    assert value["c"] in ({}, {"d": 3})
    assert "json_schema#/properties/a/format" in response.headers["x-quire-ignored"]


TAKEN_NAMES = [
    "messages", "tools", "documents", "tokenize", "chat_template", "add_generation_prompt", "continue_final_message",
    "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range", "loop", "self", "caller",
    "__class__", "truncation", "max_length", "return_tensors", "return_dict", "padding",
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template", "/v1/messages/count_tokens"])
def test_clients_cannot_set_a_templates_own_variables(client: httpx.Client, path: str) -> None:
    """They cannot set values that the server passes, functions that the template calls, or options of the renderer."""
    asked = {"model": "tiny-chat", "messages": [{"role": "user", "content": "the question"}]}
    told = client.post(path, json=asked).json()
    for name in TAKEN_NAMES:
        for value in ([{"role": "user", "content": "another"}], "{{ 7 * 7 }}", False):
            response = client.post(path, json={**asked, "chat_template_kwargs": {name: value}})
            if response.status_code == 200:  # the field is ignored, and the reply says so
                assert "chat_template_kwargs" in response.headers["x-quire-ignored"]
                assert response.json().get("choices", response.json()) == told.get("choices", told)
            else:
                assert response.status_code in (400, 501), (name, value, response.text)
                assert name in response.text
    response = client.post(path, json={**asked, "chat_template": "{{ 7 * 7 }}"})
    assert response.status_code in (400, 501) or "'chat_template'" in response.headers["x-quire-ignored"]


def test_models_health_status_and_metrics(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    (listed,) = client.get("/v1/models").json()["data"]
    assert (listed["id"], listed["aliases"], listed["tags"]) == ("gpt-x", ["tiny-chat"], [])
    assert client.get("/v1/models/tiny-chat").json()["aliases"] == ["gpt-x"]
    assert client.get("/v1/models/gpt-x").json()["meta"]["architecture"] == "qwen3"
    assert client.get("/v1/models/other").status_code == 404
    body = {"prompt": STORY, "max_tokens": 3, "model": "gpt-x"}
    before = figures(client)
    answer = client.post("/v1/completions", json=body).json()
    after = figures(client)
    # Requests of earlier tests may take a moment to end.
    wait_until(lambda: client.get("/v1/status").json()["queue"]["requests"] == 0)
    status = client.get("/v1/status").json()
    assert sum(second["requests"] for second in status["history"]) >= 1
    assert status["memory"]["anonymous_bytes"] < status["memory"]["resident_bytes"]
    assert status["models"][0]["batch_tokens"] == 512
    assert answer["model"] == "gpt-x"
    for name, key in (("prompt_tokens", "prompt_tokens"), ("generated_tokens", "completion_tokens")):
        assert after[f"quire_{name}_total"] - before[f"quire_{name}_total"] == answer["usage"][key]
    assert after["quire_time_to_first_token_seconds_count"] == before["quire_time_to_first_token_seconds_count"] + 1
    uses = {name: value for name, value in after.items() if name.startswith("quire_cache_bytes{")}
    labels = [f'quire_cache_bytes{{kind="full",model="tiny-chat",use="{use}"}}' for use in ("cached", "held")]
    assert sorted(uses) == labels
    names = [f'quire_cache_blocks{part}{{model="tiny-chat"}}' for part in ("", "_free")]
    wait_until(lambda: len({figures(client)[name] for name in names}) == 1)
    wait_until(lambda: figures(client)[labels[1]] == 0 < figures(client)[labels[0]])


def test_what_another_process_computed_is_read_from_disk(client: httpx.Client, llm: LLM) -> None:
    body = {"prompt": LONG_STORY, "max_tokens": 3, "temperature": 0}
    answer = client.post("/v1/completions", json=body).json()
    (expected,) = llm.generate(LONG_STORY, max_tokens=3, temperature=0)
    assert answer["choices"][0]["text"] == expected.text
    n_found = expected.n_prompt_tokens // 32 * 32
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": n_found, "x-quire-disk-tokens": n_found}
    wait_until(lambda: figures(client)['quire_cache_tier_hit_tokens_total{model="tiny-chat",tier="disk"}'] == n_found)
    assert figures(client)['quire_cache_tier_most_bytes{model="tiny-chat",tier="host"}'] == 1 << 20
    tiers = client.get("/v1/status").json()["models"][0]["cache_tiers"]
    assert tiers["disk"]["cached_tokens"] == n_found
    assert tiers["disk"]["read_bytes"] > 0


def figures(client: httpx.Client) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.parametrize("stream", [False, True])
def test_an_abandoned_request_is_cancelled(server: Served, client: httpx.Client, stream: bool) -> None:
    asked = {"prompt": STORY, "max_tokens": 2000, "n": 8, "seed": 1, "ignore_eos": True, "stream": stream}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"

    def status() -> dict[str, Any]:
        found: dict[str, Any] = client.get("/v1/status").json()["models"][0]
        return found

    before = status()["totals"]["generated_tokens"]
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(head.encode() + body)
        # These are the worker's own figures, which it reports now and then: earlier ones show no request either.
        wait_until(lambda: status()["totals"]["generated_tokens"] > before)
    # A request whose client does not read may wait without a place before its connection is seen to be closed.
    wait_until(lambda: status()["requests"] == 0)
    # The queue's length is a figure of the worker's last report too.
    wait_until(lambda: status()["queue"]["running"] == 0)
    wait_until(lambda: len(set(free_blocks(client))) == 1)
    # Nothing else can end it before its last token.  Its tokens so far are counted.
    assert status()["totals"]["generated_tokens"] - before < 8 * 1800


def test_the_access_log_has_one_line_per_request_without_prompts(server: Served, client: httpx.Client) -> None:
    # All earlier requests have been logged before this one.
    client.get("/health", headers={"x-request-id": "the-last-of-others"})
    wait_until(lambda: "the-last-of-others" in server.log)
    before = server.log.count("\n")
    secret = "a canary\r\n\x1b[31m in a prompt"
    client.post("/v1/completions", json={"prompt": secret, "max_tokens": 2}, headers={"x-request-id": "mine-1"})
    client.post("/v1/completions", json={secret: 1})
    client.get("/%0d%0a%1b[31m")
    wait_until(lambda: server.log.count("\n") >= before + 3)
    lines = [json.loads(line) for line in server.log.splitlines()[before:]]
    assert [line["status"] for line in lines] == [200, 400, 404]
    assert lines[0]["request"] == "mine-1"
    assert "canary" not in server.log
    assert not any(ord(c) < 32 and c != "\n" for c in server.log)


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(64))
    with (
        pytest.raises(AssertionError, match=r"exited with 3: quire: \["),
        served(tmp_path, [str(tmp_path / "bad.gguf")]),
    ):
        pass


def test_a_public_address_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="--api-key-file"), served(tmp_path, ["--host", "0.0.0.0"]):
        pass


def write_long(url: str, results: list[httpx.Response]) -> None:
    body = {"prompt": STORY, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.Client(base_url=url, timeout=600.0, trust_env=False) as client:
        results.append(client.post("/v1/completions", json=body))


@pytest.mark.parametrize(("drain_s", "complete"), [("600", True), ("0", False)])
def test_sigterm_drains_answers_or_fails_them(tmp_path: Path, drain_s: str, complete: bool) -> None:
    with served(tmp_path, ["--drain", drain_s]) as server:
        results: list[httpx.Response] = []
        asking = [threading.Thread(target=write_long, args=(server.url, results)) for _ in range(4)]
        for thread in asking:
            thread.start()
        with server.client() as client:
            wait_until(lambda: client.get("/v1/status").json()["models"][0]["requests"] == 4)
            server.process.send_signal(signal.SIGTERM)
            for thread in asking:
                thread.join()
        assert server.process.wait(120) == 0
    for response in results:
        assert response.text.endswith("data: [DONE]\n\n") == complete
        assert ('"error"' in response.text) != complete


def test_a_killed_worker_is_restarted_behind_the_port(tmp_path: Path) -> None:
    with served(tmp_path) as server, server.client() as client:
        body = {"prompt": STORY, "max_tokens": 8, "temperature": 0}
        expected = client.post("/v1/completions", json=body).json()["choices"]
        (worker,) = children(server.process.pid)
        refused: httpx.Response | None = None

        def refuses() -> bool:
            nonlocal refused
            for child in children(server.process.pid):  # each time: the next worker may be ready already
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            refused = client.post("/v1/completions", json=body)
            return refused.status_code == 503 and refused.json()["error"]["code"] == "model_not_ready"

        wait_until(refuses)
        assert refused is not None
        assert int(refused.headers["retry-after"]) >= 1
        wait_until(lambda: client.get("/health").status_code == 200)
        assert client.post("/v1/completions", json=body).json()["choices"] == expected
    assert not Path(f"/proc/{worker}").exists()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_only_one_socket_listens(server: Served) -> None:
    inodes = set()
    for pid in (server.process.pid, *children(server.process.pid)):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            inodes.add(os.readlink(entry))
    listening = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in inodes
    ]
    assert len(listening) == 1
