"""The streaming decoder against Python's UTF-8 decoder."""

from __future__ import annotations

import codecs
import random
from pathlib import Path

import pytest
from quire.errors import RequestError
from quire.tokenizer import Detokenizer, Tokenizer
from token_texts import random_texts

BYTES = [bytes([byte]) for byte in range(256)]


def test_every_cut_of_random_bytes_decodes_like_the_whole() -> None:
    rng = random.Random(1)
    pool = [0x00, 0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xE4, 0xED, 0xA0, 0xEF, 0xF0, 0x90, 0xF4, 0xF5, 0xFF]
    for _ in range(5000):
        data = bytes(rng.choice(pool) for _ in range(rng.randint(0, 12)))
        detokenizer = Detokenizer(BYTES)
        oracle = codecs.getincrementaldecoder("utf-8")("replace")
        parts = []
        for byte in data:
            parts.append(detokenizer.push(byte))
            assert parts[-1] == oracle.decode(bytes([byte]))
            assert detokenizer.n_pending <= 3
        assert "".join(parts) + detokenizer.finish() == data.decode("utf-8", "replace")
        assert detokenizer.n_pending == 0


def test_no_part_of_a_character_is_shown() -> None:
    text = "a é 例 😶‍🌫️ ✅ end"
    detokenizer = Detokenizer(BYTES)
    shown = "".join(detokenizer.push(byte) for byte in text.encode())
    assert shown == text
    assert "\ufffd" not in shown
    assert detokenizer.push(0xE4) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.push(0x41) == "A"


def test_stream_equals_decode(shared: Path) -> None:
    folder = shared / "models" / "tiny-chat"
    if not folder.exists():
        pytest.skip(f"shared test data is absent: {folder}")
    tokenizer = Tokenizer.from_pretrained(folder)
    rng = random.Random(2)
    for text in random_texts(500, seed=7):
        for ids in (
            tokenizer.encode(text, parse_special=True),
            [rng.randrange(tokenizer.n_vocab) for _ in range(20)],
        ):
            for skip_special in (True, False):
                detokenizer = tokenizer.detokenizer(skip_special)
                shown = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
                assert shown == tokenizer.decode(ids, skip_special)


def test_ids_outside_the_table_are_refused() -> None:
    detokenizer = Detokenizer(BYTES)
    for id in (256, -1):
        with pytest.raises(RequestError, match="256"):
            detokenizer.push(id)
