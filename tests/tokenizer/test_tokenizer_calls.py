"""Tokenizer methods with transformers' names.  Oracles: transformers' documentation, and ``encode`` itself."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from quire import Tokenizer
from quire.engine.loading.loader import packaged_model
from quire.errors import RequestError

TEXTS = ["Once upon a time", "The end"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(packaged_model())


def test_a_call_returns_ids_and_a_mask(tokenizer: Tokenizer) -> None:
    rows = [tokenizer.encode(text) for text in TEXTS]
    one = tokenizer(TEXTS[0])
    assert one == {"input_ids": rows[0], "attention_mask": [1] * len(rows[0])}
    assert one.input_ids == one["input_ids"]
    assert tokenizer(TEXTS)["input_ids"] == rows
    assert tokenizer(TEXTS[0], add_special_tokens=False).input_ids == tokenizer.encode(TEXTS[0], add_special=False)
    name = next(iter(tokenizer.control_tokens))
    assert tokenizer(name, add_special_tokens=False).input_ids == [tokenizer.control_tokens[name]]
    assert tokenizer(TEXTS, truncation=True, max_length=2).input_ids == [row[:2] for row in rows]


def test_arrays_are_padded(tokenizer: Tokenizer) -> None:
    rows = [tokenizer.encode(text) for text in TEXTS]
    made = tokenizer(TEXTS, padding=True, return_tensors="np")
    assert made.input_ids.shape == made.attention_mask.shape == (2, max(map(len, rows)))
    for row, ids, mask in zip(rows, made.input_ids, made.attention_mask, strict=True):
        assert ids[mask == 1].tolist() == row
    assert tokenizer(TEXTS, padding="max_length", max_length=20, return_tensors="np").input_ids.shape == (2, 20)
    with pytest.raises(RequestError, match="padding=True"):
        tokenizer(TEXTS, return_tensors="np")
    with pytest.raises(RequestError, match="'tf'"):
        tokenizer(TEXTS, padding=True, return_tensors="tf")


def test_several_sequences_are_decoded(tokenizer: Tokenizer) -> None:
    ids = tokenizer(TEXTS).input_ids
    assert tokenizer.batch_decode(ids) == tokenizer.batch_decode([np.array(row) for row in ids]) == TEXTS
    special = [[next(iter(tokenizer.control_tokens.values())), *ids[0]]]
    assert tokenizer.batch_decode(special, skip_special_tokens=True) == TEXTS[:1]
    assert tokenizer.batch_decode(special, skip_special_tokens=False) != TEXTS[:1]


def test_the_vocabulary_has_every_token(tokenizer: Tokenizer) -> None:
    known = tokenizer.get_vocab()
    assert len(known) == len(tokenizer)
    assert all(known[tokenizer.token_text(id)] == id for id in range(0, len(tokenizer), 97))


def test_a_tokenizer_can_be_pickled_and_copied(tokenizer: Tokenizer) -> None:
    for made in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert isinstance(made, Tokenizer)
        assert [made.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
        assert made.decode(made.encode(TEXTS[0])) == TEXTS[0]
        assert (made.chat_template, made.eog_ids) == (tokenizer.chat_template, tokenizer.eog_ids)


def test_values_that_are_neither_text_nor_ids_are_errors(tokenizer: Tokenizer) -> None:
    for call, given in ((tokenizer, None), (tokenizer.encode, 5), (tokenizer.decode, None), (tokenizer.encode, ["a"])):
        with pytest.raises(RequestError, match="is "):
            call(given)  # type: ignore[operator]
    assert tokenizer.decode(tokenizer.encode("Once")[0]) == "Once"
