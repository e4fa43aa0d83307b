"""What clients of llama.cpp's server, vLLM and Ollama send and read beside the plain answers.

Oracles: the names and shapes of these servers' documentation, the package's model in this process.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from one_call import call, post
from quire.engine import LLM
from quire.server.app import ROUTES
from quire.server.worker.protocol import Chat

ASKED = [{"role": "user", "content": "What is the capital of France?"}]
TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip


def events_of(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def sent(**fields: Any) -> Chat:
    engine = FakeEngine()
    response = post("/v1/chat/completions", {"messages": ASKED, **fields}, engine=engine)
    assert response.status_code == 200, response.text
    (work,) = engine.asked
    assert isinstance(work, Chat)
    return work


@pytest.mark.parametrize(
    ("fields", "name", "expected"),
    [
        ({"n_predict": 7}, "max_tokens", 7), ({"n_predict": -1}, "max_tokens", None), ({"max_tokens": -1}, "max_tokens", None),
        ({"n_predict": 7, "max_tokens": 7}, "max_tokens", 7), ({"n_probs": 3}, "logprobs", 3),
        ({"logprobs": True, "n_probs": 2}, "logprobs", 2), ({"samplers": ["top_k", "temperature"]}, "samplers", ["top_k", "temperature"]),
        ({"samplers": "kt"}, "samplers", ["top_k", "temperature"]), ({"repeat_penalty": 1.5}, "repetition_penalty", 1.5),
    ],
    ids=str,
)  # fmt: skip
def test_llama_cpps_fields_of_chats(fields: dict[str, Any], name: str, expected: Any) -> None:
    found = sent(**fields).params.get(name)
    assert (list(found) if isinstance(expected, list) else found) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"parse_tool_calls": False}, {"tool_format": "none"}), ({"reasoning_format": "none"}, {"reasoning_format": "none"}),
        ({"reasoning_format": "deepseek"}, {"reasoning_format": "auto"}), ({"reasoning_budget_tokens": 9}, {"reasoning_budget": 9}),
        ({"thinking_budget_tokens": 9}, {"reasoning_budget": 9}), ({"reasoning_budget_tokens": -1}, {}),
        ({"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True}),
        ({"add_generation_prompt": True}, {}), ({"tool_choice": "any", "tools": [{"type": "function", "function": {"name": "f"}}]},
         {"tool_choice": "required"}),
    ],
    ids=str,
)  # fmt: skip
def test_llama_cpps_options_of_chats(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    options = {k: v for k, v in sent(**fields).options.items() if k not in ("template_values", "lenient", "tools")}
    assert options == expected


def test_cache_prompt_false_shares_nothing() -> None:
    assert sent(cache_prompt=False).hints.salt != sent(cache_prompt=False).hints.salt
    assert sent().hints.salt == sent(cache_prompt=True).hints.salt


def test_names_that_disagree() -> None:
    for fields, name in (
        ({"n_predict": 1, "max_tokens": 2}, "n_predict"),
        ({"reasoning_budget": 1, "reasoning_budget_tokens": 2}, "reasoning_budget_tokens"),
    ):
        response = post("/v1/chat/completions", {"messages": ASKED, **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_chats_have_timings_and_a_fingerprint(client: httpx.Client) -> None:
    body = {"messages": ASKED, "max_tokens": 8, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["timings"].keys() == TIMINGS
    assert answer["timings"]["predicted_n"] == answer["usage"]["completion_tokens"]
    assert answer["system_fingerprint"].startswith("quire-")
    more = {"stream": True, "timings_per_token": True, "return_progress": True}
    more["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}  # type: ignore[assignment]
    events = events_of(client.post("/v1/chat/completions", json={**body, **more, "cache_prompt": False}))
    assert {event["system_fingerprint"] for event in events} == {answer["system_fingerprint"]}
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert progress[-1]["total"] == answer["usage"]["prompt_tokens"]
    texts = [event for event in events if event["choices"] and event["choices"][0]["delta"].get("content")]
    assert all(event["timings"].keys() == TIMINGS for event in texts)
    counts = [event["usage"]["completion_tokens"] for event in texts]
    assert counts == sorted(counts)
    ended = [event for event in events if event["choices"] and event["choices"][0]["finish_reason"]]
    assert ended[0]["timings"]["predicted_n"] == answer["usage"]["completion_tokens"]
    assert events[-1]["timings"]["predicted_n"] == answer["usage"]["completion_tokens"]


def test_partial_events_have_tokens(client: httpx.Client, llm: LLM) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 6, "temperature": 0, "stream": True}
    events = events_of(client.post("/completion", json=body))
    ids = [id_ for event in events if not event["stop"] for id_ in event["tokens"]]
    assert ids == llm.generate("Once upon a time", max_tokens=6, temperature=0.0)[0].token_ids


def test_a_prompt_beyond_the_context_has_llama_cpps_type(client: httpx.Client) -> None:
    long = [{"role": "user", "content": "word " * 5000}]
    for path in ("/v1/chat/completions", "/chat/completions"):
        error = client.post(path, json={"messages": long}).json()["error"]
        assert (error["type"], error["code"]) == ("exceed_context_size_error", "context_length_exceeded")
        assert error["n_prompt_tokens"] > error["n_ctx"]


@pytest.mark.parametrize("path", ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
def test_tokens_of_a_chat_are_counted(client: httpx.Client, llm: LLM, path: str) -> None:
    expected = llm.chat(ASKED, max_tokens=1).n_prompt_tokens
    assert client.post(path, json={"messages": ASKED}).json() == {
        "object": "response.input_tokens",
        "input_tokens": expected,
    }
    counted = client.post(path.replace("chat/completions", "responses"), json={"input": ASKED[0]["content"]}).json()
    assert counted["input_tokens"] == expected


def test_version_ping_and_other_paths(client: httpx.Client, llm: LLM) -> None:
    import quire

    assert client.get("/version").json() == {"version": quire.__version__}
    for method in ("GET", "POST"):
        answer = client.request(method, "/ping")
        assert (answer.status_code, answer.content) == (200, b"")
    ids = llm.tokenizer.encode("Once upon")
    told = client.post("/tokenize", json={"prompt": "Once upon"}).json()
    assert told == {"count": len(ids), "max_model_len": client.get("/slots").json()[0]["n_ctx"], "tokens": ids}
    assert (
        client.post("/v1/tokenize", json={"content": "Once"}).json()
        == client.post("/tokenize", json={"content": "Once"}).json()
    )
    assert client.post("/v1/detokenize", json={"tokens": ids}).json() == {"content": "Once upon"}
    assert client.post("/tokenize", json={"content": "a", "prompt": "b"}).status_code == 400
    answer = client.post("/responses", json={"input": "Hi", "max_output_tokens": 2}).json()
    assert answer["object"] == "response"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding"])
def test_inputs_of_embeddings(client: httpx.Client, llm: LLM, path: str) -> None:
    def vectors(given: Any) -> Any:
        answer = client.post(path, json={"input": given})
        assert answer.status_code == 200, answer.text
        rows = answer.json()["data"] if path == "/v1/embeddings" else answer.json()
        return [row["embedding"] for row in rows]

    ids = llm.tokenizer.encode("Once upon")
    (one,) = vectors("Once upon")
    assert vectors(["Once upon", ids]) == [one, one]
    assert vectors(ids) == [one]
    assert vectors({"content": "Once upon"}) == [one]
    assert vectors({"prompt_string": "Once upon"}) == [one]
    parts = [{"type": "text", "text": "Once"}, {"type": "text", "text": " upon"}]
    assert vectors([{"content": parts}, "Once upon"]) == [one, one]
    assert vectors([*llm.tokenizer.encode("Once"), " upon"]) == [one]
    assert vectors([]) == []
    for wrong in ([1, [2]], {}, [{"content": [{"type": "image_url"}]}], ""):
        assert client.post(path, json={"input": wrong}).status_code == 400


def test_figures_by_other_servers_names(client: httpx.Client) -> None:
    client.post("/v1/completions", json={"prompt": "Once upon a time", "max_tokens": 4})
    text = client.get("/metrics").text
    figures = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    model = '{model_name="tiny-chat"}'
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
                 "prefix_cache_queries_total", "prefix_cache_hits_total"):  # fmt: skip
        assert f"vllm:{name}{model}" in figures
    assert figures[f"vllm:generation_tokens_total{model}"] == figures["quire_generated_tokens_total"]
    assert figures[f"vllm:prompt_tokens_total{model}"] == figures["quire_prompt_tokens_total"]
    for name, own in (("time_to_first_token_seconds", "time_to_first_token_seconds"), ("e2e_request_latency_seconds", "request_seconds")):  # fmt: skip
        assert figures[f"vllm:{name}_count{model}"] == figures[f"quire_{own}_count"] >= 1
    assert figures['vllm:request_success_total{finished_reason="length",model_name="tiny-chat"}'] >= 1
    assert "llamacpp:prompt_tokens_cached_total" in figures


def test_examples_of_the_description_hold() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = call("GET", "/openapi.json").json()
    shown = 0
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert operation["description"]
        if route.body is None:
            continue
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for example in body.get("examples", ()):
            shown += 1
            jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(example)
            response = call(route.method, route.path, json=example, options={"strict": False})
            assert response.status_code == 200, (route.path, response.text)
    assert shown >= 8
