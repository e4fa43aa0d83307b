"""Byte-pair encoding over characters by listed merges (gemma4, sarvam-moe, whitespace and similar names).

Oracle: Hugging Face `tokenizers` with the same vocabulary and merges, made by its own trainer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from quire._tokenizer.packed import PackedStrings
from quire.errors import LoadError, UnsupportedError
from quire.tokenizer import Tokenizer, TokenKind
from quire.tokenizer.from_gguf import vocabulary_of_metadata
from test_tokenizer_folders import converted, saved
from token_texts import random_texts
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
MARKS = ["<pad>", "<bos>", "<eos>", "<unk>"]
LINES = pre_tokenizers.Split(tokenizers.Regex(r"[^\n]+|[\n]+"), "isolated")


@cache
def trained(splits: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens and merges trained on random texts; many of their characters have no token."""
    model = tokenizers.Tokenizer(models.BPE())
    if splits == "spaces":
        model.normalizer = normalizers.Lowercase()
        model.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        model.normalizer = normalizers.Replace(" ", SPACE)
        if splits == "lines":
            model.pre_tokenizer = LINES
    trainer = trainers.BpeTrainer(vocab_size=3000, limit_alphabet=900, show_progress=False)
    model.train_from_iterator(random_texts(1500, seed=41), trainer)
    state = json.loads(model.to_str())["model"]
    words = sorted(state["vocab"], key=state["vocab"].__getitem__)
    tokens = [*MARKS, *(BYTES if splits != "spaces" else []), *words]
    return {text: id for id, text in enumerate(tokens)}, [(left, right) for left, right in state["merges"]]


def oracle_of(splits: str) -> tokenizers.Tokenizer:
    words, merges = trained(splits)
    if splits == "spaces":
        oracle = tokenizers.Tokenizer(models.BPE(words, merges, unk_token="<unk>"))
        oracle.normalizer = normalizers.Lowercase()
        oracle.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        oracle = tokenizers.Tokenizer(models.BPE(words, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        oracle.normalizer = normalizers.Replace(" ", SPACE)
    oracle.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in MARKS])
    return oracle


def metadata_of(splits: str, **changes: object) -> dict[str, Any]:
    words, merges = trained(splits)
    kinds = [TokenKind.BYTE if text in BYTES else TokenKind.NORMAL for text in words]
    kinds[: len(MARKS)] = [TokenKind.CONTROL] * 3 + [TokenKind.UNKNOWN]
    values = {
        "model": "gemma4", "tokens": list(words), "token_type": kinds, "bos_token_id": 1, "eos_token_id": 2,
        "unknown_token_id": 3, "merges": [f"{left} {right}" for left, right in merges], **changes,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def of(splits: str, **changes: object) -> Tokenizer:
    return Tokenizer(vocabulary_of_metadata(metadata_of(splits, **changes)))


NAMES = {
    "gemma4": {},
    "gemma4 by pre": {"model": "gpt2", "pre": "gemma4"},
    "granite": {"model": "gpt2", "pre": "granite-embed-multi-311m"},
    "sarvam-moe": {"model": "gpt2", "pre": "sarvam-moe"},
}


@pytest.mark.parametrize("name", list(NAMES))
def test_characters_equal_hugging_face(name: str) -> None:
    tokenizer, oracle = of("lines", **NAMES[name]), oracle_of("lines")
    rng = random.Random(name)
    for text in random_texts(2000, seed=42):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == oracle.encode(text, add_special_tokens=False).ids, ascii(text)
        assert tokenizer.decode(ids) == text.replace(SPACE, " ")
        stream = tokenizer.detokenizer()
        assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids)
        if text:
            broken = bytearray(text.encode())
            broken[rng.randrange(len(broken))] = rng.randrange(256)
            back = tokenizer.decode_bytes(tokenizer.encode(bytes(broken), add_special=False))
            assert back == bytes(broken).replace(SPACE.encode(), b" ")


def test_line_feeds_split_what_merges_would_join() -> None:
    """The oracle splits before merges that were made across lines."""
    tokenizer, oracle = of("nowhere", model="gpt2", pre="sarvam-moe"), oracle_of("nowhere")
    joined = oracle_of("nowhere")
    oracle.pre_tokenizer = LINES
    n_different = 0
    for text in random_texts(1000, seed=43):
        want = oracle.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == want, ascii(text)
        n_different += want != joined.encode(text, add_special_tokens=False).ids
    assert n_different > 20


def test_a_run_of_line_feeds_that_is_a_token_stays_whole() -> None:
    words, merges = trained("lines")
    assert all("\n" * n in words for n in (1, 2, 4))
    kept = [f"{left} {right}" for left, right in merges if "\n" not in left]
    gemma, sarvam = of("lines", merges=kept), of("lines", merges=kept, model="gpt2", pre="sarvam-moe")
    one, two, four = (words["\n" * n] for n in (1, 2, 4))
    assert gemma.encode("\n\n\n\n", add_special=False) == [four]
    assert sarvam.encode("\n\n\n\n", add_special=False) == [one] * 4
    a = words["a"]
    assert gemma.encode("a\n\na", add_special=False) == [a, two, a]
    longer = max(len(text) for text in words if not text.strip("\n")) + 1
    assert gemma.encode("\n" * longer, add_special=False) == [one] * longer


def test_beginning_of_sequence() -> None:
    assert of("lines").encode("a")[0] == of("lines", add_bos_token=False).encode("a")[0] == 1
    sarvam = {"model": "gpt2", "pre": "sarvam-moe"}
    assert of("lines", **sarvam).encode("a")[0] != 1
    assert of("lines", **sarvam, add_bos_token=True).encode("a")[0] == 1


def test_only_templates_produce_marks() -> None:
    tokenizer = of("lines")
    assert tokenizer.encode("<eos>", parse_special=True) == [1, 2]
    assert 2 not in tokenizer.encode("<eos>a<eos>")
    assert tokenizer.encode_segments([("<eos>", True), ("<eos>", False)]).count(2) == 1
    assert tokenizer.decode([1, *tokenizer.encode("x <eos>", add_special=False), 2]) == "x <eos>"
    # The name of a byte token is plain text, even if the file has byte tokens as normal ones.
    plain = [min(kind, TokenKind.CONTROL) if kind != TokenKind.BYTE else 1 for kind in tokenizer.vocabulary.kinds]
    for found in (tokenizer, of("lines", token_type=plain)):
        ids = found.encode("<0x41>\U0001f9ff", add_special=False)
        assert found.decode(ids) == "<0x41>\U0001f9ff"
        assert found.vocabulary.kinds[len(MARKS)] == TokenKind.BYTE


def test_merges_through_words_without_a_token() -> None:
    """Ids by hand: x, y and xy are intermediate steps; a word that ends there becomes byte tokens."""
    tokens = [*MARKS, *BYTES, "x", "y", "z", "xyz"]
    kinds = [3, 3, 3, 2, *[6] * 256, 1, 1, 1, 1]
    tokenizer = of("lines", tokens=tokens, token_type=kinds, merges=["x y", "xy z", "é z"])
    assert tokenizer.encode("xyz", add_special=False) == [263]
    assert tokenizer.encode("xyxyz", add_special=False) == [4 + ord("x"), 4 + ord("y"), 263]
    assert tokenizer.encode("éz", add_special=False) == [4 + byte for byte in "éz".encode()]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"merges": None}, LoadError, "merges is"), ({"merges": ["a"]}, LoadError, "merge 'a'"),
        ({"merges": ["a "]}, LoadError, "UTF-8"), ({"model": "none"}, UnsupportedError, "none"), ({"model": "plamo2"}, LoadError, "scores"),
        ({"merges": PackedStrings(b"\3" + bytes(7) + b"a \xff", 1)}, LoadError, "UTF-8"),
        ({"merges": PackedStrings(b"\3", 1)}, LoadError, "truncated"),
        ({"token_type": [1]}, LoadError, "one per token"),
    ],
)  # fmt: skip
def test_invalid_metadata_is_an_error(changes: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        of("lines", **changes)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("model", ["whitespace", "gpt2"])
def test_words_between_white_space(model: str, lowercase: bool) -> None:
    tokenizer = of("spaces", model=model, pre="whitespace", **{"normalizer.lowercase": lowercase})
    oracle = oracle_of("spaces")
    if not lowercase:
        oracle.normalizer = None
    for text in random_texts(2000, seed=44):
        want = oracle.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == want, ascii(text)
    assert (tokenizer.encode("THE", False) == tokenizer.encode("the", False)) == lowercase


# tokenizer.json


@pytest.mark.parametrize(("bos", "name"), [(True, "gemma4"), (False, "sarvam-moe")])
def test_a_folder_and_its_conversion_to_gguf(tmp_path: Path, bos: bool, name: str) -> None:
    oracle = oracle_of("lines")
    oracle.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")  # as published; it never matches
    if bos:
        oracle.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    folder = saved(oracle, tmp_path)
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    for text in random_texts(500, seed=45):
        want = oracle.encode(text).ids
        assert direct.encode(text, parse_special=True) == through.encode(text, parse_special=True) == want, ascii(text)
    assert direct.vocabulary.gguf_metadata()["tokenizer.ggml.pre"] == name
    assert direct.decode(direct.encode("x  é\n\n")) == "x  é\n\n"


def test_folder_of_words_between_white_space(tmp_path: Path) -> None:
    oracle = oracle_of("spaces")
    oracle.post_processor = processors.RobertaProcessing(("<eos>", 2), ("<bos>", 1))
    folder = saved(oracle, tmp_path)
    direct, through = Tokenizer.from_pretrained(folder), converted(folder, tmp_path)
    for text in random_texts(500, seed=46):
        want = oracle.encode(text).ids
        assert direct.encode(text, parse_special=True) == through.encode(text, parse_special=True) == want, ascii(text)


def test_merges_across_lines_have_no_name(tmp_path: Path) -> None:
    oracle = oracle_of("nowhere")
    direct = Tokenizer.from_pretrained(saved(oracle, tmp_path))
    for text in random_texts(300, seed=47):
        assert direct.encode(text, add_special=False) == oracle.encode(text, add_special_tokens=False).ids
    with pytest.raises(UnsupportedError, match="GGUF has no name"):
        direct.vocabulary.gguf_metadata()


def with_lines(state: dict[str, Any]) -> None:
    state["pre_tokenizer"] = json.loads(LINES.__getstate__())


def with_metaspace(state: dict[str, Any]) -> None:
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": False}
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [json.loads(LINES.__getstate__()), space]}


def without_a_byte(state: dict[str, Any]) -> None:
    state["model"]["vocab"]["<0xZZ>"] = state["model"]["vocab"].pop("<0x41>")


def with_whole_words(state: dict[str, Any]) -> None:
    state["model"]["ignore_merges"] = True


def with_fused_unknown(state: dict[str, Any]) -> None:
    state["model"]["fuse_unk"] = True


def with_accents(state: dict[str, Any]) -> None:
    state["normalizer"] = {"type": "StripAccents"}


def with_merged_punctuation(state: dict[str, Any]) -> None:
    state["model"]["merges"].append(["a", "."])


@pytest.mark.parametrize(
    ("splits", "change", "text"),
    [
        ("lines", with_metaspace, "Metaspace"), ("lines", without_a_byte, "all 256 byte tokens"),
        ("lines", with_whole_words, "ignore_merges"), ("lines", with_accents, "StripAccents"),
        ("spaces", with_fused_unknown, "fuse_unk"), ("spaces", with_accents, "only Lowercase"),
        ("spaces", with_merged_punctuation, "letters and punctuation"), ("lines", with_lines, ""),
    ],
)  # fmt: skip
def test_unsupported_parts_of_a_folder_are_errors(
    tmp_path: Path, splits: str, change: Callable[[dict[str, Any]], None], text: str
) -> None:
    folder = saved(oracle_of(splits), tmp_path)
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    if text:
        with pytest.raises(UnsupportedError, match=text):
            Tokenizer.from_pretrained(folder)
        return
    oracle = tokenizers.Tokenizer.from_file(str(path))
    through = converted(folder, tmp_path)
    assert Tokenizer.from_pretrained(folder).vocabulary.gguf_metadata()["tokenizer.ggml.pre"] == "sarvam-moe"
    for sample in random_texts(200, seed=48):
        assert through.encode(sample, add_special=False) == oracle.encode(sample, add_special_tokens=False).ids
