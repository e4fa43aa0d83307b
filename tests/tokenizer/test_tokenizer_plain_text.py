"""Plain text never becomes a control token, whatever tokens the vocabulary lacks and however its file is written.

Oracle for ids: Hugging Face `tokenizers` on the same vocabulary, except for bytes without a token in files that mark
the unknown token as a control token.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from quire.engine import LLM
from quire.engine.requests.answer_forms import token_vocabulary
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.grammar.compiler import Compiler
from quire.grammar.source import grammar_source
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredOutputsParams
from quire.tokenizer import Tokenizer, TokenKind
from quire.tokenizer.from_gguf import vocabulary_of_metadata
from test_tokenizer import byte_alphabet, metadata
from test_tokenizer_families import rwkv_metadata, unigram_metadata
from tiny_checkpoints import tokenizer_json, write_checkpoint
from token_texts import random_texts
from tokenizers import models, normalizers, pre_tokenizers, trainers

# The bytes that have no token in SmolLM2's vocabulary.
HOLES = [4, 6, 19, 20, 22, 29, 192, 193, 241, 242, *range(245, 256)]
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARIES = ["bert-bge", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "starcoder"]


def odd_texts(n: int, seed: int, holes: list[int]) -> Iterator[str]:
    """Texts with bytes without a token: alone, in runs, and between characters that would merge."""
    rng = random.Random(seed)
    odd = [chr(byte) for byte in holes if byte < 128] + ["\U00040000", "\U000f0000", "\u00c0", "▁", "☃", *MARKS]
    for text in random_texts(n, seed, longest=4):
        parts = [text, *(rng.choice(["!", "the", "\n", "ab", " "]) for _ in range(rng.randint(0, 4)))]
        yield "".join(part + rng.choice(odd) * rng.randint(0, 3) for part in parts)


def only_text(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Return True if all ids are text or the unknown token."""
    kinds = tokenizer.vocabulary.kinds
    return all(kinds[id] != TokenKind.CONTROL and id not in tokenizer.eog_ids for id in ids)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_no_bytes_become_control_tokens(shared: Path, name: str) -> None:
    path = shared / "vocab" / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"shared test data is absent: {path}")
    tokenizer = Tokenizer.from_gguf(path)
    rng = random.Random(41)
    names = list(tokenizer.control_tokens)
    for byte in range(256):
        assert only_text(tokenizer, tokenizer.encode(bytes([byte]), add_special=False)), byte
    for text in odd_texts(400, 41, HOLES):
        mixed = text + rng.choice(names) + text[::-1]
        assert only_text(tokenizer, tokenizer.encode(mixed, add_special=False)), ascii(mixed)
        start, end = rng.choice(names), rng.choice(names)
        around = tokenizer.encode_segments([(start, True), (mixed, False), (end, True)])
        assert only_text(tokenizer, around[1:-1]), ascii(mixed)
        data = rng.randbytes(rng.randint(1, 30))
        assert only_text(tokenizer, tokenizer.encode(data, add_special=False)), data


@cache
def trained() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A byte-level vocabulary like SmolLM2's, in which some bytes have no token."""
    full = tokenizers.Tokenizer(models.BPE())
    full.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=byte_alphabet(), show_progress=False)
    full.train_from_iterator(["!!!! !!a!! ab abab\n\n"] * 9 + list(random_texts(600, 42)), trainer)
    model = json.loads(full.to_str())["model"]
    missing = {byte_alphabet()[byte] for byte in HOLES}
    words = [*MARKS, "<unk>", *(text for text in model["vocab"] if not missing & set(text))]
    return {text: id for id, text in enumerate(words)}, [
        (left, right) for left, right in model["merges"] if not missing & set(left + right)
    ]


def byte_level(unknown: str | None, *, fuse: bool = False, ignore_merges: bool = False) -> tokenizers.Tokenizer:
    words, merges = trained()
    oracle = tokenizers.Tokenizer(
        models.BPE(dict(words), merges, unk_token=unknown, fuse_unk=fuse, ignore_merges=ignore_merges)
    )
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return oracle


def saved(oracle: tokenizers.Tokenizer, folder: Path, *, special: bool = True, **config: object) -> Tokenizer:
    """Save the oracle as a checkpoint folder and open it."""
    content = json.loads(oracle.to_str())
    vocab = content["model"]["vocab"]
    texts = vocab if isinstance(vocab, dict) else {text: id for id, (text, _) in enumerate(vocab)}
    added = [text for text in (*MARKS, "<unk>") if text in texts]
    content["added_tokens"] = [{"id": texts[text], "content": text, "special": special} for text in added]
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_pretrained(folder)


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("unknown", [None, "<unk>", "<|endoftext|>"])
def test_bytes_without_a_token(tmp_path: Path, unknown: str | None, ignore_merges: bool) -> None:
    config = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    direct = saved(byte_level(unknown, ignore_merges=ignore_merges), tmp_path, **config)
    through = Tokenizer(vocabulary_of_metadata(direct.vocabulary.gguf_metadata())) if not ignore_merges else direct
    # A control token is never used for text, so unknown bytes are dropped.
    oracle = byte_level(unknown if unknown == "<unk>" else None, ignore_merges=ignore_merges)
    assert direct.encode("a\x06b") == oracle.encode("a\x06b").ids
    assert direct.encode("\x06") == ([3] if unknown == "<unk>" else [])
    for text in odd_texts(1500, 43, HOLES):
        want = oracle.encode(text).ids
        assert direct.encode(text) == through.encode(text) == want, ascii(text)
        assert only_text(direct, want)
        assert direct.encode_segments([("<|im_start|>", True), (text, False)]) == [1, *want], ascii(text)
        if unknown is None:
            kept = "".join(c for c in text if not set(c.encode()) & set(HOLES))
            assert direct.decode(direct.encode(kept)) == kept


def test_long_words_with_bytes_without_a_token(tmp_path: Path) -> None:
    direct, oracle = saved(byte_level(None), tmp_path), byte_level(None)
    rng = random.Random(44)
    for _ in range(60):
        text = "".join(rng.choice(["!", "!", "?", "\x06", "\x13", "."]) for _ in range(rng.randint(90, 700)))
        assert direct.encode(text) == oracle.encode(text).ids, ascii(text)


def test_fuse_unk_with_bytes_without_a_token_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="fuse_unk"):
        saved(byte_level("<unk>", fuse=True), tmp_path)
    assert saved(byte_level(None, fuse=True), tmp_path).encode("\x06\x06") == []


@pytest.mark.parametrize("special", [False, True])
def test_marks_of_a_folder_are_control_tokens_even_if_it_has_them_as_text(tmp_path: Path, special: bool) -> None:
    direct = saved(byte_level(None), tmp_path, special=special, eos_token="<|im_start|>")
    assert direct.eog_ids == {0, 1, 2}
    assert only_text(direct, direct.encode("a<|im_start|><|endoftext|><|im_end|>b"))
    assert direct.encode("<|im_start|>", parse_special=True) == [1]


def test_marks_without_a_type_are_control_tokens(tmp_path: Path) -> None:
    """Old files have no token types, and merges may produce a mark."""
    tokens = ["<unk>", "<s>", "</s>", "<", "/", "s", ">", "</", "s>", "a"]
    tokenizer = Tokenizer(
        vocabulary_of_metadata(
            {
                "tokenizer.ggml.model": "llama",
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.scores": [0.0] * 7 + [-1.0, -2.0, -3.0],
            }
        )
    )
    assert tokenizer.encode("a</s>", add_special=False)[-2:] == [7, 8]
    assert tokenizer.encode("</s>", add_special=False, parse_special=True) == [2]
    assert tokenizer.eog_ids == {2}


def test_a_line_feed_that_ends_an_answer_stays_text() -> None:
    changes = {"tokenizer.ggml.eot_token_id": 10, "tokenizer.ggml.unknown_token_id": 10}
    tokenizer = Tokenizer(vocabulary_of_metadata(metadata() | changes))
    assert tokenizer.encode("a\n") == [*b"a\n"]
    assert 10 in tokenizer.eog_ids


@pytest.mark.parametrize("unknown", [None, "[UNK]", "[SEP]"])
def test_characters_without_a_token(tmp_path: Path, unknown: str | None) -> None:
    words = ["[UNK]", "[SEP]", *"abcthe!?,.", "ab", "the", "th", "!!", "he"]
    merges = [("a", "b"), ("t", "h"), ("th", "e"), ("!", "!"), ("h", "e")]
    ids = {text: id for id, text in enumerate(words)}
    oracle = tokenizers.Tokenizer(models.BPE(dict(ids), merges, unk_token=unknown))
    oracle.pre_tokenizer = pre_tokenizers.Whitespace() if unknown == "[UNK]" else pre_tokenizers.WhitespaceSplit()
    direct = saved(oracle, tmp_path, sep_token="[SEP]", unk_token=unknown or "[UNK]")
    through = Tokenizer(vocabulary_of_metadata(direct.vocabulary.gguf_metadata()))
    if unknown == "[SEP]":
        oracle.model.unk_token = None
    rng = random.Random(45)
    for _ in range(1500):
        text = "".join(
            rng.choice(["a", "b", "the", "☃", "é", " ", "!", "x", "[SEP]"]) for _ in range(rng.randint(1, 200))
        )
        want = oracle.encode(text).ids
        assert direct.encode(text) == through.encode(text) == want, ascii(text)
        assert 1 not in want
    if unknown is None:
        oracle.pre_tokenizer = pre_tokenizers.Whitespace()
        with pytest.raises(UnsupportedError, match="unk_token"):
            saved(oracle, tmp_path)


@pytest.mark.parametrize("unknown", [0, 1, 2, 5])
@pytest.mark.parametrize("family", ["unigram", "pairs", "bytes", "rwkv"])
def test_missing_tokens_in_every_family_with_an_unknown_token_of_every_type(family: str, unknown: int) -> None:
    said: dict[str, object] = {"tokenizer.ggml.unknown_token_id": unknown, "tokenizer.ggml.eos_token_id": 1}
    if family == "unigram":
        said = unigram_metadata() | said
    elif family == "pairs":
        some = [byte for byte in range(256) if byte % 3]
        tokens = ["<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in some), "▁", "a", "b", "ab"]
        said |= {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * len(tokens),
            "tokenizer.ggml.token_type": [3, 3, 2] + [6] * len(some) + [1] * 4,
            "tokenizer.ggml.bos_token_id": 0,
        }
    elif family == "bytes":
        words, merges = trained()
        said |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": list(words),
            "tokenizer.ggml.token_type": [3, 3, 3, 2] + [1] * (len(words) - 4),
            "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        }
    else:
        said = rwkv_metadata(["a", "b", "ab", "the"]) | said
        tokens, kinds = said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"]
        assert isinstance(tokens, list)
        assert isinstance(kinds, list)
        said["tokenizer.ggml.tokens"] = ["<pad>", "</s>", *tokens[100:]]
        said["tokenizer.ggml.token_type"] = [3, 3, *kinds[100:]]
    tokenizer = Tokenizer(vocabulary_of_metadata(said))
    rng = random.Random(46)
    for text in odd_texts(300, 46, HOLES):
        for data in (text, text.encode() + rng.randbytes(8)):
            assert only_text(tokenizer, tokenizer.encode(data, add_special=False)), data
        ids = tokenizer.encode_segments([("</s>", True), (text, False)])
        assert only_text(tokenizer, ids[1:])
        detokenizer = tokenizer.detokenizer()
        pieces = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
        assert pieces == tokenizer.decode(ids)


def test_native_encoders_reject_a_control_token_as_the_unknown_one() -> None:
    from quire._tokenizer.bpe import BytePairEncoder
    from quire._tokenizer.pieces import PieceEncoder
    from quire.tokenizer.vocabulary import SpaceRules

    with pytest.raises(LoadError, match="unknown token"):
        BytePairEncoder(["<s>", "a"], [3, 1], [], passes=(), unknown_id=0)
    for family in ("llama", "gemma4", "t5", "bert", "rwkv"):
        with pytest.raises(LoadError, match="unknown token"):
            PieceEncoder(
                family, ["<s>", "a"], [3, 1], [0.0, 0.0], texts=["<s>", "a"], spaces=SpaceRules(), unknown_id=0
            )


def test_word_pieces_of_the_written_space(tmp_path: Path) -> None:
    """U+2581 in a text is itself there, although GGUF uses it to mark the start of a word."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "▁",
        "##▁",
        "▁a",
        "##▁a",
        "a",
        "##a",
        "##b",
        "b",
        "##▁##",
        "#",
        "####▁",
    ]
    oracle = tokenizers.Tokenizer(models.WordPiece({text: id for id, text in enumerate(words)}, unk_token="[UNK]"))
    oracle.normalizer = normalizers.BertNormalizer()
    oracle.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    direct = saved(oracle, tmp_path, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    through = Tokenizer(vocabulary_of_metadata(direct.vocabulary.gguf_metadata()))
    rng = random.Random(47)
    assert direct.encode("▁ a▁ b▁a", add_special=False) == [4, 8, 5, 11, 7]
    for _ in range(1000):
        text = "".join(rng.choice("▁▁ab #c") for _ in range(rng.randint(1, 9)))
        want = oracle.encode(text).ids
        assert direct.encode(text, add_special=False) == through.encode(text, add_special=False) == want, text
    for tokenizer in (direct, through):
        assert tokenizer.decode(tokenizer.encode("b▁a ▁ ▁a", add_special=False)) == "b▁a ▁ ▁a"


@pytest.mark.parametrize("form", ["\x06", "a\x06b", "!\x13!"])
def test_a_form_without_tokens_is_an_error_and_no_mask_drops_a_byte(tmp_path: Path, form: str) -> None:
    """Forced text must be encodable: if `encode` drops some of its bytes, there is no mask for it."""
    tokenizer = saved(byte_level(None), tmp_path, eos_token="<|im_end|>")
    compiler = Compiler(lambda: token_vocabulary(tokenizer, tokenizer.n_vocab))
    mask = np.zeros((tokenizer.n_vocab + 31) // 32, np.uint32)

    def drawn(text: str) -> str:
        """Follow the masks greedily."""
        matcher = compiler.compile(grammar_source(StructuredOutputsParams(choice=[text]))).matcher()
        found = b""
        while not matcher.is_complete:
            matcher.fill(mask)
            ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            assert only_text(tokenizer, ids.tolist())
            matcher.advance(int(ids[-1]))
            found += tokenizer.token_bytes(int(ids[-1]))
        return found.decode()

    assert drawn("the !!") == "the !!"
    with pytest.raises(RequestError, match="tokens"):
        drawn(form)


def test_a_chat_with_bytes_without_a_token(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen3")
    source = tokenizer_json()
    model = source["model"]
    assert isinstance(model, dict)
    del model["vocab"][byte_alphabet()[6]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    template = "{% for message in messages %}<s>{{ message.content }}</s>{% endfor %}"
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "</s>", "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    greedy = SamplingParams(temperature=0.0, max_tokens=1)
    with LLM(tmp_path, threads=1, n_ctx=64) as llm:
        result = llm.chat([{"role": "user", "content": "a\x06</s>b"}], greedy)
        assert result.prompt_token_ids == [256, *b"a</s>b", 257]
        assert llm.generate(["a\x06b"], greedy)[0].prompt_token_ids == [*b"ab"]
