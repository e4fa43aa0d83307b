"""PLaMo's tokenizer against the published search in plain Python, from files and folders."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from quire.errors import LoadError
from quire.tokenizer import Tokenizer
from quire.tokenizer.from_gguf import vocabulary_of_metadata
from quire.tokenizer.from_pretrained import read_pretrained
from token_texts import random_texts

MARKS = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", "<|plamo:op|>"]
UNKNOWN_COST = 10_000_000


@cache
def entries() -> list[tuple[str, float, str]]:
    """Pieces of random texts whose scores have many ties."""
    rng = random.Random(31)
    pieces = dict.fromkeys("the andofing.,")
    for text in random_texts(300, seed=31):
        for _ in range(3 if text else 0):
            begin = rng.randrange(len(text))
            pieces[text[begin : begin + rng.randint(1, 6)]] = None
    marks = [(text, 0.0, "UNKNOWN" if i == 0 else "CONTROL") for i, text in enumerate(MARKS)]
    scored = [(text, -rng.randrange(2, 40) / 4, "NORMAL") for text in pieces if "\ufeff" not in text]
    bytes_of = [(f"<0x{byte:02X}>", 0.0, "BYTE") for byte in range(256)]
    return marks + scored + [("never", -3000.0, "NORMAL")] + bytes_of


def metadata() -> dict[str, object]:
    kinds = {"NORMAL": 1, "UNKNOWN": 2, "CONTROL": 3, "BYTE": 6}
    return {
        "tokenizer.ggml.model": "plamo2",
        "tokenizer.ggml.tokens": [text for text, _, _ in entries()],
        "tokenizer.ggml.scores": [score for _, score, _ in entries()],
        "tokenizer.ggml.token_type": [kinds[kind] for _, _, kind in entries()],
        "tokenizer.ggml.eot_token_id": 4,
    }


@cache
def tables() -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids and the costs of the pieces."""
    ids = {text: i for i, (text, _, kind) in enumerate(entries()) if kind == "NORMAL"}
    return ids, {text: -round(np.float32(score) * 1e4) for text, score, _ in entries()}


def searched(text: str) -> list[int]:
    """The published recurrence: costs of the rest of the text, the longest token first."""
    ids, costs = tables()
    first_byte = len(entries()) - 256
    text = text.removeprefix("\ufeff")
    best: list[tuple[float, int]] = [(0, 0)]  # cost and length of the first token, from the end
    for at in range(len(text) - 1, -1, -1):
        found = (float("inf"), 0)
        for n in range(min(8, len(text) - at), 0, -1):
            piece = text[at : at + n]
            if piece in ids and costs[piece] < 2 * UNKNOWN_COST:
                found = min(found, (best[-n][0] + costs[piece], n), key=lambda one: one[0])
        best.append(min(found, (best[-1][0] + UNKNOWN_COST, -1), key=lambda one: one[0]))
    out, at = [], 0
    while at < len(text):
        n = best[len(text) - at][1]
        piece = text[at : at + abs(n)]
        out += [ids[piece]] if n > 0 else [first_byte + byte for byte in piece.encode()]
        at += abs(n)
    return out


def test_ids_are_those_of_the_published_search() -> None:
    tokenizer = Tokenizer(vocabulary_of_metadata(metadata()))
    texts = [*random_texts(800, seed=32), "\ufeffthe", "a never b", "\u2581 the \u4e00\U0001f600", *MARKS]
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == searched(text), ascii(text)
        assert tokenizer.decode(ids) == text.removeprefix("\ufeff")
    assert tokenizer.encode(b"a\x80\xffthe")  # invalid UTF-8
    assert tokenizer.encode(MARKS[1] + "the", parse_special=True)[0] == 1
    assert tokenizer.encode(MARKS[1])[0] != 1


def test_folders_have_a_line_for_each_token(tmp_path: Path) -> None:
    lines = [json.dumps([text, score, kind, 0, 0, 0, 0], ensure_ascii=False) for text, score, kind in entries()]
    (tmp_path / "tokenizer.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = {f"{name}_token": MARKS[i] for i, name in enumerate(("unk", "bos", "eos", "pad"))}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    vocabulary = read_pretrained(tmp_path)
    assert vocabulary.special_ids["eot"] == 4
    tokenizer, of_file = Tokenizer(vocabulary), Tokenizer(vocabulary_of_metadata(vocabulary.gguf_metadata()))
    for text in random_texts(40, seed=33):
        assert tokenizer.encode(text) == of_file.encode(text) == [1, *searched(text)]
    plain = {**config, "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(plain))
    assert Tokenizer(read_pretrained(tmp_path)).encode("the") == searched("the")


@pytest.mark.parametrize("line", ["{", "3", "[]", '["a"]', '[1, 2, "NORMAL"]', '["a", "b"]', '["a", NaN]', "[" * 9999])
def test_broken_lines_are_rejected_by_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "tokenizer.jsonl").write_text('["a", -1, "NORMAL"]\n\n' + line)
    with pytest.raises(LoadError, match="line 3"):
        read_pretrained(tmp_path)
