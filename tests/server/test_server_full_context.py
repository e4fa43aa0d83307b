"""Conversations longer than the context: the error, and dropping turns on request.

Oracle: the same server with the conversation that should remain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from quire.engine import LLM
from quire.errors import RequestError
from quire.params.sampling import SamplingParams
from served import Served, served

N_CTX = 256
SYSTEM = {"role": "system", "content": "Answer briefly."}
TURNS: list[dict[str, str]] = [
    {"role": role, "content": f"{i} {text}"}
    for i in range(12)
    for role, text in (("user", "What is the capital of this country, please?"), ("assistant", "It is a large city."))
]
LAST = {"role": "user", "content": "What is the capital of France?"}
LONG = [SYSTEM, *TURNS, LAST]
GREEDY = {"temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server"), ["-c", str(N_CTX)]) as running:
        yield running


def count(client: httpx.Client, messages: list[dict[str, str]]) -> int:
    counted = client.post("/v1/chat/completions/input_tokens", json={"messages": messages}).json()
    return int(counted["input_tokens"])


def expected_turns(client: httpx.Client, room: int) -> list[dict[str, str]]:
    """Return the longest end of the conversation that leaves room for the answer."""
    for n in range(0, len(TURNS), 2):
        left = [SYSTEM, *TURNS[n:], LAST]
        if count(client, left) <= N_CTX - room:
            return left
    raise AssertionError("none fits")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", {"messages": LONG}, ["maximum context length is 256 tokens", '"truncation": "auto"']),
        ("/v1/responses", {"input": LONG}, ["maximum context length is 256 tokens", '"truncation": "auto"']),
        ("/v1/completions", {"prompt": "fox " * 400}, ["maximum context length is 256 tokens"]),
        ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": LONG}, ["prompt is too long: {n} tokens > 256 maximum"]),
        ("/completion", {"prompt": "fox " * 400}, ["exceeds the available context size (256 tokens)"]),
        ("/api/chat", {"model": "m", "messages": LONG, "truncate": False}, ["too long", "truncate"]),
        ("/api/generate", {"model": "m", "prompt": "fox " * 400, "raw": True, "truncate": False}, ["too long", "truncate"]),
        ("/v1/embeddings", {"input": "fox " * 400}, ["maximum context length is 256 tokens", '"truncate": true']),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_the_error_has_the_counts_and_advice(
    client: httpx.Client, path: str, body: dict[str, Any], words: list[str], stream: bool
) -> None:
    response = client.post(path, json=body if path == "/v1/embeddings" else {**body, "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    n = count(client, LONG) if "messages" in body or path == "/v1/responses" else 400
    for word in [*words, "--ctx-size", "trained on 2048"]:
        assert word.format(n=n) in message
    if not isinstance(error, str) and path != "/v1/messages":
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (pytest.approx(n, abs=4), N_CTX)


def test_the_oldest_turns_are_dropped_on_request(client: httpx.Client) -> None:
    left = expected_turns(client, 16)
    n_dropped = len(LONG) - len(left)
    assert 0 < n_dropped < len(TURNS)
    whole = client.post("/v1/chat/completions", json={"messages": left, **GREEDY}).json()
    response = client.post("/v1/chat/completions", json={"messages": LONG, "truncation": "auto", **GREEDY})
    assert response.headers["x-quire-ignored"] == f"'{n_dropped} oldest messages'"
    answer = response.json()
    assert answer["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] == count(client, left)
    assert answer["choices"][0]["message"] == whole["choices"][0]["message"]
    said = client.post(
        "/v1/responses", json={"input": LONG, "truncation": "auto", "temperature": 0, "max_output_tokens": 16}
    )
    assert said.headers["x-quire-ignored"] == f"'{n_dropped} oldest messages'"
    assert said.json()["truncation"] == "auto"
    assert said.json()["output"][0]["content"][0]["text"] == whole["choices"][0]["message"]["content"]
    shorter = client.post("/v1/chat/completions", json={"messages": left, "truncation": "auto", **GREEDY})
    assert "x-quire-ignored" not in shorter.headers


def test_a_conversation_that_cannot_be_shortened_is_rejected(client: httpx.Client) -> None:
    messages = [*TURNS, {"role": "user", "content": "fox " * 400}]
    response = client.post("/v1/chat/completions", json={"messages": messages, "truncation": "auto", **GREEDY})
    assert response.status_code == 400
    assert response.json()["error"]["n_prompt_tokens"] == count(client, messages)
    bad = client.post("/v1/chat/completions", json={"messages": [LAST], "truncation": "some"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "truncation")


def test_ollama_routes_truncate_by_default(client: httpx.Client) -> None:
    options = {"temperature": 0, "num_predict": 16}
    left = expected_turns(client, 16)
    body = {"model": "tiny-chat", "stream": False, "options": options}
    response = client.post("/api/chat", json={**body, "messages": LONG})
    assert response.headers["x-quire-ignored"] == f"'{len(LONG) - len(left)} oldest messages'"
    assert response.json()["prompt_eval_count"] == count(client, left)
    long = [SYSTEM, {"role": "user", "content": "fox " * 400}]
    cut = client.post("/api/chat", json={**body, "messages": long})
    assert cut.json()["prompt_eval_count"] == N_CTX - 16
    assert cut.headers["x-quire-ignored"] == f"'{count(client, long) - N_CTX + 16} tokens of the prompt'"
    raw = client.post("/api/generate", json={**body, "prompt": "fox " * 400, "raw": True})
    assert raw.json()["prompt_eval_count"] == N_CTX - 16
    assert "tokens of the prompt" in raw.headers["x-quire-ignored"]


def test_num_keep_tokens_of_a_cut_prompt_are_kept(client: httpx.Client) -> None:
    """With a prompt of two halves: the answer equals that to the ids that should remain."""
    prompt = "The capital of France is Paris. " + "One two three. " * 100
    ids = client.post("/tokenize", json={"content": prompt, "add_special": True}).json()["tokens"]
    for n_keep in (0, 4, 40, -1):
        kept = max(n_keep, 0)
        expected = [*ids[:kept], *ids[len(ids) - (N_CTX - 8 - kept) :]]
        whole = client.post("/completion", json={"prompt": expected, "n_predict": 8, "temperature": 0}).json()
        body = {"model": "tiny-chat", "prompt": prompt, "raw": True, "stream": False}
        options = {"num_keep": n_keep, "num_predict": 8, "temperature": 0}
        answer = client.post("/api/generate", json={**body, "options": options}).json()
        assert (answer["prompt_eval_count"], answer["response"]) == (N_CTX - 8, whole["content"])


@pytest.mark.parametrize("n_ctx", [N_CTX + 1, 32768, 10**9])
def test_a_num_ctx_that_is_too_large_is_reported(client: httpx.Client, n_ctx: int) -> None:
    body = {"model": "tiny-chat", "messages": [LAST], "stream": False, "options": {"num_ctx": n_ctx, "num_predict": 2}}
    response = client.post("/api/chat", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-quire-ignored"] == "'options.num_ctx'"
    body["options"] = {"num_ctx": N_CTX, "num_predict": 2}
    assert "x-quire-ignored" not in client.post("/api/chat", json=body).headers


def test_truncation_in_python(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8)
    whole = llm.chat([SYSTEM, *TURNS[-4:], LAST], params)
    found = llm.chat(LONG, params, max_prompt_tokens=whole.n_prompt_tokens)
    assert (found.n_prompt_tokens, found.message) == (whole.n_prompt_tokens, whole.message)
    with pytest.raises(RequestError, match="max_prompt_tokens"):
        llm.chat(LONG, params, max_prompt_tokens=0)
