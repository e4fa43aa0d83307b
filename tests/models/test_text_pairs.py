"""Pairs of texts, and texts that are too long, through LLM.  Oracle: transformers' classes and Hugging Face's tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quire._native.engine import Decoder, DecoderConfig, FakeExecutor, Request, VocabInfo
from quire.convert import convert
from quire.engine import LLM
from quire.engine.texts import TextOptions, shares
from quire.errors import RequestError, UnsupportedError
from tiny_checkpoints import write_checkpoint
from word_pieces import write_word_pieces

Array = npt.NDArray[np.float32]
QUERY = "Where is the fox?"
DOCUMENTS = ["In the forests.", "a red ball, 7 of them!", "", "the lighthouse " * 12]


class CrossEncoder:
    """transformers' model with its tokenizer."""

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
    with LLM(path, threads=2, kernels=kernels) as model:
        assert near(model.rerank(QUERY, DOCUMENTS), expected[:, 0])
        found = model.classify([*((QUERY, one) for one in DOCUMENTS), QUERY])
        assert near(found, softmax(np.stack([*expected, oracle.scores(QUERY)])))
        # Types matter here, and a tuple by itself is two prompts.
        joined = model.tokenizer.encode_pair(QUERY, DOCUMENTS[0]).token_ids
        assert not near(model.classify(joined), softmax(expected[:1]))
        assert model.classify((QUERY, DOCUMENTS[0])).shape == (2, 3)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("limit", [4, 9, 16, 31, 64])
def test_texts_are_cut_as_hugging_face_does_it(folder: Path, limit: int, side: str) -> None:
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


def test_nothing_is_cut_unless_that_is_asked_for(folder: Path) -> None:
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
            with pytest.raises(RequestError, match="must be 1 to 256"):
                model.classify(long, truncate=wrong)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="room for the 3 tokens"):
            model.rerank(QUERY, [long], truncate=2)


def test_shares_are_hugging_faces() -> None:
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


def test_pairs_that_the_decoder_refuses(folder: Path) -> None:
    decoder = Decoder(FakeExecutor(), VocabInfo(64, [], [b""] * 64), DecoderConfig(n_ctx=32))
    try:
        with pytest.raises(UnsupportedError, match="must have types of tokens"):
            decoder.submit(Request([1, 2], prompt_logits=True, second_text=1))
    finally:
        decoder.close()
    with LLM(folder, threads=1) as model:
        engine = model._engine._decoder
        assert engine is not None
        for position in (0, -1, 4):
            with pytest.raises(RequestError, match="second_text must be 1 to 3"):
                engine.submit(Request([1, 2, 3], embedding="cls", second_text=position))
        with pytest.raises(RequestError, match="must come with embedding"):
            engine.submit(Request([1, 2, 3], prompt_logits=True, second_text=1))
