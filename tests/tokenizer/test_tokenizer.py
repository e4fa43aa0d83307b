"""Properties of the tokenizer besides ids: control and user-defined tokens, segments, errors, linear time."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from quire._tokenizer.packed import PackedStrings
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.tokenizer import Tokenizer, TokenKind, Vocabulary
from quire.tokenizer.from_gguf import vocabulary_of_metadata
from quire.tokenizer.pretokenizers import named
from token_texts import random_texts


def byte_alphabet() -> list[str]:
    """GPT-2's characters for the bytes 0 to 255."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in itself else next(others)) for byte in range(256)]


SPACE = byte_alphabet()[32]


def metadata(**changes: object) -> dict[str, object]:
    """A small vocabulary: the bytes, "hello" and its steps, two control and two user-defined tokens."""
    words = ["he", "ll", "hell", "hello", SPACE + "w", "<|im_start|>", "<|im_end|>", "<think>", "  ", "<pad>"]
    kinds = [1, 1, 1, 1, 1, 3, 3, 4, 4, 5]
    base: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": byte_alphabet() + words,
        "tokenizer.ggml.token_type": [1] * 256 + kinds,
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o", f"{SPACE} w"],
        "tokenizer.ggml.bos_token_id": 261,
        "tokenizer.ggml.eos_token_id": 262,
    }
    base.update({f"tokenizer.{key}": value for key, value in changes.items()})
    return {key: value for key, value in base.items() if value is not None}


def small(**changes: object) -> Tokenizer:
    return Tokenizer(vocabulary_of_metadata(metadata(**changes)))


IM_START, IM_END, THINK, TWO_SPACES = 261, 262, 263, 264


def test_control_tokens_need_parse_special_and_user_defined_ones_do_not() -> None:
    tokenizer = small()
    text = "hello<|im_end|><think>  hello"
    plain = tokenizer.encode(text)
    assert plain == [259, *b"<|im_end|>", THINK, TWO_SPACES, 259]
    assert tokenizer.encode(text, parse_special=True) == [259, IM_END, THINK, TWO_SPACES, 259]
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode([259, IM_END, THINK]) == "hello<think>"
    assert tokenizer.decode([259, IM_END], skip_special=False) == "hello<|im_end|>"


def test_token_bytes() -> None:
    tokenizer = small()
    assert tokenizer.token_bytes(259) == b"hello"
    assert tokenizer.token_bytes(260) == b" w"
    assert tokenizer.token_bytes(0xE4) == b"\xe4"
    assert tokenizer.token_bytes(IM_END) == b""
    assert tokenizer.token_bytes(THINK) == b"<think>"
    assert tokenizer.token_bytes(TWO_SPACES) == b"  "
    table = tokenizer.all_token_bytes()
    assert table == [tokenizer.token_bytes(id) for id in range(tokenizer.n_vocab)]
    assert tokenizer.is_control(IM_START)
    assert not tokenizer.is_control(THINK)
    assert tokenizer.token_text(260) == SPACE + "w"
    assert tokenizer.token_id("<think>") == THINK
    assert tokenizer.token_id("absent") is None


def test_tokens_before_and_after_a_text_follow_the_file() -> None:
    assert small().encode("hello") == [259]
    both = small(**{"ggml.add_bos_token": True, "ggml.add_eos_token": True})
    assert both.encode("hello") == [IM_START, 259, IM_END]
    assert both.encode("hello", add_special=False) == [259]
    assert both.encode("") == [IM_START, IM_END]
    assert small(**{"ggml.pre": "llama-bpe"}).encode("hello") == [IM_START, 259]
    assert small(**{"ggml.pre": "llama-bpe", "ggml.add_bos_token": False}).encode("hello") == [259]


def test_end_of_generation() -> None:
    assert small().eog_ids == {IM_END}
    assert small(**{"ggml.eos_token_id": 256, "ggml.eot_token_id": 257}).eog_ids == {256, 257, IM_END}
    assert small().eos_id == IM_END
    assert small(**{"ggml.eos_token_id": None}).eos_id is None


def test_a_user_defined_end_mark_is_a_control_token() -> None:
    kinds = [1] * 256 + [1, 1, 1, 1, 1, 3, 4, 4, 4, 5]
    tokenizer = small(**{"ggml.token_type": kinds})
    assert tokenizer.is_control(IM_END)
    assert IM_END not in tokenizer.encode("<|im_end|>")


def test_segments_equal_the_whole_text_except_control_tokens_in_literal_parts() -> None:
    tokenizer = small()
    assert tokenizer.encode_segments([("<|im_start|>hello", True), ("<|im_end|>", False), ("<|im_end|>", True)]) == [
        IM_START, 259, *b"<|im_end|>", IM_END,
    ]  # fmt: skip
    # Words cross the boundary of segments; control tokens do not, in either direction.
    assert tokenizer.encode_segments([("hel", True), ("lo", False)]) == [259]
    assert tokenizer.encode_segments([("<|im_", True), ("end|>", False)]) == [*b"<|im_end|>"]
    assert tokenizer.encode_segments([("<|im_", False), ("end|>", True)]) == [*b"<|im_end|>"]
    assert tokenizer.encode_segments([("<|im_", True), ("end|>", True)]) == [IM_END]
    assert tokenizer.encode_segments([("<|im_", False), ("end|>", False)]) == [*b"<|im_end|>"]


def test_literal_segments_never_make_control_tokens() -> None:
    tokenizer = small()
    rng = random.Random(1)
    for text in random_texts(5000, seed=11):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(3))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        ids = tokenizer.encode_segments([(part, False) for part in parts])
        assert ids == tokenizer.encode(text)
        assert not any(map(tokenizer.is_control, ids))
        mixed = tokenizer.encode_segments([("<|im_start|>", True), (text, False), ("<|im_end|>", True)])
        assert mixed == [IM_START, *tokenizer.encode(text), IM_END]


def test_invalid_utf8_survives_encoding() -> None:
    tokenizer = small()
    rng = random.Random(2)
    for _ in range(2000):
        data = bytes(rng.choice(b"he llo\xe4\xb8\xff\xc0<\n") for _ in range(rng.randint(0, 30)))
        assert tokenizer.decode_bytes(tokenizer.encode(data)) == data


def test_batch_equals_single() -> None:
    tokenizer = small()
    texts = [text * 20 for text in random_texts(40, seed=12)]
    expected = [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch(texts) == expected
    assert tokenizer.encode_batch(texts, threads=4) == expected


def test_invalid_texts_and_ids_are_errors() -> None:
    tokenizer = small()
    with pytest.raises(RequestError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")
    for id in (266, -1, 1 << 70):
        with pytest.raises(RequestError, match=r"token id|negative"):
            tokenizer.decode([id])
    with pytest.raises(RequestError, match=r"266\b.*\b266 tokens"):
        tokenizer.token_bytes(266)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        (
            {"ggml.model": "tekken"},
            UnsupportedError,
            "'tekken'.*gpt2, llama, gemma4, t5, bert, rwkv, plamo2, whitespace",
        ),
        ({"ggml.model": None}, LoadError, "tokenizer.ggml.model is missing"),
        ({"ggml.pre": "tekken-9"}, UnsupportedError, "'tekken-9'.*gpt-2"),
        ({"ggml.tokens": "x"}, LoadError, "tokens is str"),
        ({"ggml.tokens": [1, 2]}, LoadError, "tokens is list"),
        ({"ggml.token_type": [1]}, LoadError, "token_type .* 266"),
        ({"ggml.token_type": [6] * 266}, LoadError, "type 6: expected 1 to 5"),
        ({"ggml.token_type": 3}, LoadError, "token_type is int"),
        ({"ggml.merges": ["a"]}, LoadError, "merge 'a'"),
        ({"ggml.merges": ["a "]}, LoadError, "merge of ''"),
        ({"ggml.merges": ["\u4e00 a"]}, LoadError, "byte-level alphabet"),
        ({"ggml.tokens": [*byte_alphabet(), "\udcff", *"abcdefghi"]}, LoadError, "not UTF-8"),
        ({"ggml.merges": None}, LoadError, "merges is"),
        ({"ggml.bos_token_id": 266}, LoadError, "bos_token_id is 266"),
        ({"ggml.eos_token_id": -1}, LoadError, "eos_token_id is -1"),
        ({"ggml.eos_token_id": "x"}, LoadError, "eos_token_id is 'x'"),
        ({"ggml.add_bos_token": 1}, LoadError, "add_bos_token is 1"),
        ({"chat_template": 5}, LoadError, "chat_template is 5"),
        ({"ggml.tokens": byte_alphabet() + ["a"] * 10}, LoadError, "duplicate token 'a'"),
    ],
)
def test_malformed_metadata(changes: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        small(**changes)


def test_gguf_metadata_reads_back() -> None:
    source = metadata(chat_template="{{ messages }}", **{"ggml.add_bos_token": True})
    vocabulary = vocabulary_of_metadata(source)
    written = vocabulary.gguf_metadata()
    assert source.items() <= written.items()
    assert vocabulary_of_metadata(written) == vocabulary
    assert vocabulary.chat_templates == {"default": "{{ messages }}"}


def packed(strings: list[str]) -> PackedStrings:
    return PackedStrings(b"".join(len(s.encode()).to_bytes(8, "little") + s.encode() for s in strings), len(strings))


def test_packed_merges_equal_a_list_of_them() -> None:
    merges = ["h e", "l l", "he ll", "hell o", f"{SPACE} w"]
    strings = packed(merges)
    assert list(strings) == merges
    assert strings[-1] == merges[-1]
    tokenizer = small(**{"ggml.merges": strings})
    assert tokenizer.encode("hello w") == small().encode("hello w") == [259, 260]
    for data, n in ((strings.data[:-1], 5), (strings.data, 6), (b"\xff" * 8, 1), (b"", 1)):
        with pytest.raises(LoadError, match="truncated"):
            small(**{"ggml.merges": PackedStrings(data, n)})
    with pytest.raises(LoadError, match="merge 'ab'"):
        small(**{"ggml.merges": packed(["ab"])})


def test_packed_texts_stay_packed_while_a_model_is_opened() -> None:
    """An engine needs few texts of a vocabulary; a list of all would take megabytes for its whole life."""
    texts = packed(metadata()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    tokenizer, plain = small(**{"ggml.tokens": texts}), small()
    assert tokenizer.eog_ids == plain.eog_ids == {IM_END}
    assert tokenizer.special_texts == plain.special_texts == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert tokenizer.control_tokens == plain.control_tokens == {"<|im_start|>": IM_START, "<|im_end|>": IM_END}
    assert tokenizer.all_token_bytes() == plain.all_token_bytes()
    assert "_strings" not in vars(texts)


def test_intermediate_merges_without_a_token_become_byte_tokens() -> None:
    """Merges may pass through words that the vocabulary writes differently (runs of spaces in MPT's)."""
    tokenizer = Tokenizer(
        Vocabulary(
            texts=[*byte_alphabet(), "abc"],
            kinds=[TokenKind.NORMAL] * 257,
            merges=["a b", "ab c", "x y"],
            pre_tokenizer=named("gpt-2"),
        )
    )
    assert tokenizer.encode("abc") == [256]
    assert tokenizer.encode("ab") == [*b"ab"]
    assert tokenizer.encode("xy") == [*b"xy"]


def test_checkpoint_folder_to_gguf_metadata(shared: Path) -> None:
    folder = shared / "models" / "tiny-chat"
    if not folder.exists():
        pytest.skip(f"shared test data is absent: {folder}")
    tokenizer = Tokenizer.from_pretrained(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (None, 2, 0)
    assert tokenizer.eog_ids == {0, 2}
    assert tokenizer.chat_template is not None
    assert tokenizer.encode("<tool_call>") == [3]
    again = Tokenizer(vocabulary_of_metadata(tokenizer.vocabulary.gguf_metadata()))
    for text in random_texts(1000, seed=13):
        assert again.encode(text, parse_special=True) == tokenizer.encode(text, parse_special=True)


@pytest.mark.parametrize(
    ("place", "value", "error", "text"),
    [
        (("model", "type"), "WordLevel", UnsupportedError, "'WordLevel'"),
        (("model", "byte_fallback"), True, UnsupportedError, "all 256 byte tokens"),
        (("model", "dropout"), 0.1, UnsupportedError, "model.dropout"),
        (("model", "merges"), 3, LoadError, "merges.*int"),
        (("model", "vocab"), {"a": -1}, LoadError, "'a' is -1"),
        (("normalizer",), {"type": "NFKC"}, UnsupportedError, "'NFKC'"),
        (("pre_tokenizer",), None, UnsupportedError, "ByteLevel"),
        (("pre_tokenizer",), {"type": "Metaspace"}, UnsupportedError, "'Metaspace'"),
        (("pre_tokenizer",), {"type": "ByteLevel", "add_prefix_space": True}, UnsupportedError, "add_prefix_space"),
        (("pre_tokenizer", "pretokenizers", 0, "pattern"), {"Regex": r"\bx"}, UnsupportedError, r"escape \\b"),
        (("pre_tokenizer", "pretokenizers", 0, "behavior"), "Kept", UnsupportedError, "'Kept'"),
        (("post_processor",), {"type": "BertProcessing"}, LoadError, "post_processor.cls"),
        (("added_tokens",), [{"id": 3}], LoadError, "added token .*3"),
    ],
)
def test_unsupported_parts_of_tokenizer_json_are_errors(
    tmp_path: Path, shared: Path, place: tuple[str | int, ...], value: object, error: type[Exception], text: str
) -> None:
    source = json.loads((shared / "models" / "tiny-chat" / "tokenizer.json").read_text(encoding="utf-8"))
    parent = source
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(source), encoding="utf-8")
    with pytest.raises(error, match=text):
        Tokenizer.from_pretrained(tmp_path)


def test_template_processing_adds_its_tokens(tmp_path: Path, shared: Path) -> None:
    source = json.loads((shared / "models" / "tiny-chat" / "tokenizer.json").read_text(encoding="utf-8"))
    source["post_processor"] = {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                ],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
            },
        ],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(source), encoding="utf-8")
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    import tokenizers

    oracle = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("Once upon") == oracle.encode("Once upon").ids
    assert tokenizer.encode("Once upon", add_special=False) == oracle.encode("Once upon", add_special_tokens=False).ids
    with pytest.raises(LoadError, match="absent"):
        Tokenizer.from_pretrained(tmp_path / "absent")


def fastest(work: Callable[[], object]) -> float:
    """Seconds of this thread's processor time, so that other programs do not count."""
    times = []
    for _ in range(3):
        begin = time.thread_time()
        work()
        times.append(time.thread_time() - begin)
    return min(times)


@pytest.mark.parametrize("unit", ["a", " ", "\n", "hello", "👩‍👩‍👧‍👦", "<|im_", "  <think>", "一"], ids=ascii)
def test_time_is_linear_in_the_text(unit: str) -> None:
    tokenizer = small()
    text = unit * (100_000 // len(unit))
    once = fastest(lambda: tokenizer.encode(text, parse_special=True))
    eightfold = fastest(lambda: tokenizer.encode(text * 8, parse_special=True))
    # n log n stays below this even on a busy machine; quadratic time would be 64 times as long.
    assert eightfold < 30 * once
