"""The scanners against the published expressions, as Hugging Face `tokenizers` (Oniguruma) splits by them."""

from __future__ import annotations

import pytest
import tokenizers
from quire._tokenizer.pretokenize import split, unicode_version
from quire.errors import UnsupportedError
from quire.tokenizer.pretokenizers import BY_NAME, EXPRESSIONS, PreTokenizer, gguf_name, named, passes_of_expression
from token_texts import every_character, random_texts
from tokenizers import pre_tokenizers

PASSES = sorted({pre_tokenizer.passes for pre_tokenizer in BY_NAME.values()} | {(name,) for name in EXPRESSIONS})
# Unicode 16.0 names characters that an older Oniguruma has not heard of.
same_unicode = tuple(map(int, tokenizers.__version__.split(".")[:2])) >= (0, 22)


def published(passes: tuple[str, ...]) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(EXPRESSIONS[name]), "isolated") for name in passes]
    )


def pieces_of(oracle: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [piece for piece, _ in oracle.pre_tokenize_str(text)]


@pytest.mark.parametrize("passes", PASSES, ids="+".join)
def test_scanners_equal_the_published_expressions(passes: tuple[str, ...]) -> None:
    oracle = published(passes)
    for text in random_texts(4000, seed=1):
        assert [piece.decode() for piece in split(text, passes)] == pieces_of(oracle, text)


@pytest.mark.skipif(not same_unicode, reason="needs a tokenizers package with Unicode 16")
@pytest.mark.parametrize("passes", [("gpt2",), ("llama3",), ("digits",), ("punctuation_runs",)], ids="+".join)
def test_every_character_has_the_published_class(passes: tuple[str, ...]) -> None:
    assert unicode_version == "16.0.0"
    oracle = published(passes)
    for text in every_character():
        assert [piece.decode() for piece in split(text, passes)] == pieces_of(oracle, text)


def test_bytes_that_are_no_text_are_kept() -> None:
    data = b"ab\xff\xfe 12\xe4\xb8 \xf0\x9f\x98x\xc0\x80\n"
    for passes in PASSES:
        pieces = split(data, passes)
        assert b"".join(pieces) == data
        assert all(pieces)


def test_names() -> None:
    assert named("llama-bpe").ignore_merges
    assert gguf_name(named("starcoder")) == "starcoder"
    assert gguf_name(PreTokenizer(("llama3",))) in ("smaug-bpe", "dbrx")
    assert passes_of_expression(EXPRESSIONS["qwen2"]) == ("qwen2",)
    with pytest.raises(UnsupportedError, match=r"one of gpt-2, .*starcoder.* but is 'tekken-9'"):
        named("tekken-9")
    with pytest.raises(UnsupportedError, match="expression must be"):
        passes_of_expression(r"\w+")
    with pytest.raises(ValueError, match="a pass must be"):
        split("x", ["nothing"])
