"""SentencePiece's families, WordPiece and RWKV's against Hugging Face `tokenizers` and plain Python."""

from __future__ import annotations

import itertools
import random
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from quire.errors import LoadError, QuireError
from quire.tokenizer import Tokenizer, TokenKind
from quire.tokenizer.from_gguf import vocabulary_of_metadata
from token_texts import random_texts
from tokenizers import models, normalizers, pre_tokenizers

SPACE = "\u2581"


def of_gguf(path: Path) -> Tokenizer:
    if not path.exists():
        pytest.skip(f"shared test data is absent: {path}")
    return Tokenizer.from_gguf(path)


def rebuilt_scored(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Convert a SentencePiece byte-pair vocabulary to merges: every way to make a token, by score."""
    vocabulary = tokenizer.vocabulary
    words = {text: id for id, text in enumerate(vocabulary.texts)}
    plain = {text for text, id in words.items() if vocabulary.kinds[id] == TokenKind.NORMAL}
    merges = []
    for text in plain:
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in plain and right in plain:
                merges.append((-vocabulary.scores[words[text]], words[left], words[right], left, right))
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    oracle = tokenizers.Tokenizer(models.BPE(words, pairs, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    oracle.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    return oracle


def rebuilt_word_piece(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    vocabulary = tokenizer.vocabulary
    words = {}
    for id, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True)):
        shown = text[1:] if text.startswith(SPACE) else "##" + text
        words[shown if kind == TokenKind.NORMAL else text] = id
    oracle = tokenizers.Tokenizer(models.WordPiece(words, unk_token="[UNK]", max_input_chars_per_word=100))
    oracle.normalizer = normalizers.BertNormalizer()
    oracle.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return oracle


@pytest.mark.parametrize("name", ["llama-spm", "phi-3"])
def test_scored_pairs_equal_hugging_face(shared: Path, name: str) -> None:
    tokenizer = of_gguf(shared / "vocab" / f"ggml-vocab-{name}.gguf")
    oracle = rebuilt_scored(tokenizer)
    for text in random_texts(1500, seed=21):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == oracle.encode(text, add_special_tokens=False).ids if text else ids == []
        assert tokenizer.decode(ids) == text.replace(SPACE, " ")
        assert not any(map(tokenizer.is_control, ids))
    assert tokenizer.encode("a")[0] == tokenizer.bos_id


def test_word_pieces_equal_hugging_face(shared: Path) -> None:
    tokenizer = of_gguf(shared / "vocab" / "ggml-vocab-bert-bge.gguf")
    oracle = rebuilt_word_piece(tokenizer)
    for text in random_texts(2000, seed=22):
        if "\u061d" in text:
            continue  # a mark of Unicode 14, which the oracle's tables lack
        ids = tokenizer.encode(text, add_special=False)
        assert ids == oracle.encode(text, add_special_tokens=False).ids, ascii(text)
    assert tokenizer.encode("Hello Wörld") == [101, 7592, 2088, 102]
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"
    assert tokenizer.encode("[MASK] hello", add_special=False, parse_special=True) == [103, 7592]
    assert 103 not in tokenizer.encode("[MASK] hello")
    assert tokenizer.encode_segments([("[MASK]", True), (" [MASK]", False)])[0] == 103
    assert tokenizer.encode_segments([("[MASK]", True), (" [MASK]", False)]).count(103) == 1


@cache
def unigram_entries() -> list[tuple[str, float]]:
    """Characters and substrings of random texts with random scores that are exact as 32-bit floats."""
    rng = random.Random(23)
    pieces = dict.fromkeys(SPACE + "the andofing.,")
    for text in random_texts(400, seed=23):
        for word in text.replace(" ", " " + SPACE).split():
            begin = rng.randrange(len(word))
            pieces[word[begin : begin + rng.randint(1, 6)]] = None
            pieces[word[: rng.randint(1, 4)]] = None
    plain = [piece for piece in pieces if SPACE not in piece[1:]]
    return [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + [
        (piece, -rng.randrange(256, 4096) / 256) for piece in plain
    ]


def unigram_metadata(**changes: object) -> dict[str, object]:
    entries = unigram_entries()
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [text for text, _ in entries],
        "tokenizer.ggml.scores": [score for _, score in entries],
        "tokenizer.ggml.token_type": [3, 3, 2] + [1] * (len(entries) - 3),
        "tokenizer.ggml.add_space_prefix": True,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }


def test_unigram_equals_hugging_face() -> None:
    tokenizer = Tokenizer(vocabulary_of_metadata(unigram_metadata()))
    oracle = tokenizers.Tokenizer(models.Unigram(unigram_entries(), unk_id=2))
    oracle.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    for text in random_texts(2000, seed=24):
        if text.startswith((" ", SPACE)):
            continue  # SentencePiece adds a second space there, Metaspace does not
        ids = tokenizer.encode(text, add_special=False)
        assert ids == oracle.encode(text, add_special_tokens=False).ids, ascii(text)
        if 2 not in ids:
            assert tokenizer.decode(ids) == text.replace(SPACE, " ")
    assert tokenizer.encode("the")[-1] == 1


def character_map(replacements: dict[bytes, bytes]) -> bytes:
    """Build a double array as in Darts, with units placed first fit."""
    texts, offsets = b"", {}
    for key, value in replacements.items():
        offsets[key] = len(texts)
        texts += value + b"\x00"
    units = {0: 0}
    used_offsets: set[int] = set()

    def place(unit: int, prefix: bytes) -> None:
        labels = sorted({key[len(prefix)] for key in replacements if key.startswith(prefix) and key != prefix})
        is_key = prefix in replacements
        wanted = [*([0] if is_key else []), *labels]
        if not wanted:
            return
        offset = next(
            offset
            for offset in range(1, 1 << 20)
            if offset not in used_offsets and all((unit ^ offset ^ label) not in units for label in wanted)
        )
        used_offsets.add(offset)
        units[unit] |= offset << 10 | (1 << 8 if is_key else 0)
        if is_key:
            units[unit ^ offset] = 1 << 31 | offsets[prefix]
        for label in labels:
            units[unit ^ offset ^ label] = label
        for label in labels:
            place(unit ^ offset ^ label, prefix + bytes([label]))

    place(0, b"")
    array = [units.get(i, 0) for i in range((max(units) | 0xFF) + 1)]
    return struct.pack("<I", 4 * len(array)) + struct.pack(f"<{len(array)}I", *array) + texts


REPLACEMENTS = {
    "Ａ": "A", "Ｂ": "B", "ﬁ": "fi", "\u3000": " ", "\t": " ", "\n": " ", "①": "1", "½": "1⁄2", "\u200b": "",
    "…": "...",
}  # fmt: skip


@pytest.mark.parametrize("merge_extra", [False, True])
def test_character_map_equals_its_replacements(merge_extra: bool) -> None:
    """Oracle: the replacements and rules for spaces in Python, followed by a tokenizer without them."""
    blob = character_map({key.encode(): value.encode() for key, value in REPLACEMENTS.items()})
    plain = Tokenizer(vocabulary_of_metadata(unigram_metadata(add_space_prefix=True)))
    mapped = Tokenizer(
        vocabulary_of_metadata(unigram_metadata(precompiled_charsmap=np.frombuffer(blob, np.uint8),
                                                remove_extra_whitespaces=merge_extra))
    )  # fmt: skip
    rng = random.Random(5)
    for words in random_texts(500, seed=25):
        text = words + "".join(rng.choice([*REPLACEMENTS, " ", "x"]) for _ in range(10))
        replaced = "".join(REPLACEMENTS.get(c, c) for c in text)
        if merge_extra:
            replaced = " ".join(part for part in replaced.split(" ") if part)
        assert mapped.encode(text) == plain.encode(replaced), ascii(text)


def rwkv_metadata(words: list[str]) -> dict[str, object]:
    tokens = ["<s>"] + [f"\\x{byte:02x}" for byte in range(256)] + words
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
    }


def test_longest_match_equals_a_search_in_python() -> None:
    words = ["th", "the", "the ", "hello", "\\n\\n", "\\xe4\\xb8", "\\\\x", "it\\'s", "ab" * 20]
    plain = [b"th", b"the", b"the ", b"hello", b"\n\n", b"\xe4\xb8", b"\\x", b"it's", b"ab" * 20]
    tokenizer = Tokenizer(vocabulary_of_metadata(rwkv_metadata(words)))
    table = {bytes([byte]): 1 + byte for byte in range(256)} | {text: 257 + i for i, text in enumerate(plain)}
    for text in [*random_texts(800, seed=26), "the \n\nthe hello it's \\x 一 " * 3, "ab" * 99]:
        data, at, expected = text.encode(), 0, []
        while at < len(data):
            size = next(n for n in range(min(40, len(data) - at), 0, -1) if data[at : at + n] in table)
            expected.append(table[data[at : at + size]])
            at += size
        assert tokenizer.encode(text) == expected
        assert tokenizer.decode(expected) == text
    assert tokenizer.encode(b"\xff\xfe") == [256, 255]
    assert tokenizer.encode("<s>", parse_special=True) == [0]


@cache
def rwkv_pieces() -> list[bytes]:
    """Strings of bytes with whole or split characters, as in RWKV's vocabulary."""
    rng = random.Random(27)
    pieces: dict[bytes, None] = {}
    for text in random_texts(600, seed=27):
        data = text.encode()
        for _ in range(6 if data else 0):
            begin = rng.randrange(len(data))
            pieces[data[begin : begin + rng.choice((2, 3, 4, 6, 9, 30))]] = None
    return [piece for piece in pieces if len(piece) > 1]


def rwkv() -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """RWKV's tokenizer against the longest match of WordPiece, with each byte as a character."""
    escaped = ["".join(f"\\x{byte:02x}" for byte in piece) for piece in rwkv_pieces()]
    words = {piece.decode("latin-1"): 257 + i for i, piece in enumerate(rwkv_pieces())}
    words |= {chr(byte): 1 + byte for byte in range(256)} | {"\u0100": 0}  # a character that is not a byte
    oracle = tokenizers.Tokenizer(
        models.WordPiece(words, unk_token="\u0100", max_input_chars_per_word=1 << 20, continuing_subword_prefix="")
    )
    return Tokenizer(vocabulary_of_metadata(rwkv_metadata(escaped))), oracle


def test_longest_match_equals_hugging_face() -> None:
    tokenizer, oracle = rwkv()
    rng = random.Random(28)
    for text in random_texts(1500, seed=28, longest=6):
        data = bytearray(text.encode()[:500])
        if data and rng.random() < 0.3:
            data[rng.randrange(len(data))] = rng.randrange(256)
        ids = tokenizer.encode(bytes(data))
        assert ids == (oracle.encode(data.decode("latin-1")).ids if data else []), bytes(data)
        assert tokenizer.decode_bytes(ids) == data


SCORED = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)),
                              SPACE, "a", "b", "aa", "ab", SPACE + "a", "<|end|>", "<u>", "aaa"],
    "tokenizer.ggml.scores": [0.0] * 259 + [-9.0, -9.0, -9.0, -1.0, -2.0, -1.0, 0.0, 0.0, -1.0],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 6 + [3, 4, 1],
}  # fmt: skip


def scored(**changes: object) -> Tokenizer:
    values = SCORED | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer(vocabulary_of_metadata({key: value for key, value in values.items() if value is not None}))


def by_search(text: str) -> list[str]:
    """Merge as in Kudo's paper: one by one the pair with the best score, leftmost among equals."""
    scores = dict(zip(SCORED["tokenizer.ggml.tokens"], SCORED["tokenizer.ggml.scores"], strict=True))
    kinds = dict(zip(SCORED["tokenizer.ggml.tokens"], SCORED["tokenizer.ggml.token_type"], strict=True))
    parts = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts))
                 if kinds.get(a + b) == 1]  # fmt: skip
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_equal_scores_go_from_the_left() -> None:
    tokenizer = scored(add_bos_token=False, add_space_prefix=False)
    ids = {text: id for id, text in enumerate(SCORED["tokenizer.ggml.tokens"])}
    rng = random.Random(3)
    for n in (3, 10, 40, 60, 200, 500):
        for _ in range(30):
            text = "".join(rng.choice("aaab ") for _ in range(n))
            assert tokenizer.encode(text) == [ids[part] for part in by_search(text.replace(" ", SPACE))]


def test_space_prefix_bytes_and_marks() -> None:
    tokenizer = scored()
    a, space_a, end, mark = 260, 264, 265, 266
    assert tokenizer.encode("a") == [1, space_a]
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("a<u>a") == [1, space_a, mark, space_a]
    assert tokenizer.encode("a<|end|>a", parse_special=True) == [1, space_a, end, space_a]
    assert end not in tokenizer.encode("a<|end|>a")
    assert scored(add_space_prefix=False).encode("a", add_special=False) == [a]
    assert tokenizer.encode("é", add_special=False) == [259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.encode(b"\xff", add_special=False) == [259, 3 + 0xFF]
    assert 3 + 0x41 not in tokenizer.encode("<0x41>")
    assert tokenizer.decode(tokenizer.encode("a é a")) == "a é a"
    detokenizer = tokenizer.detokenizer()
    shown = [detokenizer.push(id) for id in tokenizer.encode(" é")]
    assert "".join(shown) == " é"
    assert "\ufffd" not in "".join(shown)
    phi = vocabulary_of_metadata(SCORED | {"general.name": "Phi-3-mini"})
    assert Tokenizer(phi).encode("<|end|>  \n a", parse_special=True) == [1, end, space_a]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"scores": None}, "scores is"),
        ({"scores": [0.0]}, "scores .* 268"),
        ({"scores": ["x"] * 268}, "scores is"),
        ({"scores": [float("nan")] * 268}, "score (nan|-inf)"),
        ({"scores": [float("-inf")] * 268}, "score (nan|-inf)"),
        ({"token_type": [6] * 268}, "byte token"),
        ({"token_type": [9] * 268}, "token type 9"),
        ({"tokens": ["a"] * 268, "token_type": [1] * 268}, "duplicate token 'a'"),
        ({"tokens": ["<0x41>"] * 268, "token_type": [6] * 268}, "duplicate byte token '<0x41>'"),
        ({"tokens": ["<0x-1>"] * 268, "token_type": [6] * 268}, "byte token"),
        ({"tokens": ["b" * 2000] + [""] * 267, "token_type": [1] * 268}, "200[03] bytes, the limit is 1024"),
        ({"unknown_token_id": 268}, "unknown_token_id is 268"),
        ({"add_space_prefix": 1}, "add_space_prefix is 1"),
        ({"precompiled_charsmap": "x"}, "precompiled_charsmap is str"),
        ({"precompiled_charsmap": b"\x00"}, "no size"),
        ({"precompiled_charsmap": b"\xff\xff\xff\x7f" + b"\x00" * 8}, "shorter than its size"),
        ({"precompiled_charsmap": struct.pack("<II", 4, 1 << 8 | 7 << 10) + b"\x00"}, "link"),
        ({"precompiled_charsmap": struct.pack("<III", 8, 1 << 8 | 1 << 10, 99) + b"\x00"}, "replacement"),
        ({"precompiled_charsmap": struct.pack("<II", 4, 0) + b"x"}, "zero-terminated"),
    ],
)
def test_malformed_vocabularies(changes: dict[str, object], text: str) -> None:
    with pytest.raises(LoadError, match=text):
        scored(**changes)


@pytest.mark.parametrize("token", ["\\", "\\x4", "\\xzz"])
def test_malformed_escapes(token: str) -> None:
    with pytest.raises(LoadError, match="token '"):
        Tokenizer(vocabulary_of_metadata(rwkv_metadata([token])))


def test_damaged_character_maps_end_in_an_error_or_work() -> None:
    blob = character_map({key.encode(): value.encode() for key, value in REPLACEMENTS.items()})
    rng = random.Random(6)
    for _ in range(400):
        data = bytearray(blob)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            tokenizer = Tokenizer(vocabulary_of_metadata(unigram_metadata(precompiled_charsmap=bytes(data))))
        except QuireError:
            continue
        tokenizer.encode("Ａﬁ½①…\u200b abc\x00" * 5)
