"""Ids against published ones (llama.cpp's test data) and Hugging Face `tokenizers` on random texts."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from quire.tokenizer import Normalization, Tokenizer, TokenKind
from token_texts import random_texts
from tokenizers import models, pre_tokenizers

VOCABULARIES = ["gpt-2", "llama-bpe", "qwen2", "starcoder", "mpt", "llama-spm", "phi-3", "bert-bge"]


@cache
def of_gguf(path: Path) -> Tokenizer:
    if not path.exists():
        pytest.skip(f"shared test data is absent: {path}")
    return Tokenizer.from_gguf(path)


@cache
def rebuilt(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Make Hugging Face's tokenizer with this vocabulary, merges and expression."""
    vocabulary = tokenizer.vocabulary
    words = {text: id for id, text in enumerate(vocabulary.texts) if vocabulary.kinds[id] == TokenKind.NORMAL}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    oracle = tokenizers.Tokenizer(
        models.BPE(words, merges, ignore_merges=vocabulary.pre_tokenizer.ignore_merges)  # type: ignore[arg-type]
    )
    splits = [
        pre_tokenizers.Split(tokenizers.Regex(step.expression), "isolated") for step in vocabulary.pre_tokenizer.passes
    ]
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return oracle


@pytest.mark.parametrize("name", VOCABULARIES)
def test_published_ids(shared: Path, name: str) -> None:
    base = shared / "vocab" / f"ggml-vocab-{name}.gguf"
    tokenizer = of_gguf(base)
    texts = base.with_suffix(".gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = base.with_suffix(".gguf.out").read_text().split("\n")
    assert len(texts) == len(lines) > 40
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == [int(id) for id in line.split()]
        if name != "bert-bge":  # which lowercases letters and merges spaces
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "starcoder"])
def test_random_texts_equal_hugging_face(shared: Path, name: str) -> None:
    tokenizer = of_gguf(shared / "vocab" / f"ggml-vocab-{name}.gguf")
    oracle = rebuilt(tokenizer)
    texts = list(random_texts(3000, seed=2))
    expected = oracle.encode_batch_fast(texts, add_special_tokens=False)
    for text, want in zip(texts, expected, strict=True):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == want.ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe"])
def test_long_words_equal_hugging_face(shared: Path, name: str) -> None:
    """Words longer than the limit at which merging switches from arrays to a queue."""
    tokenizer = of_gguf(shared / "vocab" / f"ggml-vocab-{name}.gguf")
    oracle = rebuilt(tokenizer)
    for text in itertools.chain(
        ["a" * 5000, "ab" * 3000, " " * 4000, "=" * 999, "é" * 700, "一二三" * 500, "\n" * 300],
        ("".join(text.split()) for text in random_texts(200, seed=3, longest=60)),
    ):
        assert tokenizer.encode(text, add_special=False) == oracle.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2"])
def test_control_tokens_equal_hugging_face(shared: Path, name: str) -> None:
    tokenizer = of_gguf(shared / "vocab" / f"ggml-vocab-{name}.gguf")
    oracle = rebuilt(tokenizer)
    controls = sorted(tokenizer.control_tokens, key=tokenizer.control_tokens.__getitem__)
    oracle.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in controls])
    assert all(oracle.token_to_id(text) == id for text, id in tokenizer.control_tokens.items())
    found = 0
    for text in random_texts(3000, seed=4):
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        assert ids == oracle.encode(text, add_special_tokens=False).ids
        found += sum(map(tokenizer.is_control, ids))
        assert not any(map(tokenizer.is_control, tokenizer.encode(text, add_special=False)))
    assert found > 300


def test_checkpoint_folder_equals_its_tokenizer_json(shared: Path) -> None:
    folder = shared / "models" / "tiny-chat"
    if not folder.exists():
        pytest.skip(f"shared test data is absent: {folder}")
    tokenizer = Tokenizer.from_pretrained(folder)
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.n_vocab == oracle.get_vocab_size()
    assert tokenizer.vocabulary.normalization is Normalization.NONE
    for text in random_texts(6000, seed=5):
        ids = tokenizer.encode(text, parse_special=True)
        assert ids == oracle.encode(text).ids
        assert tokenizer.decode(ids, skip_special=False) == text == oracle.decode(ids, skip_special_tokens=False)
        assert tokenizer.decode(ids) == oracle.decode(ids)


ADDED = [
    {"content": "<a>", "special": True}, {"content": "<a><b>"}, {"content": "word", "single_word": True},
    {"content": "<left>", "lstrip": True, "special": True}, {"content": "<right>", "rstrip": True},
    {"content": "<both>", "lstrip": True, "rstrip": True, "single_word": True}, {"content": "  ", "normalized": True},
    {"content": "Ünï", "normalized": True}, {"content": "U\u0308n", "normalized": False},
    {"content": "ab\u0301c", "normalized": True, "lstrip": True},
]  # fmt: skip


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_added_tokens_equal_hugging_face(tmp_path: Path, shared: Path, normalizer: object) -> None:
    """lstrip, rstrip, single_word and normalized, with and without a normalizer, on a small vocabulary."""
    source = json.loads((shared / "models" / "tiny-chat" / "tokenizer.json").read_text(encoding="utf-8"))
    source["normalizer"] = normalizer
    flags = {"special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    source["added_tokens"] = [flags | entry | {"id": 4096 + i} for i, entry in enumerate(ADDED)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(source), encoding="utf-8")
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    oracle = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    parts = [str(entry["content"]) for entry in ADDED] + [" ", "\u00a0", "x", "_", "é", "e\u0301", "U\u0308", "\n", "1"]
    rng = random.Random(6)
    for _ in range(4000):
        text = "".join(rng.choice(parts) for _ in range(rng.randint(1, 9)))
        assert tokenizer.encode(text, parse_special=True) == oracle.encode(text).ids, text
