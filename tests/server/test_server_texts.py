"""Scores, classes and vectors of texts over HTTP, in the formats of vLLM, TEI, Jina and llama.cpp.

Oracle: the engine in this process without the server, which tests/models compares with transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fake_engine import FakeEngine
from one_call import expect_refusal, post
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.server.worker.protocol import Embed, Score, TextRules
from served import served
from tiny_checkpoints import write_checkpoint
from word_pieces import write_word_pieces

QUERY, DOCUMENTS = "where is the fox?", ["in the forest", "", "a red ball 7"]
CLOSE: dict[str, Any] = {"abs": 2e-4}


def converted(folder: Path, name: str) -> Path:
    write_checkpoint(folder / name, name)
    write_word_pieces(folder / name)
    convert(folder / name, folder / f"{name}.gguf", "f32")
    return folder / f"{name}.gguf"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    return converted(folder, "bert-rank"), converted(folder, "bert")


@pytest.fixture(scope="module")
def client(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Servers of a classifier with three classes, ``bert-rank``, and of an encoder, ``bert``."""
    folder = tmp_path_factory.mktemp("models")
    for path in files:
        (folder / path.name).write_bytes(path.read_bytes())
    with (
        served(tmp_path_factory.mktemp("server"), ["--models-dir", str(folder)]) as server,
        server.client() as made,
    ):
        yield made


@pytest.fixture(scope="module")
def judge(files: tuple[Path, Path]) -> Iterator[LLM]:
    with LLM(files[0], threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def embedder(files: tuple[Path, Path]) -> Iterator[LLM]:
    with LLM(files[1], threads=1) as model:
        yield model


def sigmoid(scores: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(scores)))


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_of_pairs(client: httpx.Client, judge: LLM, path: str) -> None:
    scores = judge.rerank(QUERY, DOCUMENTS)
    for body, expected in (
        ({"text_1": QUERY, "text_2": DOCUMENTS}, sigmoid(scores)),
        ({"queries": [QUERY] * 3, "documents": DOCUMENTS}, sigmoid(scores)),
        ({"text_1": QUERY, "text_2": DOCUMENTS[0], "activation": False}, scores[:1]),
    ):
        answer = client.post(path, json={**body, "model": "bert-rank"}).json()
        assert [item["score"] for item in answer["data"]] == pytest.approx(expected, **CLOSE)
        assert [item["index"] for item in answer["data"]] == list(range(len(expected)))
        assert answer["usage"]["total_tokens"] > 0
        assert answer["id"].startswith("score-")


def test_classes(client: httpx.Client, judge: LLM) -> None:
    expected = judge.classify(DOCUMENTS)
    answer = client.post("/classify", json={"input": DOCUMENTS, "model": "bert-rank"}).json()
    for item, row in zip(answer["data"], expected, strict=True):
        assert item["probs"] == pytest.approx(row, **CLOSE)
        assert (item["label"], item["num_classes"]) == (judge.labels[int(row.argmax())], 3)
    (one,) = client.post("/classify", json={"input": DOCUMENTS[0], "model": "bert-rank"}).json()["data"]
    assert one["probs"] == pytest.approx(expected[0], **CLOSE)


def test_classes_in_tei_format(client: httpx.Client, judge: LLM) -> None:
    pair = judge.classify([(QUERY, DOCUMENTS[0])])[0]
    single = judge.classify([DOCUMENTS[2]])[0]
    for path in ("/predict", "/classify"):
        one = client.post(path, json={"inputs": DOCUMENTS[2], "model": "bert-rank"}).json()
        two = client.post(path, json={"inputs": [QUERY, DOCUMENTS[0]], "model": "bert-rank"}).json()
        both = client.post(path, json={"inputs": [[DOCUMENTS[2]], [QUERY, DOCUMENTS[0]]], "model": "bert-rank"}).json()
        assert both == [one, two]
        for found, row in ((one, single), (two, pair)):
            order = np.argsort(-row)
            assert [entry["label"] for entry in found] == [judge.labels[i] for i in order]
            assert [entry["score"] for entry in found] == pytest.approx(row[order], **CLOSE)
    raw = client.post("/predict", json={"inputs": DOCUMENTS[2], "raw_scores": True, "model": "bert-rank"}).json()
    by_label = {entry["label"]: entry["score"] for entry in raw}
    powers = np.exp([by_label[label] for label in judge.labels])
    assert powers / powers.sum() == pytest.approx(single, **CLOSE)


def test_vectors_in_tei_format(client: httpx.Client, embedder: LLM) -> None:
    body = {"inputs": DOCUMENTS, "model": "bert"}
    assert np.array(client.post("/embed", json=body).json()) == pytest.approx(embedder.embed(DOCUMENTS), **CLOSE)
    raw = client.post("/embed", json={"inputs": QUERY, "normalize": False, "model": "bert"}).json()
    assert np.array(raw) == pytest.approx(embedder.embed(QUERY, normalize=False), abs=1e-3)
    tokens = client.post("/embed_all", json=body).json()
    for found, expected in zip(tokens, embedder.embed_tokens(DOCUMENTS), strict=True):
        assert np.array(found) == pytest.approx(expected, abs=1e-3)


def test_poolings(client: httpx.Client, embedder: LLM) -> None:
    for pooling in ("mean", "cls", "last"):
        body = {"input": QUERY, "pooling": pooling, "normalize": False, "model": "bert"}
        (item,) = client.post("/v1/embeddings", json=body).json()["data"]
        expected = embedder.embed(QUERY, pooling=pooling, normalize=False)[0]  # type: ignore[arg-type]
        assert item["embedding"] == pytest.approx(expected, abs=1e-3)


LONG = "fox " * 400


@pytest.mark.parametrize(("top_n", "n"), [(None, 3), (2, 2), (3, 3), (99, 3)])
@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"])
def test_the_best_documents_in_both_formats(top_n: int | None, n: int, path: str) -> None:
    more = {} if top_n is None else {"top_n": top_n}
    assert len(post(path, {"query": QUERY, "documents": DOCUMENTS, **more}).json()["results"]) == n
    assert len(post(path, {"query": QUERY, "texts": DOCUMENTS, **more}).json()) == n


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"documents": DOCUMENTS, "raw_scores": True, "return_text": True}, "'raw_scores','return_text'"),
        ({"texts": DOCUMENTS, "return_documents": True}, "'return_documents'"),
        ({"texts": DOCUMENTS, "raw_scores": True, "return_text": True}, None),
        ({"documents": DOCUMENTS, "return_documents": True}, None),
        ({"documents": [{"text": "a", "title": "b"}, "c"]}, "'documents[0].title'"),
        ({"documents": DOCUMENTS, "rank_fields": ["text"], "max_tokens_per_doc": 9}, "'rank_fields','max_tokens_per_doc'"),
    ],
)  # fmt: skip
def test_ranking_names_ignored_fields(fields: dict[str, Any], ignored: str | None) -> None:
    response = post("/rerank", {"query": QUERY, **fields})
    assert response.status_code == 200, response.text
    assert response.headers.get("x-quire-ignored") == ignored


@pytest.mark.parametrize("documents", [[], None, 123, [1, 2, 3], [{}], [{"text": 1}], ["a", {"title": "b"}]])
def test_invalid_documents(documents: Any) -> None:
    response = post("/rerank", {"query": QUERY, "documents": documents})
    assert response.status_code == 400
    assert "documents" in response.json()["error"]["message"]


@pytest.mark.parametrize(("path", "field"), [("/api/embed", "input"), ("/api/embeddings", "prompt")])
def test_ollama_routes_cut_long_texts_unless_forbidden(client: httpx.Client, path: str, field: str) -> None:
    body = {"input": LONG, "model": "bert", "truncate": True}
    expected = client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    for more in ({}, {"truncate": True}, {"truncate": None}):
        answer = client.post(path, json={"model": "bert", field: LONG, **more})
        assert answer.status_code == 200, answer.text
        found = answer.json()["embeddings"][0] if field == "input" else answer.json()["embedding"]
        assert found / np.linalg.norm(found) == pytest.approx(expected, abs=1e-5)
    assert client.post(path, json={"model": "bert", field: LONG, "truncate": False}).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/v1/embeddings", {"input": LONG, "model": "bert"}, {"truncate_prompt_tokens": -1}),
        ("/v1/embeddings", {"input": LONG, "model": "bert"}, {"truncate": "END"}),
        ("/embedding", {"content": LONG, "model": "bert"}, {"truncation": True}),
        ("/embed", {"inputs": LONG, "model": "bert"}, {"truncate": True, "truncation_direction": "Left"}),
        ("/rerank", {"query": QUERY, "texts": [LONG], "model": "bert-rank"}, {"truncate": True}),
        ("/v2/rerank", {"query": QUERY, "documents": [LONG], "model": "bert-rank"}, {"truncate_prompt_tokens": 100}),
        ("/score", {"text_1": QUERY, "text_2": LONG, "model": "bert-rank"}, {"truncate_prompt_tokens": 64}),
        ("/classify", {"input": LONG, "model": "bert-rank"}, {"truncate_prompt_tokens": 64}),
        ("/predict", {"inputs": LONG, "model": "bert-rank"}, {"truncate": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_long_texts_are_rejected_unless_truncation_is_allowed(
    client: httpx.Client, path: str, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    refused = client.post(path, json=body)
    assert refused.status_code == 400
    assert "256 tokens" in refused.text
    assert client.post(path, json={**body, **fields}).status_code == 200


def test_the_wrong_kind_of_model_is_reported(client: httpx.Client) -> None:
    for path, body, text in (
        ("/rerank", {"query": "a", "documents": ["b"], "model": "bert"}, "no classifier"),
        ("/score", {"text_1": "a", "text_2": "b", "model": "bert"}, "no classifier"),
        ("/classify", {"input": "a", "model": "bert"}, "no classifier"),
        ("/v1/embeddings", {"input": "a", "model": "bert-rank"}, "use classify"),
        (
            "/rerank",
            {"query": "a", "documents": ["b"], "model": "bert-rank", "instruction": "c"},
            "no template",
        ),
    ):
        response = client.post(path, json=body)
        assert response.status_code in (400, 501)
        assert text in response.text, path


# Tests without a model


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/score", {"text_1": "a"}, "text_2"), ("/score", {"text_2": "a"}, "text_1"),
        ("/score", {"text_1": "a", "queries": "b", "text_2": "c"}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"), ("/score", {"text_1": "a", "text_2": "b", "n": 1}, "n"),
        ("/classify", {}, "input"), ("/classify", {"input": "a", "inputs": "b"}, "input"),
        ("/predict", {"inputs": ["a", "b", "c"]}, "inputs"), ("/predict", {"inputs": [["a"], "b"]}, "inputs"),
        ("/predict", {"inputs": ["a", ["b"]]}, "inputs"), ("/predict", {"inputs": [["a", "b", "c"]]}, "inputs"),
        ("/embed", {}, "inputs"), ("/embed", {"inputs": "a", "truncate": "MIDDLE"}, "truncate"),
        ("/embed_all", {"inputs": []}, "inputs"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "a", "pooling": "max"}, "pooling"),
        ("/rerank", {"query": "a", "documents": ["b"], "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_invalid_fields_are_named(path: str, body: dict[str, Any], name: str) -> None:
    expect_refusal(path, body, name)


@pytest.mark.parametrize(
    ("fields", "rules"),
    [
        ({}, TextRules()), ({"truncate": True}, TextRules(True)), ({"truncate": "NONE"}, TextRules()),
        ({"truncate": "START"}, TextRules(True, "left")), ({"truncation": True}, TextRules(True)),
        ({"truncate_prompt_tokens": -1}, TextRules(True)), ({"truncate_prompt_tokens": 7}, TextRules(7)),
        ({"truncate_prompt_tokens": 7, "truncation_side": "left"}, TextRules(7, "left")),
        ({"truncate": True, "truncation_direction": "Left"}, TextRules(True, "left")),
        ({"prompt_name": "query"}, TextRules(prompt_name="query")),
        ({"input_type": "passage"}, TextRules(input_type="passage")),
    ],
)  # fmt: skip
def test_truncation_fields(fields: dict[str, Any], rules: TextRules) -> None:
    engine = FakeEngine()
    assert post("/v1/embeddings", {"input": "x", **fields}, engine=engine).status_code == 200
    (work,) = engine.asked
    assert isinstance(work, Embed)
    assert work.rules == rules
    if "prompt_name" not in fields and "input_type" not in fields:
        engine = FakeEngine()
        post("/rerank", {"query": "x", "documents": ["y"], **fields}, engine=engine)
        (scored,) = engine.asked
        assert isinstance(scored, Score)
        assert scored.rules == rules
