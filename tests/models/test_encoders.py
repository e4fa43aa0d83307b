"""Encoders through LLM and the server.  Oracle: transformers' stored answers, pooled in NumPy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import threads_of
from quire.checkpoints.conversion import convert
from quire.engine import LLM, AsyncLLM
from quire.errors import CapacityError, RequestError, UnsupportedError
from served import served
from tiny_checkpoints import REFERENCES, write_checkpoint, write_reranker

Array = npt.NDArray[np.float32]


def converted(folder: Path, name: str) -> Path:
    write_checkpoint(folder / name, name)
    convert(folder / name, folder / f"{name}.gguf", "f32")
    return folder / f"{name}.gguf"


def reference(name: str) -> tuple[list[int], Array]:
    with np.load(REFERENCES / f"{name}.npz") as stored:
        return stored["prompt"].tolist(), stored["logits"]


@pytest.fixture(scope="module", params=["stock", "auto"])
def bert(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = converted(tmp_path_factory.mktemp("bert"), "bert")
    with LLM(path, threads=threads_of(request.param), kernels=request.param) as model:
        yield model


def near(found: Array, expected: Array) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max())


def test_poolings_are_of_transformers_vectors(bert: LLM) -> None:
    ids, vectors = reference("bert")
    assert near(bert.embed_tokens(ids)[0], vectors)
    for pooling, expected in (("mean", vectors.mean(axis=0)), ("cls", vectors[0]), ("last", vectors[-1])):
        (found,) = bert.embed(ids, pooling=pooling, normalize=False)  # type: ignore[arg-type]
        assert near(found, expected), pooling
    assert near(bert.embed(ids), bert.embed(ids, pooling="mean"))  # the default without a key
    assert np.linalg.norm(bert.embed(ids)[0]) == pytest.approx(1.0, abs=1e-5)


def test_texts_of_one_batch_do_not_see_each_other(bert: LLM) -> None:
    ids, _ = reference("bert")
    texts = [ids[i : i + 1 + 5 * i % 31] for i in range(24)]
    for _ in range(5):  # on a busy machine, each text may be computed before the next one arrives
        steps = bert.stats().n_steps
        batch = bert.embed(texts, normalize=False)
        if bert.stats().n_steps - steps < len(texts):
            break
    else:
        pytest.fail("no texts shared a step")
    for text, vector in zip(texts, batch, strict=True):
        assert near(vector, bert.embed(text, normalize=False)[0])


def test_a_whole_context_fits_and_no_more(bert: LLM) -> None:
    assert bert.n_ctx == 256
    assert np.isfinite(bert.embed([list(range(256))])).all()
    with pytest.raises(RequestError, match="context of 256"):
        bert.embed([[7] * 257])


def test_an_encoder_generates_nothing(bert: LLM) -> None:
    assert bert.is_encoder
    with pytest.raises(UnsupportedError, match="is an encoder"):
        bert.generate("text")
    with pytest.raises(UnsupportedError, match="is an encoder"):
        bert.logits([1, 2, 3])
    with pytest.raises(UnsupportedError, match="no classifier"):
        bert.classify("text")
    with pytest.raises(RequestError, match="embed_tokens"):
        bert.embed("text", pooling="none")


def test_invalid_sizes_of_encoders_are_rejected(tmp_path: Path) -> None:
    path = converted(tmp_path, "bert")
    with pytest.raises(CapacityError, match=r"max_step_tokens .* n_ctx"):
        LLM(path, n_ctx=128, max_step_tokens=64)
    with LLM(path, max_step_tokens=64) as small:
        assert small.n_ctx == 64


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_context_beyond_a_models_positions_is_shortened_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    write_checkpoint(tmp_path / name, name)
    with LLM(tmp_path / name, threads=1) as usual:
        n_ctx = usual.n_ctx
    assert caplog.records == []
    with LLM(tmp_path / name, threads=1, n_ctx=100_000) as model:
        assert model.n_ctx == n_ctx == model.n_ctx_train
    (said,) = [record.getMessage() for record in caplog.records]
    assert all(word in said for word in ("100000", str(n_ctx), f" {name}:"))


def test_class_scores(tmp_path: Path) -> None:
    ids, scores = reference("bert-rank")
    expected = np.exp(scores) / np.exp(scores).sum()
    with LLM(converted(tmp_path, "bert-rank"), threads=2) as model:
        assert model.labels == ("no", "yes", "maybe")
        assert near(model.classify(ids)[0], expected)
        with pytest.raises(UnsupportedError, match="use classify"):
            model.embed(ids)


QUERY, DOCUMENTS = "Where is the fox?", ["In the forest.", "A red ball", "", "The old lighthouse " * 8]


def test_a_query_with_documents(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    folder = tmp_path / "xlm"
    write_reranker(folder)
    oracle = transformers.XLMRobertaForSequenceClassification.from_pretrained(folder).eval()
    pairs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    with torch.no_grad():
        ids = [pairs.encode(QUERY, document).ids for document in DOCUMENTS]
        expected = np.array([float(oracle(torch.tensor([row])).logits[0, 0]) for row in ids])
    with LLM(folder, threads=2) as model:
        assert near(model.rerank(QUERY, DOCUMENTS), expected)


def test_both_front_ends_give_the_same(tmp_path: Path) -> None:
    ids, vectors = reference("roberta")
    path = converted(tmp_path, "roberta")

    async def asked() -> tuple[Array, list[Array]]:
        async with AsyncLLM(path, threads=2) as model:
            return await model.embed(ids, pooling="cls", normalize=False), await model.embed_tokens([ids])

    (vector,), (tokens,) = asyncio.run(asked())
    assert near(vector, vectors[0])
    assert near(tokens, vectors)


@pytest.mark.parametrize(
    ("pooling", "row"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, slice(0, 1)),
        (
            {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False},
            slice(40),
        ),
        ({"pooling_mode": "lasttoken"}, slice(-1, None)),
    ],
)
def test_pooling_of_sentence_transformers(tmp_path: Path, pooling: dict[str, object], row: slice) -> None:
    ids, vectors = reference("bert")
    write_checkpoint(tmp_path, "bert")
    modules = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 80, **pooling}))
    with LLM(tmp_path, threads=2) as model:
        assert near(model.embed(ids, normalize=False)[0], vectors[row].mean(axis=0))


def test_other_modules_and_poolings_are_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "bert")
    for kind, match in (("Router", "'Router'"), ("Pooling", "weightedmean")):
        (tmp_path / "modules.json").write_text(json.dumps([{"path": "1_Pooling", "type": f"a.{kind}"}]))
        (tmp_path / "1_Pooling").mkdir(exist_ok=True)
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_weightedmean_tokens": True}))
        with pytest.raises(UnsupportedError, match=match):
            convert(tmp_path, tmp_path / "x.gguf", "f32")


def test_vectors_over_http(tmp_path: Path) -> None:
    path = converted(tmp_path, "bert")
    ids, vectors = reference("bert")
    mean = vectors.mean(axis=0)
    with served(tmp_path, [str(path)]) as server, server.client() as client:
        answer = client.post("/v1/embeddings", json={"input": [ids, ids[:7], ids]}).json()
        found = np.array([item["embedding"] for item in answer["data"]], np.float32)
        assert near(found[0], mean / np.linalg.norm(mean))
        assert near(found[0], found[2])
        refused = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
        assert refused.status_code in (400, 501)
        assert "encoder" in refused.json()["error"]["message"]
        assert client.post("/rerank", json={"query": "x", "documents": ["y"]}).status_code in (400, 501)


def test_ranks_over_http(tmp_path: Path) -> None:
    write_reranker(tmp_path / "xlm")
    # sentence-transformers' CrossEncoder saves a model with raw scores like this.
    config = json.loads((tmp_path / "xlm" / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.1.0"}
    (tmp_path / "xlm" / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "xlm", tmp_path / "xlm.gguf", "f32")
    with LLM(tmp_path / "xlm.gguf", threads=1) as model:
        scores = model.rerank(QUERY, DOCUMENTS)
    order = np.argsort(-scores, kind="stable").tolist()
    with served(tmp_path, [str(tmp_path / "xlm.gguf")]) as server, server.client() as client:
        asked = {"query": QUERY, "documents": DOCUMENTS}
        for path in ("/rerank", "/reranking", "/v1/rerank", "/v2/rerank"):
            answer = client.post(path, json={**asked, "top_n": 3, "return_documents": True}).json()
            assert [item["index"] for item in answer["results"]] == order[:3]
            assert answer["results"][0]["document"] == {"text": DOCUMENTS[order[0]]}
            found = np.array([item["relevance_score"] for item in answer["results"]], np.float32)
            assert near(found, scores[order[:3]])
        tei = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "return_text": True}).json()
        assert [item["index"] for item in tei] == order
        assert tei[0]["text"] == DOCUMENTS[order[0]]
        assert near(np.array([item["score"] for item in tei], np.float32), 1 / (1 + np.exp(-scores[order])))
        shown = client.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()["data"]
        assert near(np.array([item["score"] for item in shown], np.float32), scores)
        both = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "documents": DOCUMENTS})
        assert both.status_code == 400
