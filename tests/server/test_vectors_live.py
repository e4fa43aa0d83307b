"""Routes for vectors of other kinds, in fewer bits, and tags.  Oracle: LLM, which is compared with transformers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import quire
from quire.checkpoints.conversion import convert
from quire.cli.main import main
from quire.engine import LLM
from quire.errors import RequestError
from served import served
from tiny_checkpoints import write_checkpoint, write_safetensors

Array = npt.NDArray[np.float32]
TEXTS = ["Where is the fox?", "In the forest."]


def random(*shape: int) -> Array:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) / 8).astype(np.float32)


def write_three_kinds(folder: Path) -> Path:
    """Write a model with dense, sparse and token vectors, like BGE-M3."""
    write_checkpoint(folder, "roberta")
    write_safetensors(folder / "sparse_linear.safetensors", {"weight": random(1, 64), "bias": random(1)})
    write_safetensors(folder / "colbert_linear.safetensors", {"weight": random(48, 64), "bias": random(48)})
    prompts = {"prompts": {"query": "q: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    convert(folder, folder / "three.gguf", "f32")
    return folder / "three.gguf"


def near(found: object, expected: Array) -> bool:
    return bool(np.abs(np.array(found, np.float32) - expected).max() <= 1e-3 * np.abs(expected).max())


def test_vectors_in_every_format(tmp_path: Path) -> None:
    path = write_three_kinds(tmp_path / "three")
    write_checkpoint(tmp_path / "tags", "mpnet-tokens")
    convert(tmp_path / "tags", tmp_path / "tags.gguf", "f32")
    with LLM(path, threads=1) as llm, LLM(tmp_path / "tags.gguf", threads=1) as tagger:
        dense, short = llm.embed(TEXTS), llm.embed(TEXTS, dimensions=16)
        queried = llm.embed(TEXTS, prompt_name="query")
        sparse, multi = llm.encode(TEXTS, output="sparse"), llm.encode(TEXTS, output="multi")
        ranks, states = llm.rerank(TEXTS[0], TEXTS), llm.embed_tokens(TEXTS[0])[0]
        entities, classes = tagger.tag(TEXTS[0])[0], tagger.classify_tokens(TEXTS[0])[0]
        with pytest.raises(RequestError, match="dimensions 65"):
            llm.embed(TEXTS, dimensions=65)
    assert near(short, dense[:, :16] / np.linalg.norm(dense[:, :16], axis=1, keepdims=True))
    with served(tmp_path, [str(path)]) as server, server.client() as client:
        for kind in ("int8", "uint8", "binary", "ubinary"):
            expected = quire.quantize_embeddings(dense, kind)  # type: ignore[arg-type]
            for body in ({"encoding_format": kind}, {"output_dtype": kind}):
                data = client.post("/v1/embeddings", json={"input": TEXTS, **body}).json()["data"]
                found = np.array([item["embedding"] for item in data])
                assert np.abs(found - expected).max() <= (0 if "binary" in kind else 1)
        body = {"input": TEXTS[0], "encoding_format": "base64", "output_dtype": "ubinary", "output_dimension": 16}
        (item,) = client.post("/v1/embeddings", json=body).json()["data"]
        assert base64.b64decode(item["embedding"]) == np.packbits(dense[0, :16] > 0).tobytes()
        kinds = ["float", "ubinary", "base64"]
        body = {"texts": TEXTS, "input_type": "search_query", "embedding_types": kinds, "model": "three"}
        made = client.post("/v2/embed", json=body).json()
        assert made["texts"] == TEXTS
        assert list(made["embeddings"]) == kinds
        assert near(made["embeddings"]["float"], queried)
        assert made["embeddings"]["ubinary"] == np.packbits(queried > 0, axis=1).tolist()
        assert near(np.frombuffer(base64.b64decode(made["embeddings"]["base64"][0]), "<f4"), queried[0])
        assert made["meta"]["billed_units"]["input_tokens"] > 0
        for text in ("classification", "clustering"):
            assert client.post("/v2/embed", json={"texts": TEXTS, "input_type": text}).status_code == 200
        answer = client.post("/embed_sparse", json={"inputs": TEXTS}).json()
        for entries, vector in zip(answer, sparse, strict=True):
            assert {entry["index"]: entry["value"] for entry in entries} == pytest.approx(vector.as_dict(), rel=1e-3)
        (pooled,) = client.post("/pooling", json={"input": TEXTS[0]}).json()["data"]
        assert near(pooled["data"], dense[0])
        (tokens,) = client.post("/pooling", json={"input": TEXTS[0], "task": "token_embed"}).json()["data"]
        assert near(tokens["data"], multi[0])
        assert client.post("/pooling", json={"input": TEXTS[0], "task": "classify"}).status_code in (400, 501)
        ranked = client.post("/rerank", json={"query": TEXTS[0], "documents": TEXTS}).json()["results"]
        assert {item["index"]: item["relevance_score"] for item in ranked} == pytest.approx(
            dict(enumerate(ranks)), rel=1e-3
        )
        tei = client.post("/rerank", json={"query": TEXTS[0], "texts": TEXTS}).json()
        assert {item["index"]: item["score"] for item in tei} == pytest.approx(dict(enumerate(ranks)), rel=1e-3)
        scores = client.post("/score", json={"text_1": TEXTS[0], "text_2": TEXTS}).json()["data"]
        assert [item["score"] for item in scores] == pytest.approx(ranks.tolist(), rel=1e-3)
        refused = client.post("/rerank", json={"query": "x", "documents": ["y"], "instruction": "z"})
        assert (refused.status_code, "instruction" in refused.text) == (400, True)
        sentences = {"source_sentence": TEXTS[0], "sentences": TEXTS}
        found = client.post("/similarity", json={"inputs": sentences}).json()
        assert found == pytest.approx((dense @ dense[0]).tolist(), abs=1e-3)
        assert states.shape[1] == dense.shape[1]
    with served(tmp_path, [str(tmp_path / "tags.gguf")]) as server, server.client() as client:
        found = client.post("/tag", json={"inputs": TEXTS}).json()[0]
        assert [one["word"] for one in found] == [one["word"] for one in entities]
        assert client.post("/tag", json={"inputs": TEXTS[0]}).json() == found
        for task in ({}, {"task": "token_classify"}):
            (pooled,) = client.post("/pooling", json={"input": TEXTS[0], **task}).json()["data"]
            assert near(pooled["data"], classes)
        assert client.post("/v1/embeddings", json={"input": "x"}).status_code in (400, 501)


def test_the_command_prints_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_three_kinds(tmp_path)

    def printed(*options: str) -> list[Any]:
        assert main(("embed", str(path), "-p", TEXTS[0], *options, "-t", "1")) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    with LLM(path, threads=1) as llm:
        (sparse,), (multi,) = (llm.encode(TEXTS[:1], output=output) for output in ("sparse", "multi"))  # type: ignore[call-overload]
        dense = llm.embed(TEXTS[:1])
    (found,) = printed("--vectors", "sparse")
    assert {int(id): weight for id, weight in found.items()} == pytest.approx(sparse.as_dict(), rel=1e-3)
    assert near(printed("--vectors", "multi")[0], multi)
    assert printed("--precision", "ubinary", "--dimensions", "16") == np.packbits(dense[:, :16] > 0, axis=1).tolist()
    assert main(("embed", str(path), "-p", "x", "--vectors", "multi", "--json")) == 2


def test_vectors_in_fewer_bits() -> None:
    """Oracle: NumPy's definition of each type, and that rounding keeps cosines."""
    vectors = np.random.default_rng(3).standard_normal((5, 20)).astype(np.float32)
    packed = quire.quantize_embeddings(vectors, "ubinary")
    assert (np.unpackbits(packed, axis=1)[:, :20] == (vectors > 0)).all()
    assert (quire.quantize_embeddings(vectors, "binary") == packed.astype(int) - 128).all()
    whole = quire.quantize_embeddings(vectors, "int8")
    assert (whole.dtype, whole.min(axis=1).min() >= -127, np.abs(whole.astype(int)).max()) == (np.int8, True, 127)
    assert (quire.quantize_embeddings(vectors, "uint8") == whole.astype(int) + 128).all()
    products = (
        (whole * vectors).sum(axis=1) / np.linalg.norm(whole.astype(float), axis=1) / np.linalg.norm(vectors, axis=1)
    )
    assert products.min() > 0.9999
    assert (quire.quantize_embeddings(np.zeros(8), "int8") == 0).all()
    with pytest.raises(RequestError, match="'int4'"):
        quire.quantize_embeddings(vectors, "int4")  # type: ignore[arg-type]
