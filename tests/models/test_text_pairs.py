"""Pairs of texts, and texts that are too long, through LLM.  Oracle: transformers' classes and Hugging Face's tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import threads_of
from quire._native.engine import Decoder, DecoderConfig, Request, VocabInfo
from quire._native.testing import FakeExecutor
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.engine.requests.texts import TextOptions, shares
from quire.errors import LoadError, RequestError, UnsupportedError
from tiny_checkpoints import shapes_of, write_checkpoint
from word_pieces import write_word_pieces

Array = npt.NDArray[np.float32]
QUERY = "Where is the fox?"
DOCUMENTS = ["In the forests.", "a red ball, 7 of them!", "", "the lighthouse " * 12]


class CrossEncoder:
    """Transformers' model with its tokenizer."""

    def __init__(self, folder: Path) -> None:
        transformers = pytest.importorskip("transformers", reason="needs transformers")
        tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
        self.model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def scores(self, *texts: str) -> Array:
        torch = pytest.importorskip("torch", reason="needs torch")
        made = self.tokenizer.encode(*texts)
        with torch.no_grad():
            rows = torch.tensor([made.ids]), torch.tensor([made.type_ids])
            logits: Array = self.model(rows[0], token_type_ids=rows[1]).logits[0].numpy()
        return logits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cross") / "bert"
    write_checkpoint(made, "bert-rank")
    write_word_pieces(made)
    return made


def near(found: Array, expected: Array) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max())


def softmax(rows: Array) -> Array:
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    made: Array = powers / powers.sum(axis=-1, keepdims=True)
    return made


@pytest.mark.parametrize("kernels", ["stock", "auto"])
@pytest.mark.parametrize("is_file", [False, True])
def test_the_second_text_has_a_type_of_its_own(folder: Path, tmp_path: Path, kernels: Any, is_file: bool) -> None:
    oracle = CrossEncoder(folder)
    expected = np.stack([oracle.scores(QUERY, document) for document in DOCUMENTS])
    path = folder
    if is_file:
        path = tmp_path / "bert.gguf"
        convert(folder, path, "f32")
    with LLM(path, threads=threads_of(kernels), kernels=kernels) as model:
        assert near(model.rerank(QUERY, DOCUMENTS), expected[:, 0])
        found = model.classify([*((QUERY, one) for one in DOCUMENTS), QUERY])
        assert near(found, softmax(np.stack([*expected, oracle.scores(QUERY)])))
        # The types matter: a tuple by itself is two prompts.
        joined = model.tokenizer.encode_pair(QUERY, DOCUMENTS[0]).token_ids
        assert not near(model.classify(joined), softmax(expected[:1]))
        assert model.classify((QUERY, DOCUMENTS[0])).shape == (2, 3)


@pytest.mark.parametrize(
    ("problem", "n_classes"),
    [(None, 1), (None, 3), ("single_label_classification", 3), ("multi_label_classification", 3),
     ("multi_label_classification", 1), ("regression", 1), ("regression", 3)],
)  # fmt: skip
def test_scores_become_what_transformers_pipeline_shows(tmp_path: Path, problem: str | None, n_classes: int) -> None:
    """From a folder and from a file; in Python and in the server."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    folder, file = tmp_path / "bert", tmp_path / "bert.gguf"
    labels = {str(i): f"class {i}" for i in range(n_classes)}
    write_checkpoint(
        folder,
        "bert-rank",
        {**shapes_of("bert-rank"), "classifier.weight": [n_classes, 72], "classifier.bias": [n_classes]},
    )
    write_word_pieces(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"problem_type": problem, "id2label": labels, "label2id": {name: int(i) for i, name in labels.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    words = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    oracle = transformers.BertForSequenceClassification.from_pretrained(folder)
    pipeline = transformers.TextClassificationPipeline(model=oracle, tokenizer=words, top_k=None)
    expected = []
    for classes in pipeline([QUERY, DOCUMENTS[1]]):
        by_label = {one["label"]: one["score"] for one in classes}
        expected.append([by_label[name] for name in labels.values()])
    convert(folder, file, "f32")
    for path in (folder, file):
        with LLM(path, threads=1) as model:
            assert near(model.classify([QUERY, DOCUMENTS[1]]), np.array(expected, np.float32))
            scores = model.classify([QUERY, DOCUMENTS[1]], raw_scores=True)
            assert near(scores, np.array(expected, np.float32)) == (problem == "regression")
            assert model._class_values(scores[0])["shown"] == pytest.approx(expected[0], rel=5e-3)


def test_unknown_problem_types_are_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a", "bert-rank")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    for fields, words in (
        ({"problem_type": "ranking"}, "'problem_type' of config.json: 'ranking'"),
        (
            {"problem_type": "single_label_classification", "id2label": {"0": "a"}},
            "single_label_classification of config.json",
        ),
    ):
        (tmp_path / "a" / "config.json").write_text(json.dumps({**config, **fields}))
        with pytest.raises(UnsupportedError, match=words):
            convert(tmp_path / "a", tmp_path / "x.gguf")
    (tmp_path / "a" / "config.json").write_text(json.dumps({**config, "problem_type": "regression"}))
    convert(tmp_path / "a", tmp_path / "x.gguf")
    changed = (tmp_path / "x.gguf").read_bytes().replace(b"regression", b"regressiom")
    (tmp_path / "x.gguf").write_bytes(changed)
    with pytest.raises(LoadError, match=r"regressiom.*classifier.problem_type"):
        LLM(tmp_path / "x.gguf")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("limit", [4, 9, 16, 31, 64])
def test_texts_are_truncated_as_by_hugging_face(folder: Path, limit: int, side: str) -> None:
    oracle = CrossEncoder(folder).tokenizer
    oracle.enable_truncation(limit, direction=side)
    options = TextOptions(truncate=limit, side=side)  # type: ignore[arg-type]
    with LLM(folder, threads=1) as model:
        for text in (QUERY, DOCUMENTS[3]):
            assert model._texts.single(text, options) == oracle.encode(text).ids
            for first, second in ((QUERY, text), (text, QUERY)):
                made = oracle.encode(first, second)
                pair = model._texts.pair(first, second, options)
                assert pair.token_ids == made.ids
                assert pair.second_text == made.type_ids.index(1)


def test_texts_are_truncated_only_on_request(folder: Path) -> None:
    long = "fox " * 400
    oracle = CrossEncoder(folder)
    oracle.tokenizer.enable_truncation(256)
    with LLM(folder, threads=2) as model:
        for call in (lambda: model.classify(long), lambda: model.rerank(QUERY, ["fox", long])):
            with pytest.raises(RequestError, match="context of 256"):
                call()
        cut = softmax(np.stack([oracle.scores(long), oracle.scores(QUERY, long)]))
        assert near(model.classify([long, (QUERY, long)], truncate=True), cut)
        for wrong in (0, -1, 257, "x"):
            with pytest.raises(RequestError, match="expected 1 to 256"):
                model.classify(long, truncate=wrong)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=r"2 tokens are too few.* 3"):
            model.rerank(QUERY, [long], truncate=2)


def test_truncation_of_pairs_equals_hugging_face() -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for room in (1, 2, 5, 6, 9):
        plain.enable_truncation(room)
        for n_one in range(9):
            for n_other in range(9):
                if n_one + n_other > room:
                    ids = plain.encode("a " * n_one, "b " * n_other).ids
                    assert shares(n_one, n_other, room) == (ids.count(0), ids.count(1)), (n_one, n_other, room)


def test_pairs_that_the_decoder_rejects(folder: Path) -> None:
    decoder = Decoder(FakeExecutor(), VocabInfo(64, [], [b""] * 64), DecoderConfig(n_ctx=32))
    try:
        with pytest.raises(UnsupportedError, match="no token types"):
            decoder.submit(Request([1, 2], prompt_logits=True, second_text=1))
    finally:
        decoder.close()
    with LLM(folder, threads=1) as model:
        engine = model._engine._decoder
        assert engine is not None
        for position in (0, -1, 4):
            with pytest.raises(RequestError, match=r"second_text is .*: expected 1 to 3"):
                engine.submit(Request([1, 2, 3], embedding="cls", second_text=position))
        with pytest.raises(RequestError, match="second_text needs embedding"):
            engine.submit(Request([1, 2, 3], prompt_logits=True, second_text=1))
