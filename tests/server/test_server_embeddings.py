"""Embeddings over HTTP, in three dialects.

Oracles: the package's model in this process without the server; NumPy for norms and for base64's bytes.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fake_engine import FakeEngine
from one_call import expect_refusal, post
from quire.engine import LLM
from quire.engine.requests.prompts import RequestOptions
from quire.engine.requests.texts import TextOptions
from quire.errors import RequestError
from quire.server.worker.embedding import shaped
from quire.server.worker.protocol import Embed, Failed, Score
from quire.server.worker.vectors import LateScores
from served import served

TEXTS = ["Once upon a time", "The capital of France is Paris.", "Ein Haus"]
CLOSE = {"abs": 2e-4}


def test_vectors_match_the_engine(client: httpx.Client, llm: LLM) -> None:
    expected = llm.embed(TEXTS)
    answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "tiny-chat"}).json()
    assert (answer["object"], answer["model"]) == ("list", "tiny-chat")
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    assert np.array([item["embedding"] for item in answer["data"]]) == pytest.approx(expected, **CLOSE)
    ids = [llm.tokenizer.encode(text) for text in TEXTS]
    assert answer["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}
    for given, rows in ((ids, expected), (ids[0], expected[:1]), (TEXTS[1], expected[1:2])):
        data = client.post("/v1/embeddings", json={"input": given}).json()["data"]
        assert np.array([item["embedding"] for item in data]) == pytest.approx(rows, **CLOSE)


def test_base64_and_dimensions(client: httpx.Client, llm: LLM) -> None:
    raw = llm.embed(TEXTS[:1], normalize=False)[0]
    body = {"input": TEXTS[0], "encoding_format": "base64", "dimensions": 32}
    (item,) = client.post("/v1/embeddings", json=body).json()["data"]
    vector = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    assert vector == pytest.approx(raw[:32] / np.linalg.norm(raw[:32]), **CLOSE)
    for value in (0, 257):
        response = client.post("/v1/embeddings", json={**body, "dimensions": value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "dimensions")


def test_many_texts_at_once(client: httpx.Client, llm: LLM) -> None:
    texts = [f"Number {i}" for i in range(150)]
    data = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
    assert np.array([item["embedding"] for item in data]) == pytest.approx(llm.embed(texts), abs=2e-3)


def test_llama_cpp_format(client: httpx.Client, llm: LLM) -> None:
    raw = llm.embed(TEXTS, normalize=False)
    for norm, expected in (
        (-1, raw),
        (0, raw / np.abs(raw).max(axis=1, keepdims=True)),
        (1, raw / np.abs(raw).sum(axis=1, keepdims=True)),
        (None, raw / np.linalg.norm(raw, axis=1, keepdims=True)),
        (3, raw / np.cbrt((np.abs(raw) ** 3).sum(axis=1, keepdims=True))),
    ):
        for path, field in (("/embedding", "content"), ("/embeddings", "input")):
            rows = client.post(path, json={field: TEXTS, "embd_normalize": norm}).json()
            assert [row["index"] for row in rows] == [0, 1, 2]
            found = np.array([row["embedding"] for row in rows])[:, 0]
            assert found == pytest.approx(expected, abs=2e-3 * float(np.abs(expected).max()))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_inputs_may_mix_texts_and_ids(client: httpx.Client, llm: LLM, path: str) -> None:
    ids = llm.tokenizer.encode(TEXTS[1])
    body = {"input": [ids, [ids[0], TEXTS[0], *ids[1:]], TEXTS[2], {"prompt_string": TEXTS[0]}]}
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    rows = (
        answer.json()["data"] if path == "/v1/embeddings" else [{"embedding": r["embedding"][0]} for r in answer.json()]
    )
    mixed = [ids[0], *llm.tokenizer.encode(TEXTS[0], add_special=False, parse_special=True), *ids[1:]]
    expected = [llm.embed(ids)[0], llm.embed(mixed)[0], llm.embed(TEXTS[2])[0], llm.embed(TEXTS[0])[0]]
    assert np.array([row["embedding"] for row in rows]) == pytest.approx(np.array(expected), **CLOSE)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "x"}), ("/embed", {"inputs": "x"}), ("/api/embed", {"model": "fake", "input": "x"}),
        ("/api/embeddings", {"model": "fake", "prompt": "x"}),
    ],
)  # fmt: skip
def test_token_vectors_are_rejected_by_most_formats(path: str, body: dict[str, Any]) -> None:
    refused = post(path, body, options={"defaults": {"pooling": "none"}})
    assert (refused.status_code, "--pooling none" in refused.text) == (400, True)
    assert post(path, body, options={"defaults": {"pooling": "mean"}}).status_code == 200


def test_token_vectors_in_llama_cpp_format(llm: LLM, tmp_path: Path) -> None:
    with served(tmp_path, ["--pooling", "none"]) as server, server.client() as client:
        rows = client.post("/embeddings", json={"input": TEXTS}).json()
        refused = client.post("/v1/embeddings", json={"input": TEXTS})
    for row, expected in zip(rows, llm.embed_tokens(TEXTS), strict=True):
        assert np.array(row["embedding"]) == pytest.approx(expected, abs=2e-3)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "pooling")


def test_ollama_format(client: httpx.Client, llm: LLM) -> None:
    answer = client.post("/api/embed", json={"model": "tiny-chat:latest", "input": TEXTS, "keep_alive": "5m"}).json()
    assert np.array(answer["embeddings"]) == pytest.approx(llm.embed(TEXTS), **CLOSE)
    assert answer["prompt_eval_count"] == sum(len(llm.tokenizer.encode(text)) for text in TEXTS)
    assert answer["total_duration"] > 0
    assert client.post("/api/embed", json={"model": "tiny-chat"}).json()["embeddings"] == []
    old = client.post("/api/embeddings", json={"model": "tiny-chat", "prompt": TEXTS[0]}).json()
    assert np.array(old["embedding"]) == pytest.approx(llm.embed(TEXTS[:1], normalize=False)[0], abs=2e-3)


def test_a_text_that_is_too_long_is_rejected(client: httpx.Client) -> None:
    response = client.post("/v1/embeddings", json={"input": [[5], [5] * 2049]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert client.get("/v1/status").json()["models"][0]["requests"] == 0


# Tests without a model


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/embeddings", {"input": [1, [1]]}, "input"), ("/v1/embeddings", {"input": {}}, "input"),
        ("/v1/embeddings", {"input": ["x"] * 2049}, "input"), ("/v1/embeddings", {"input": [-1]}, "input"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int4"}, "encoding_format"),
        ("/v1/embeddings", {"input": "x", "dimension": 5}, "dimension"), ("/v1/embeddings", {}, "input"),
        ("/embedding", {}, "content"), ("/embedding", {"content": "x", "input": "x"}, "content"),
        ("/embedding", {"content": "x", "embd_normalize": -2}, "embd_normalize"),
        ("/embedding", {"content": [1, [1]]}, "content"),
        ("/api/embed", {"model": "fake", "input": "x", "keep_alive": "soon"}, "keep_alive"),
        ("/api/embeddings", {"model": "fake", "prompt": ["x"]}, "prompt"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_invalid_fields_are_named(path: str, body: dict[str, Any], name: str) -> None:
    expect_refusal(path, body, name)


def test_options_of_loading_have_no_effect() -> None:
    body = {"model": "fake", "input": "x", "options": {"num_ctx": 5}}
    response = post("/api/embed", body)
    assert (response.status_code, response.headers["x-quire-ignored"]) == (200, "'options'")


def test_engine_errors_name_the_routes_field() -> None:
    engine = FakeEngine([Failed(0, "RequestError", "[prompt] the prompt is empty")])
    assert post("/v1/embeddings", {"input": ""}, engine=engine).json()["error"]["param"] == "input"


IMAGE = {"image": "data:image/png;base64,AAAA"}


@pytest.mark.parametrize(
    ("path", "body", "side", "field"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["b", IMAGE]}, "document", "documents[1]"),
        ("/v1/rerank", {"query": IMAGE, "documents": ["b", "c"]}, "query", "query"),
        ("/v1/score", {"queries": ["a", "b"], "documents": ["c", IMAGE]}, "document", "documents[1]"),
        ("/v1/score", {"text_1": IMAGE, "text_2": ["c", "d"]}, "query", "text_1"),
        ("/v1/embeddings", {"input": ["a", IMAGE]}, "messages[0].content[0]", "input[1]"),
    ],
)
def test_images_that_cannot_be_read_are_named_as_in_the_body(
    path: str, body: dict[str, Any], side: str, field: str
) -> None:
    place = "[chat]" if path == "/v1/embeddings" else "[rerank]"
    failed = Failed(0, "RequestError", f"{place} {side}: the image has no end")
    error = post(path, body, engine=FakeEngine([["a"], failed])).json()["error"]
    assert (error.get("param", field), error["message"]) == (field, f"{field}: the image has no end")


@pytest.mark.parametrize("side", ["query", "document"])
def test_sides_of_a_pair_are_named(side: str) -> None:
    shown = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE["image"]}}]}]
    message = Score(0, "a", "b", None, messages=shown if side == "query" else [], second_messages=shown)
    scores = LateScores(None, None, None, None)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=rf"^\[rerank\] {side}: (?!.*messages)"):
        scores.score(message, RequestOptions(), TextOptions(), submit=None, end=None, failing=None)  # type: ignore[arg-type]


def counted(client: httpx.Client) -> dict[str, float]:
    """Return metrics by name, without labels."""
    lines = [line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines if "{" not in name}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": [[7] * 40, [8, 9]]}),
        ("/embedding", {"content": [[17] * 40, [18, 9]]}),
        ("/api/embed", {"model": "tiny-chat", "input": ["a b c d e f g", "counted"]}),
        ("/api/embeddings", {"model": "tiny-chat", "prompt": "counted as well"}),
    ],
)
def test_tokens_of_prompts_are_counted(client: httpx.Client, llm: LLM, path: str, body: dict[str, Any]) -> None:
    before = counted(client)
    answer = client.post(path, json=body).json()
    after = counted(client)
    texts = body.get("prompt") or body.get("input") or body["content"]
    prompts = [texts] if isinstance(texts, str) else texts
    n = sum(len(llm.tokenizer.encode(one, True, True)) if isinstance(one, str) else len(one) for one in prompts)
    assert after["quire_prompt_tokens_total"] - before["quire_prompt_tokens_total"] == n
    cached = after["quire_prompt_tokens_cached_total"] - before["quire_prompt_tokens_cached_total"]
    assert after["llamacpp:prompt_tokens_total"] - before["llamacpp:prompt_tokens_total"] == n - cached
    assert after["llamacpp:prompt_seconds_total"] > before["llamacpp:prompt_seconds_total"]
    if path == "/v1/embeddings":
        assert answer["usage"] == {"prompt_tokens": n, "total_tokens": n}
    if path == "/api/embed":
        assert answer["prompt_eval_count"] == n


def test_a_failure_cancels_the_rest() -> None:
    engine = FakeEngine([None, None])
    response = post("/v1/embeddings", {"input": ["a", "b"]}, engine=engine, options={"request_timeout_s": 0.1})
    assert response.status_code == 504
    assert sorted(engine.cancelled) == [1, 2]
    assert [type(work) for work in engine.asked] == [Embed, Embed]


def test_shapes_of_vectors() -> None:
    vector = np.array([3.0, 4.0, 12.0], np.float32)
    assert shaped(vector, 2, 2) == pytest.approx([0.6, 0.8])
    assert shaped(vector, None, None) == pytest.approx(vector)
    assert shaped(np.zeros(3, np.float32), None, 2) == pytest.approx(np.zeros(3))
    with pytest.raises(RequestError, match="dimensions 4"):
        shaped(vector, 4, 2)


def test_engine_failures_are_reported() -> None:
    engine = FakeEngine([Failed(0, "UnsupportedError", "[request] the model must show its hidden states")])
    response = post("/v1/embeddings", {"input": "x"}, engine=engine)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported")
