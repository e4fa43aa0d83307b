"""Checkpoint folders of SentencePiece's families and WordPiece, and their conversion to GGUF.

Oracles: Hugging Face `tokenizers` on the same tokenizer.json, published ids for tokenizer.model.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest
import tokenizers
from quire.checkpoints.conversion.vocabulary import write_vocabulary
from quire.errors import LoadError, QuireError, UnsupportedError
from quire.gguf import GGUFWriter
from quire.tokenizer import Tokenizer, TokenKind
from quire.tokenizer.from_pretrained import read_pretrained
from quire.tokenizer.vocabulary import BYTES
from test_tokenizer_families import (
    REPLACEMENTS,
    SPACE,
    character_map,
    of_gguf,
    rebuilt_scored,
    rebuilt_word_piece,
    unigram_entries,
)
from token_texts import random_texts
from tokenizers import models, normalizers, pre_tokenizers, processors


def converted(folder: Path, tmp_path: Path) -> Tokenizer:
    """Return the vocabulary after a round trip through a GGUF file."""
    path = tmp_path / "vocabulary.gguf"
    n = Tokenizer.from_pretrained(folder).n_vocab
    with GGUFWriter(path, "llama") as writer:
        write_vocabulary(writer, folder, n)
    return Tokenizer.from_gguf(path)


def saved(oracle: tokenizers.Tokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    oracle.save(str(folder / "tokenizer.json"))
    return folder


def texts_with(marks: list[str], n: int, seed: int) -> list[str]:
    """Random texts with marks in between."""
    rng = random.Random(seed)
    parts = list(random_texts(n, seed, longest=4))
    return parts + [rng.choice(marks) + part + rng.choice([*marks, ""]) + "a" for part in parts]


@pytest.mark.parametrize("scheme", ["normalizer", "always", "first", "never"])
def test_byte_fallback_pairs(shared: Path, tmp_path: Path, scheme: str) -> None:
    source = of_gguf(shared / "vocab" / "ggml-vocab-llama-spm.gguf")
    oracle = rebuilt_scored(source)
    if scheme != "normalizer":
        oracle.normalizer = None
        oracle.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    oracle.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>")])
    oracle.add_tokens([tokenizers.AddedToken("<mark>", rstrip=True, normalized=False)])
    oracle.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder = saved(oracle, tmp_path)
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    for text in texts_with(["<s>", "</s>"], 120, 31):
        want = oracle.encode(text).ids
        assert direct.encode(text, parse_special=True) == want, ascii(text)
        assert through.encode(text, parse_special=True) == want, ascii(text)
    assert direct.encode("<mark>  a", parse_special=True) == oracle.encode("<mark>  a").ids
    assert direct.decode(direct.encode("x é\n")) == "x é\n"


def test_lowercase_before_byte_fallback_pairs(tmp_path: Path) -> None:
    """SigLIP 2's tokenizer, as transformers 5 writes it."""
    merges = [("c", "a"), ("ca", "t"), (SPACE, "cat"), ("t", "w")]
    letters = [SPACE, *map(chr, range(97, 123)), *map("".join, merges)]
    ids = {text: i for i, text in enumerate(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters])}
    oracle = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    oracle.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", SPACE)])
    folder = saved(oracle, tmp_path)
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    for text in ["Two CATS, \u03a3\u0391\u03a3", *random_texts(40, 36, longest=4)]:
        want = oracle.encode(text, add_special_tokens=False).ids
        assert direct.encode(text) == want, ascii(text)
        assert through.encode(text, add_special=False) == want, ascii(text)


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces(shared: Path, tmp_path: Path, lowercase: bool) -> None:
    oracle = rebuilt_word_piece(of_gguf(shared / "vocab" / "ggml-vocab-bert-bge.gguf"))
    oracle.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    marks = ["[CLS]", "[SEP]", "[MASK]"]
    oracle.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in marks])
    oracle.add_special_tokens([tokenizers.AddedToken("<unk>", special=True, normalized=True)])  # as in MPNet
    oracle.post_processor = processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101))
    folder = saved(oracle, tmp_path)
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    for text in texts_with([*marks, "<unk>"], 200, 32):
        if "\u061d" in text:
            continue  # a mark of Unicode 14, which the oracle's tables lack
        want = oracle.encode(text).ids
        assert direct.encode(text, parse_special=True) == want, ascii(text)
        assert through.encode(text, parse_special=True) == want, ascii(text)


@pytest.mark.parametrize("marks", ["", r"<\|startoftext\|>|<\|endoftext\|>|"])
def test_words_with_ends(tmp_path: Path, marks: str) -> None:
    """CLIP's tokenizer, as published and as transformers 5 writes it."""
    merges = [
        ("c", "a"),
        ("ca", "t"),
        ("ca", "t</w>"),
        ("o", "f</w>"),
        ("'", "s</w>"),
        ("cat", "s</w>"),
        ("\u00c3", "\u00a9"),
    ]
    alphabet = sorted(BYTES)
    texts = [*alphabet, *(byte + "</w>" for byte in alphabet), *map("".join, merges)]
    ids = {text: i for i, text in enumerate([*texts, "<|startoftext|>", "<|endoftext|>"])}
    unknown = "<|endoftext|>"
    oracle = tokenizers.Tokenizer(models.BPE(ids, merges, end_of_word_suffix="</w>", unk_token=unknown))
    spaces = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    oracle.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = tokenizers.Regex(marks + r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "removed", True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    oracle.add_special_tokens(["<|startoftext|>", "<|endoftext|>"])
    around = [(text, ids[text]) for text in ("<|endoftext|>", "<|startoftext|>")]
    oracle.post_processor = processors.RobertaProcessing(*around, trim_offsets=False, add_prefix_space=False)
    folder = saved(oracle, tmp_path)
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    for text in ["It's 42 CATS of a cat\u00e9", "\u00e9cat", "", *texts_with(["<|endoftext|>"], 120, 35)]:
        want = oracle.encode(text).ids
        assert direct.encode(text, parse_special=True) == want, ascii(text)
        assert through.encode(text, parse_special=True) == want, ascii(text)
    assert direct.decode(direct.encode("cats  of\u00e9 x")) == "cats of\u00e9 x"
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace('"Lowercase"', '"NFKC"'))
    with pytest.raises(UnsupportedError, match="CLIP"):
        read_pretrained(folder)


@pytest.mark.parametrize("words", [False, True])
def test_unigram(tmp_path: Path, words: bool) -> None:
    oracle = tokenizers.Tokenizer(models.Unigram(unigram_entries(), unk_id=2))
    space = pre_tokenizers.Metaspace(prepend_scheme="always")
    oracle.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space]) if words else space
    oracle.add_special_tokens(["<pad>", "</s>"])
    oracle.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder = saved(oracle, tmp_path)
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    spaces = [c for c in map(chr, range(0x3001)) if c.isspace() and c != " "]
    for text in texts_with(["</s>"], 300, 33):
        if words and any(c in text for c in spaces):
            continue  # the character map of such models turns them into spaces
        want = oracle.encode(text).ids
        assert direct.encode(text, parse_special=True) == want, ascii(text)
        assert through.encode(text, parse_special=True) == want, ascii(text)


def test_character_map_of_tokenizer_json(tmp_path: Path) -> None:
    blob = character_map({key.encode(): value.encode() for key, value in REPLACEMENTS.items()})
    oracle = tokenizers.Tokenizer(models.Unigram(unigram_entries(), unk_id=2))
    oracle.normalizer = normalizers.Precompiled(blob)
    oracle.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    folder = saved(oracle, tmp_path)
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    assert direct.vocabulary.character_map == through.vocabulary.character_map == blob
    rng = random.Random(34)
    for _ in range(500):
        text = "".join(rng.choice([*REPLACEMENTS, "the ", "a", "an"]) for _ in range(rng.randint(1, 9)))
        want = oracle.encode(text).ids
        assert direct.encode(text, add_special=False) == through.encode(text, add_special=False) == want, ascii(text)


def test_tidied_spaces_and_marks_around(tmp_path: Path) -> None:
    """DeBERTa's tokenizer.json."""
    blob = character_map({key.encode(): value.encode() for key, value in REPLACEMENTS.items()})
    oracle = tokenizers.Tokenizer(models.Unigram(unigram_entries(), unk_id=2))
    runs = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    oracle.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Precompiled(blob), runs])
    oracle.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    oracle.add_special_tokens([tokenizers.AddedToken("<unk>", special=True, normalized=True), "[CLS]", "[SEP]"])
    ids = {text: oracle.token_to_id(text) for text in ("[CLS]", "[SEP]")}
    oracle.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=list(ids.items())
    )
    folder = saved(oracle, tmp_path)
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    rng = random.Random(37)
    for _ in range(300):
        text = "".join(
            rng.choice([*REPLACEMENTS, "the ", "a", "  ", "\n", "<unk>", "[SEP]"]) for _ in range(rng.randint(1, 9))
        )
        if any(text.strip().startswith(start) or text.strip().endswith(start) for start in REPLACEMENTS):
            continue  # a replacement that is a space stays at the ends, unlike SentencePiece's
        if "<unk>" in text and any(character.isspace() for character in text):
            continue  # spaces beside a mark that is matched after normalization stay
        want = oracle.encode(text).ids
        assert direct.encode(text, parse_special=True) == want, ascii(text)
        assert through.encode(text, parse_special=True) == want, ascii(text)
    assert direct.encode_pair("the", "a").token_ids == oracle.encode("the", "a").ids
    assert through.encode_pair("the", "a").token_ids == oracle.encode("the", "a").ids


# tokenizer.model


def varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(*fields: tuple[int, object]) -> bytes:
    out = b""
    for field, value in fields:
        if isinstance(value, float):
            out += varint(field << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            out += varint(field << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            assert isinstance(data, bytes)
            out += varint(field << 3 | 2) + varint(len(data)) + data
    return out


def pieces_of(tokenizer: Tokenizer) -> bytes:
    vocabulary = tokenizer.vocabulary
    entries = zip(vocabulary.texts, vocabulary.scores, vocabulary.kinds, strict=True)
    return b"".join(
        message((1, message((1, text), (2, float(score)), (3, int(kind))))) for text, score, kind in entries
    )


def llama_model(tokenizer: Tokenizer) -> bytes:
    trainer = message((3, 2), (35, 1), (40, 0), (41, 1), (42, 2), (43, -1))
    return pieces_of(tokenizer) + message((2, trainer), (3, message((1, "identity"), (3, 1), (4, 0), (5, 1))))


def test_sentencepiece_model_gives_published_ids(shared: Path, tmp_path: Path) -> None:
    base = shared / "vocab" / "ggml-vocab-llama-spm.gguf"
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(llama_model(of_gguf(base)))
    added = {"32000": {"content": "<|im_end|>", "special": True}, "32001": {"content": "<mark>"}}
    config = {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}, "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "added_tokens.json").write_text(json.dumps({"<mark>": 32001}))
    texts = base.with_suffix(".gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = base.with_suffix(".gguf.out").read_text().split("\n")
    for tokenizer in (Tokenizer.from_pretrained(folder), converted(folder, tmp_path)):
        for text, line in zip(texts, lines, strict=True):
            assert tokenizer.encode(text, add_special=False) == [int(id) for id in line.split()]
        assert tokenizer.encode("<|im_end|><mark>", parse_special=True) == [1, 32000, 32001]
        assert tokenizer.encode("<mark>") == [1, 32001]
        assert 32000 not in tokenizer.encode("<|im_end|>")
        assert tokenizer.eos_id == 32000
    assert not Tokenizer.from_pretrained(folder).vocabulary.chat_templates
    (folder / "tokenizer.model").rename(folder / "tokenizer.model.v7")  # Mistral's name, which tells the template
    named = Tokenizer.from_pretrained(folder)
    assert named.encode("the mark") == Tokenizer.from_gguf(base).encode("the mark")
    assert "[SYSTEM_PROMPT]" in named.vocabulary.chat_templates["default"]


def test_unigram_sentencepiece_model(tmp_path: Path) -> None:
    """Oracle: a tokenizer.json with the same pieces."""
    oracle = tokenizers.Tokenizer(models.Unigram(unigram_entries(), unk_id=2))
    oracle.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    kinds = [TokenKind.CONTROL, TokenKind.CONTROL, TokenKind.UNKNOWN]
    data = b"".join(
        message((1, message((1, text), (2, score), (3, int(kinds[id] if id < 3 else TokenKind.NORMAL)))))
        for id, (text, score) in enumerate(unigram_entries())
    )
    trainer = message((3, 1), (40, 2), (41, -1), (42, 1), (43, 0))
    (tmp_path / "spiece.model").write_bytes(data + message((2, trainer), (3, message((1, "x"), (4, 1)))))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert tokenizer.vocabulary.suffix_ids == (1,)
    for words in random_texts(300, seed=35):
        text = " ".join(part for part in words.replace(SPACE, " ").split(" ") if part)
        assert tokenizer.encode(text, add_special=False) == oracle.encode(text).ids, ascii(text)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", LoadError, "no pieces"),
        (b"\x0a", LoadError, "unterminated number"),
        (b"\x0a\x05a", LoadError, "truncated in field 1"),
        (b"\x0b", LoadError, "field of kind 3"),
        (b"\x00\x00", LoadError, "field 0"),
        (b"\xff" * 20, LoadError, "unterminated number"),
        (message((1, 5)), LoadError, "a piece is a number"),
        (message((1, message((1, b"\xff")))), LoadError, "not UTF-8"),
        (message((1, message((1, "a"), (3, 9)))), LoadError, "type of piece 0 is 9"),
        (message((1, message((1, "a"), (2, 7)))), LoadError, "a score is a number"),
        (message((1, message((1, "a"), (2, b"xy")))), LoadError, "score of piece 0 has 2 bytes"),
        (message((1, message((1, "a")))), LoadError, "bos_id is 1"),
        (message((1, message((1, "a"))), (2, message((3, 4)))), UnsupportedError, "model_type char"),
        (message((1, message((1, "a"))), (2, message((3, 4))))[:-1], LoadError, "truncated"),
    ],
)
def test_malformed_models(tmp_path: Path, data: bytes, error: type[Exception], text: str) -> None:
    if "model_type" in text or "unigram" in text:
        data = message((1, message((1, "b"))), (1, message((1, "c")))) + data
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(error, match=text):
        Tokenizer.from_pretrained(tmp_path)


def test_damaged_models_end_in_an_error_or_work(shared: Path, tmp_path: Path) -> None:
    source = of_gguf(shared / "vocab" / "ggml-vocab-llama-spm.gguf")
    data = llama_model(source)[-9000:]
    start = data.index(b"\x0a", 100)
    rng = random.Random(36)
    for _ in range(150):
        copy = bytearray(data[start:])
        for _ in range(rng.randint(1, 6)):
            copy[rng.randrange(len(copy))] = rng.randrange(256)
        (tmp_path / "tokenizer.model").write_bytes(bytes(copy))
        try:
            Tokenizer.from_pretrained(tmp_path).encode("Hello é")
        except QuireError:
            continue


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (("pre_tokenizer",), None, "U\\+2581"),
        (("pre_tokenizer", "prepend_scheme"), "last", "prepend_scheme"),
        (("pre_tokenizer",), {"type": "Whitespace"}, "pre-tokenizer 'Whitespace'"),
        (("normalizer",), {"type": "NFKC"}, "normalizer 'NFKC'"),
        (
            ("normalizer",),
            {"type": "Replace", "pattern": {"Regex": "a{2,}"}, "content": "a"},
            "normalizer 'Replace'",
        ),
        (("normalizer",), {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, "without Replace of"),
        (("model", "type"), "WordLevel", "model.type"),
    ],
)
def test_unsupported_parts_are_errors(tmp_path: Path, place: tuple[str, ...], value: object, text: str) -> None:
    oracle = tokenizers.Tokenizer(models.Unigram(unigram_entries(), unk_id=2))
    oracle.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    source = json.loads(oracle.to_str())
    parent = source
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    with pytest.raises(UnsupportedError, match=text):
        Tokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("kind", ["tokenizer.json", "tokenizer.model"])
def test_every_end_of_sequence_ends_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, kind: str
) -> None:
    folder = tmp_path / "checkpoint"
    if kind == "tokenizer.model":
        folder.mkdir()
        pieces = [
            message((1, message((1, text), (3, 2 if text == "<unk>" else 1))))
            for text in ("<unk>", "<s>", "</s>", *"abc")
        ]
        (folder / kind).write_bytes(b"".join(pieces) + message((2, message((3, 2), (40, 0), (41, 1), (42, 2)))))
    else:
        oracle = tokenizers.Tokenizer(models.Unigram(unigram_entries(), unk_id=2))
        oracle.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        saved(oracle, tmp_path)
        (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    usual = Tokenizer.from_pretrained(folder).eog_ids
    (folder / file).write_text(json.dumps({"eos_token_id": [3, 5, 100_000]}))
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    assert direct.eog_ids == through.eog_ids == usual | {3, 5}
    assert "[100000]" in caplog.text
    assert file in caplog.text
    assert direct.encode("a", add_special=False) == through.encode("a", add_special=False)
    (folder / file).write_text(json.dumps({"eos_token_id": 4}))
    assert Tokenizer.from_pretrained(folder).eog_ids == usual | {4}
    (folder / file).write_text(json.dumps({"eos_token_id": [True]}))
    with pytest.raises(LoadError, match="eos_token_id is"):
        Tokenizer.from_pretrained(folder)


def test_a_processors_template_is_used_if_the_tokenizer_has_none(tmp_path: Path) -> None:
    oracle = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    folder = saved(oracle, tmp_path)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert read_pretrained(folder).chat_templates == {"default": "processor"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "own"}))
    assert read_pretrained(folder).chat_templates == {"default": "own"}
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": ["x"]}))
    with pytest.raises(LoadError, match=r"chat_template\.json"):
        read_pretrained(folder)


def test_marks_around_texts_of_deberta(tmp_path: Path) -> None:
    """DeBERTa's spm.model names its marks as beginning and end; they are put around every text and pair."""
    marks = [("[PAD]", TokenKind.CONTROL), ("[CLS]", TokenKind.CONTROL), ("[SEP]", TokenKind.CONTROL)]
    pieces = [*marks, ("[UNK]", TokenKind.UNKNOWN), *((text, TokenKind.NORMAL) for text in (SPACE, "a", f"{SPACE}a"))]
    data = b"".join(message((1, message((1, text), (2, -1.0), (3, int(kind))))) for text, kind in pieces)
    trainer = message((3, 1), (40, 3), (41, 1), (42, 2), (43, 0))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "spm.model").write_bytes(data + message((2, trainer), (3, message((1, "x"), (4, 1)))))
    (folder / "added_tokens.json").write_text(json.dumps({"[MASK]": 7}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))
    for tokenizer in (Tokenizer.from_pretrained(folder), converted(folder, tmp_path)):
        assert tokenizer.encode("  a  aa ") == [1, 6, 6, 5, 2]
        assert tokenizer.encode_pair("a", "a").token_ids == [1, 6, 2, 6, 2]
        assert tokenizer.encode("[MASK]") == [1, 7, 2]
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(UnsupportedError, match="do_lower_case"):
        Tokenizer.from_pretrained(folder)
