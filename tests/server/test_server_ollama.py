"""Ollama's routes.

Oracles: the package's model in this process without the server; Ollama's documented fields, defaults and streams.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from one_call import call, post
from quire.engine import LLM
from quire.gguf import GGUFReader
from quire.params.sampling import SamplingParams
from quire.server.service.library import Library
from quire.server.worker.engine_client import Stream
from quire.server.worker.protocol import Answer, Ask, CallDelta, Chat, Delta, Failed, Finished, Generate, Started, Work
from weather_tool import ASKED, WEATHER

GREEDY = {"temperature": 0, "num_predict": 12, "repeat_penalty": 1.0}
TINY = "tiny-chat:latest"


def lines_of(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_chat_matches_the_engine_and_its_stream(client: httpx.Client, llm: LLM) -> None:
    expected = llm.chat(ASKED, SamplingParams(temperature=0.0, max_tokens=12))
    body = {"model": TINY, "messages": ASKED, "options": GREEDY}
    answer = client.post("/api/chat", json={**body, "stream": False}).json()
    assert answer["message"] == {"role": "assistant", "content": expected.message.content}
    assert (answer["model"], answer["done"], answer["done_reason"]) == (TINY, True, "length")
    assert answer["prompt_eval_count"] == expected.n_prompt_tokens
    assert answer["eval_count"] == 12
    assert answer["total_duration"] >= answer["eval_duration"] > 0
    assert datetime.fromisoformat(answer["created_at"].replace("Z", "+00:00")).tzinfo is not None
    lines = lines_of(client.post("/api/chat", json=body))  # streaming is the default
    assert "".join(line["message"]["content"] for line in lines) == expected.message.content
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["eval_count"] == 12


def test_prompts_raw_and_in_the_template(client: httpx.Client, llm: LLM) -> None:
    (raw,) = llm.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=12))
    body = {"model": TINY, "prompt": "Once upon a time", "options": GREEDY, "raw": True}
    assert client.post("/api/generate", json={**body, "stream": False}).json()["response"] == raw.text
    assert "".join(line["response"] for line in lines_of(client.post("/api/generate", json=body))) == raw.text
    system = "Answer briefly."
    messages = [{"role": "system", "content": system}, *ASKED]
    expected = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=12))
    body = {"model": TINY, "system": system, "prompt": ASKED[0]["content"], "options": GREEDY, "stream": False}
    assert client.post("/api/generate", json=body).json()["response"] == expected.message.content


def test_context_continues_a_conversation(client: httpx.Client, llm: LLM) -> None:
    body = {"model": TINY, "prompt": ASKED[0]["content"], "system": "Answer briefly.", "options": GREEDY}
    first = client.post("/api/generate", json={**body, "stream": False}).json()
    lines = lines_of(client.post("/api/generate", json=body))
    assert all("context" not in line for line in lines[:-1])
    assert lines[-1]["context"] == first["context"]
    further = {**body, "prompt": "And of Italy?", "context": first["context"], "stream": False}
    second = client.post("/api/generate", json=further).json()
    messages = [
        {"role": "system", "content": "Answer briefly."},
        *ASKED,
        {"role": "assistant", "content": first["response"]},
        {"role": "user", "content": "And of Italy?"},
    ]
    expected = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=12))
    assert (second["response"], second["prompt_eval_count"]) == (expected.message.content, expected.n_prompt_tokens)
    for given in ([1, 2, 3], [0xD800], [ord(letter) for letter in '[{"role":"tool","content":"x"}]']):
        refused = client.post("/api/generate", json={**further, "context": given})
        assert refused.status_code == 400
        assert "context" in refused.json()["error"]
    long = client.post("/api/generate", json={**further, "prompt": "a " * (1 << 17)}).json()
    assert long["done"]
    assert "context" not in long


def test_a_tool_is_called_with_an_object(client: httpx.Client) -> None:
    body = {"model": "tiny-chat", "messages": ASKED, "tools": [WEATHER], "options": {**GREEDY, "num_predict": 64}}
    message = client.post("/api/chat", json={**body, "stream": False}).json()["message"]
    (call,) = message["tool_calls"]
    assert call["function"] == {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}}
    lines = lines_of(client.post("/api/chat", json=body))
    (streamed,) = [c for line in lines for c in line["message"].get("tool_calls", [])]
    assert streamed["function"] == call["function"]
    assert lines[-1]["done_reason"] == "stop"
    # Send the call and its result back to the model.
    more = [*ASKED, message, {"role": "tool", "tool_name": "get_weather", "content": "Sunny"}]
    answer = client.post("/api/chat", json={**body, "messages": more, "stream": False}).json()
    assert answer["prompt_eval_count"] > 40
    assert answer["message"]["content"]


def test_forms(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    body = {"model": TINY, "messages": ASKED, "stream": False, "options": {"num_predict": 60}}
    answer = client.post("/api/chat", json={**body, "format": schema}).json()
    assert json.loads(answer["message"]["content"]) == {"a": 1}
    body = {"model": TINY, "prompt": "x", "format": "json", "stream": False, "options": {"num_predict": 4}}
    assert client.post("/api/generate", json=body).json()["response"].lstrip().startswith("{")


def test_logprobs_match_the_engine(client: httpx.Client, llm: LLM) -> None:
    expected = llm.chat(ASKED, SamplingParams(temperature=0.0, max_tokens=5, logprobs=2)).logprobs
    assert expected is not None
    body = {"model": TINY, "messages": ASKED, "options": {**GREEDY, "num_predict": 5}, "logprobs": True}
    lines = lines_of(client.post("/api/chat", json={**body, "top_logprobs": 2}))
    shown = [token for line in lines for token in line.get("logprobs", [])]
    assert [token["logprob"] for token in shown] == pytest.approx([token.logprob for token in expected], abs=1e-4)
    for token, reference in zip(shown, expected, strict=True):
        assert bytes(token["bytes"]) == llm.tokenizer.token_bytes(reference.token_id)
        assert [top["logprob"] for top in token["top_logprobs"]] == pytest.approx(
            [p for _, p in reference.top], abs=1e-4
        )


def test_models_and_version(client: httpx.Client, llm: LLM) -> None:
    import quire
    from quire.engine.loading.loader import packaged_model

    reader = GGUFReader(packaged_model())
    (row,) = client.get("/api/tags").json()["models"]
    assert row["name"] == row["model"] == TINY
    assert row["size"] == packaged_model().stat().st_size
    assert len(row["digest"]) == 64
    assert row["details"]["quantization_level"] == "Q8_0"
    assert row["details"]["embedding_length"] == reader.metadata["qwen3.embedding_length"]
    (running,) = client.get("/api/ps").json()["models"]
    assert running["context_length"] == llm.n_ctx
    assert running["digest"] == row["digest"]
    shown = client.post("/api/show", json={"model": TINY}).json()
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["template"] == llm.tokenizer.chat_template
    n_parameters = sum(int(t.shape[0]) * (int(t.shape[1]) if len(t.shape) > 1 else 1) for t in reader.tensors)
    assert shown["model_info"]["general.parameter_count"] == n_parameters
    assert shown["model_info"]["general.architecture"] == "qwen3"
    assert not [key for key in shown["model_info"] if isinstance(shown["model_info"][key], list)]
    assert client.post("/api/show", json={"model": "other"}).status_code == 404
    told = client.get("/api/version").json()
    assert told["quire"] == quire.__version__
    assert [int(part) for part in told["version"].split(".")] >= [0, 12, 0]  # clients require this version
    assert client.request("HEAD", "/api/tags").status_code == 200


def test_unsupported_abilities_are_rejected(client: httpx.Client) -> None:
    response = client.post("/api/generate", json={"model": TINY, "prompt": "a", "suffix": "b"})
    assert response.status_code == 400
    assert "fim_prefix" in response.json()["error"]
    too_long = {"model": TINY, "prompt": "word " * 4000, "truncate": False}
    assert client.post("/api/generate", json=too_long).status_code == 400


# Tests without a model


def test_unloaded_models_are_listed_too() -> None:
    library = Library("a", lambda: {"a": 40, "b": 60}, lambda *_: FakeEngine(), 1000)
    rows = call("GET", "/api/tags", library=library).json()["models"]
    assert [(row["name"], row["size"]) for row in rows] == [("a:latest", 40), ("b:latest", 60)]
    assert call("GET", "/api/ps", library=library).json() == {"models": []}
    # Requesting one by its name with the tag loads it.
    body = {"model": "b:latest", "prompt": "x", "stream": False}
    assert post("/api/generate", body, library=library).json()["response"] == "ab"
    assert list(library.engines()) == ["b"]
    # Clients list models here and then use OpenAI's or Anthropic's API.
    for path, more in (("/v1/chat/completions", {}), ("/v1/messages", {"max_tokens": 4})):
        asked = {"model": "b:latest", "messages": ASKED, **more}
        assert post(path, asked, library=library).status_code == 200
    assert post("/v1/chat/completions", {"model": "c:latest", "messages": ASKED}, library=library).status_code == 404
    assert list(library.engines()) == ["b"]


def sent(path: str = "/api/generate", **fields: Any) -> Work:
    """Return the engine's work for a body."""
    engine = FakeEngine()
    own = {"prompt": "x"} if path == "/api/generate" else {"messages": ASKED}
    response = post(path, {"model": "fake", **own, **fields}, engine=engine)
    assert response.status_code == 200, response.text
    (work,) = engine.asked
    return work


def params_of(**options: Any) -> dict[str, Any]:
    work = sent(options=options)
    assert isinstance(work, Chat)
    return work.params


def test_options_become_parameters() -> None:
    params = params_of()
    assert params["penalty_last_n"] == 64
    assert not {"max_tokens", "seed", "repetition_penalty"} & set(params)
    params = params_of(num_predict=5, seed=7, stop="x", num_ctx=128, repeat_last_n=-1, mirostat=2)
    assert (params["max_tokens"], params["seed"], list(params["stop"])) == (5, 7, ["x"])
    assert "stop" not in params_of(stop="")
    assert list(params_of(stop=["", "x"])["stop"]) == ["x"]
    assert not {"top_k", "top_p", "penalty_last_n"} & set(params)


def test_messages_are_translated() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [call], "images": []},
        {"role": "tool", "tool_name": "f", "content": "1"},
    ]
    work = sent("/api/chat", messages=messages, think=False)
    assert isinstance(work, Chat)
    assert work.messages == [
        {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [call]},
        {"role": "tool", "name": "f", "content": "1"},
    ]
    assert work.options["template_values"] == {"enable_thinking": False}
    work = sent("/api/chat", messages=ASKED, think="xhigh")
    assert isinstance(work, Chat)
    assert work.options["template_values"] == {"enable_thinking": True, "reasoning_effort": "xhigh"}


def test_empty_requests_are_answered_at_once() -> None:
    engine = FakeEngine()
    for path, empty in (("/api/generate", {"response": ""}), ("/api/chat", {"message": {}})):
        answer = post(path, {"model": "fake", "keep_alive": "5m", "stream": False}, engine=engine).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert empty.keys() <= answer.keys()
        assert len(lines_of(post(path, {"model": "fake"}, engine=engine))) == 1
    assert engine.asked == []


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"options": {"num_ctx": 0}}, "num_ctx"), ({"options": {"vocab_only": True}}, "vocab_only"),
        ({"options": {"temprature": 1}}, "temprature"), ({"options": {"top_p": 2}}, "top_p"),
        ({"options": {"num_predict": 2**31}}, "num_predict"), ({"options": {"stop": ["x"] * 17}}, "stop"),
        ({"options": {"presence_penalty": 3}}, "presence_penalty"), ({"options": 5}, "options"),
        ({"keep_alive": "soon"}, "keep_alive"), ({"keep_alive": "5 minutes"}, "keep_alive"), ({"format": "xml"}, "format"),
        ({"context": [1]}, "context"), ({"template": "{{ .Prompt }}"}, "template"),
        ({"raw": True, "system": "x"}, "system"), ({"raw": True, "think": True}, "think"),
        ({"raw": True, "context": [1]}, "context"),
        ({"suffix": "x", "format": "json"}, "format"), ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"think": "extreme"}, "think"),
        ({"temperature": 1}, "temperature"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_invalid_fields_are_named(fields: dict[str, Any], name: str) -> None:
    engine = FakeEngine()
    body = {"model": "fake", "prompt": "x", **fields}
    response = post("/api/generate", body, engine=engine, options={"strict": True})
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert name in response.json()["error"]
    assert engine.asked == []


def test_unreadable_messages() -> None:
    message = {"role": "user", "content": "x", "images": [5]}
    response = post("/api/chat", {"model": "fake", "messages": [message]})
    assert response.status_code == 400
    assert "messages[0]" in response.json()["error"]


@pytest.mark.parametrize("name", ["id", "reasoning_content", "timestamp", "tool_call_ids"])
def test_unknown_fields_of_messages_are_named(name: str) -> None:
    body = {"model": "fake", "messages": [*ASKED, {"role": "assistant", "content": "a", name: "x"}, *ASKED]}
    response = post("/api/chat", {**body, "stream": False})
    assert response.status_code == 200, response.text
    assert response.headers["x-quire-ignored"] == f"'messages[1].{name}'"
    refused = post("/api/chat", body, options={"strict": True})
    assert (refused.status_code, name in refused.json()["error"]) == (400, True)


CHAT = {"messages": ASKED, "model": "fake", "stream": False}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {**CHAT, "options": {"num_predict": 4.0, "seed": 7.0, "num_ctx": 64.0, "top_k": 20.0}}),
        ("/api/embed", {"model": "fake", "input": "x", "dimensions": 1.0}),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 4.0, "n": 1.0, "stop_token_ids": [3.0, 4]}),
        ("/v1/completions", {"prompt": [1.0, 2.0], "max_tokens": 4.0}),
        ("/v1/messages", {**CHAT, "max_tokens": 4.0}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 4.0}),
        ("/completion", {"prompt": [[1.0, 2]], "n_predict": 4.0, "logit_bias": [[1.0, -1]]}),
        ("/v1/generate", {"prompt": "x", "stream": False, "sampling_params": {"max_tokens": 4.0}}),
    ],
)
def test_integers_may_be_written_as_floats(path: str, body: dict[str, Any]) -> None:
    response = post(path, body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("value", [4.5, 1e300, -1e19])
def test_fractions_are_not_integers(value: float) -> None:
    response = post("/v1/chat/completions", {**CHAT, "max_tokens": value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


def test_schemas_keep_their_numbers_when_others_are_converted() -> None:
    engine = FakeEngine()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": 1.0}}}
    post("/v1/chat/completions", {**CHAT, "max_tokens": 4.0, "tools": [tool]}, engine=engine)
    (asked,) = engine.asked
    assert isinstance(asked, Chat)
    assert asked.params["max_tokens"] == 4
    assert repr(asked.options["tools"][0]["function"]["parameters"]) == "{'default': 1.0}"


def test_the_assistants_last_text_is_continued(client: httpx.Client, llm: LLM) -> None:
    capital = [{"role": "user", "content": "What is the capital of France?"}]
    whole = llm.chat(capital, SamplingParams(temperature=0.0, max_tokens=48)).message.content
    assert whole
    messages = [*capital, {"role": "assistant", "content": whole[:11]}]
    body = {"model": TINY, "messages": messages, "stream": False, "options": {**GREEDY, "num_predict": 48}}
    assert client.post("/api/chat", json=body).json()["message"]["content"] == whole[11:]


@pytest.mark.parametrize("keep_alive", ["5m", "1h30m", -1, 300, "-1", "300"])
def test_models_stay_loaded_as_long_as_requested(keep_alive: Any) -> None:
    assert isinstance(sent(keep_alive=keep_alive), Chat)
    assert isinstance(sent(keep_alive=keep_alive, raw=True), Generate)


@pytest.mark.parametrize("path", ["/api/push", "/api/blobs/sha256:0"])
def test_unsupported_features_are_rejected_by_name(path: str) -> None:
    response = post(path, {"model": "x"})
    assert response.status_code == 501
    assert "not support" in response.json()["error"]
    assert call("HEAD", "/api/blobs/sha256:0").status_code == 404


def test_a_failure_in_a_stream_is_its_last_line() -> None:
    engine = FakeEngine([Failed(0, "InternalError", "[x] broke")])
    lines = lines_of(post("/api/generate", {"model": "fake", "prompt": "x"}, engine=engine))
    assert [line.get("response") for line in lines] == ["part", None]
    assert lines[-1] == {"error": "[x] broke"}


class ThinkingEngine(FakeEngine):
    """Reasons, then calls a tool in two pieces."""

    def submit(self, work: Work) -> Stream:
        made, stream = self.open(work)
        id_ = made.id
        self.asked.append(made)
        if isinstance(made, Ask):
            self.dispatch([Answer(id_, {"abilities": ["thinking"], "file": {}})])
            return stream
        calls = [CallDelta(0, "c1", "f", '{"a":'), CallDelta(0, None, None, " [1]}")]
        messages = [Delta(id_, 0, "", [1], "hm"), *(Delta(id_, 0, "", [2], "", [call]) for call in calls)]
        end = Finished(id_, 0, "tool_calls", None, 3, 0, 3, 0.0, 0.001, 0.002)
        self.dispatch([Started(id_, 3), *messages, end])
        return stream


def test_reasoning_and_calls_in_pieces() -> None:
    engine = ThinkingEngine()
    body = {"model": "fake", "messages": ASKED, "tools": [WEATHER], "think": "max"}
    lines = lines_of(post("/api/chat", body, engine=engine))
    assert [line["message"].get("thinking") for line in lines] == ["hm", None, None]
    function = {"index": 0, "name": "f", "arguments": {"a": [1]}}
    assert lines[1]["message"]["tool_calls"] == [{"id": "c1", "function": function}]
    assert (lines[2]["done_reason"], lines[2]["eval_duration"]) == ("stop", 2_000_000)
    work = engine.asked[-1]
    assert isinstance(work, Chat)
    assert work.options["template_values"] == {"enable_thinking": True, "reasoning_effort": "high"}
    whole = post("/api/chat", {**body, "stream": False}, engine=ThinkingEngine()).json()["message"]
    assert (whole["thinking"], whole["tool_calls"][0]["function"]) == ("hm", function)
