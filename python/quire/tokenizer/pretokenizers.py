"""The published pre-tokenizers, by their names in GGUF files.

A pre-tokenizer is a list of passes, each of which splits the words of the previous one.  Native code
(``native/tokenizer/expression.h``) compiles the expressions; the tests compare it with Oniguruma.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import UnsupportedError

__all__ = ["BY_NAME", "EXPRESSIONS", "Alphabet", "Pass", "PreTokenizer", "gguf_name", "named"]

# Common parts of expressions.
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_NOT_HAN = r"&&[^\p{Han}]"
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CASCADE = "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"\s{1,2}(?!\S)|\s{1}"
_LATIN_GREEK_CYRILLIC = (
    "A-Za-z"
    "\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
    "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f"
    "\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)


def _cased_words(contraction: str = "", but: str = "") -> str:
    """Return GPT-4o's expression for words, which start anew at capital letters."""
    upper, lower = f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    return rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contraction}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contraction}"


def _tiktoken(digits: str, spaces: str = _SPACES) -> str:
    """Return GPT-4's expression (cl100k) with other digits or spaces."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
        + ("" if spaces is _SPACES else r"\s*[\r\n]+|")
        + spaces
    )


# Matches of an expression and the gaps between them are words.
EXPRESSIONS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": _tiktoken(r"\p{N}{1,3}"),
    "qwen2": _tiktoken(r"\p{N}"),
    "minicpm5": _tiktoken(r"\p{N}+"),
    "jais2": _tiktoken(r"\p{N}{1,3}", _CASCADE),
    "qwen35": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
    ),
    "no_contractions": rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "seed_coder": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
    ),
    "bailing": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "exaone_moe": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "gpt4o": rf"{_cased_words(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    "tekken": rf"{_cased_words()}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    "youtu": rf"{_cased_words(_CONTRACTIONS + '?')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    "kimi_k2": (
        rf"[\p{{Han}}]+|{_cased_words(_CONTRACTIONS + '?', _NOT_HAN)}|\p{{N}}{{1,3}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    ),
    "deepseek3": (
        rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
    ),
    "spark": (
        rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
        r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
    ),
    "deepseek_words": rf"\s?[{_LATIN_GREEK_CYRILLIC}]+",
    "deepseek_punctuation": "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    "last_spaces": r"\s+$",
    "east_asian": "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    "kana_and_han": "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "east_asian_runs": (
        "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
    ),
    "words": r"\s?\p{L}+",
    "punctuation": r"\s?\p{P}+",
    "line_ends": r"[\r\n]",
    "lines": r"[^\n]+|[\n]+",
    "not_spaces": r"\S+",
    # The third range starts at the normalized form of U+F900, like the reference's.
    "asian_scripts": (
        "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
        "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
        "\u1100-\u11ff]+"
    ),
    "digits": r"\p{N}",
    "number_runs": r"\p{N}+",
    "number_triples": r"\p{N}{1,3}",
    "digit_triples": r"[0-9][0-9][0-9]",
    "punctuation_runs": r"[\p{P}\$\+<=>\^~\|]+",
    "falcon_punctuation": r"[\p{P}\$\+<=>\^~\|`]+",
    "clip": _CLIP,
    "clip_with_marks": rf"<\|startoftext\|>|<\|endoftext\|>|{_CLIP}",
    "bloom": " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+",
    "chameleon_sentinels": "<sentinel:[0-9]+>",
    "chameleon_images": "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    "chameleon_spaces": r"([\t\n]|    |  )",
    "chameleon_punctuation": r"[\p{P}!-/:-@\[-`{-~]",
}


@dataclass(frozen=True)
class Pass:
    """One step of a pre-tokenizer.

    Attributes:
        expression: A regular expression; None cuts digits into groups of three from the right.
        behavior: The treatment of matches: "isolated", "removed", "merged_with_previous", "merged_with_next" or
            "contiguous"; for digits a name in ``THREES``.
        inverted: Apply it to the gaps between matches instead.
    """

    expression: str | None
    behavior: str = "isolated"
    inverted: bool = False


# Digits in groups of three from the right, which compiled expressions cannot do without unbounded look-ahead.
THREES = {
    "cuts": r"(?=(\d{3})+(?!\d))",
    "word_ends": r"\d{1,3}(?=(?:\d{3})*\b)",
    "numbers": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
}
CUT_THREES, WORD_END_THREES, NUMBER_THREES = (Pass(None, name) for name in THREES)


class Alphabet(enum.Enum):
    """The units of byte-pair encoding."""

    BYTES = "bytes"  # each written as a character, as in GPT-2
    CHARACTERS = "characters"  # with byte tokens for characters without a token


@dataclass(frozen=True)
class PreTokenizer:
    """The splitting of text into words, and other rules that have the same name in GGUF files.

    Attributes:
        ignore_merges: Take words that are tokens whole, without merging.
        whole_newlines: The same, only for words of line feeds.
        add_bos: Add the beginning-of-sequence token if the file does not say.
        always_bos: Add it whatever the file says.
        write_spaces: Write spaces as U+2581 (``CHARACTERS`` only).
        ends_words: A word's last token ends with ``</w>``; letters are lowercased.
    """

    passes: tuple[Pass, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    alphabet: Alphabet = Alphabet.BYTES
    whole_newlines: bool = False
    write_spaces: bool = False
    always_bos: bool = False
    ends_words: bool = False


def _of(*names: str, **rules: Any) -> PreTokenizer:
    return PreTokenizer(tuple(Pass(EXPRESSIONS[name]) for name in names), **rules)


_GPT2 = _of("gpt2")
_LLAMA3 = _of("llama3", ignore_merges=True, add_bos=True)
_TIKTOKEN = _of("llama3")
_QWEN2 = _of("qwen2")
_STARCODER = _of("digits", "gpt2")
_DEEPSEEK3 = _of("number_triples", "kana_and_han", "deepseek3")
_BLOOM = _of("bloom")
_GPT4O = _of("gpt4o")
_TINY_AYA = PreTokenizer((WORD_END_THREES, Pass(EXPRESSIONS["gpt4o"])))
_LINES = _of("lines", alphabet=Alphabet.CHARACTERS, write_spaces=True)
_GEMMA4 = replace(_LINES, whole_newlines=True, always_bos=True)


def _clip(name: str) -> PreTokenizer:
    return PreTokenizer((Pass(EXPRESSIONS[name], "removed", True), Pass(EXPRESSIONS["gpt2"])), ends_words=True)


# GGUF files are written with the first name of a pre-tokenizer.
BY_NAME = {
    **dict.fromkeys(
        (
            "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "mellum", "modern-bert",
            "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe", "a.x-4.0",
            "exaone4",
        ),
        _GPT2,
    ),
    **dict.fromkeys(
        (
            "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
        ),
        _LLAMA3,
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe"), _TIKTOKEN),
    **dict.fromkeys(("glm4", "glm5"), _of("llama3", ignore_merges=True)),
    **dict.fromkeys(
        (
            "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "hunyuan", "solar-open", "megrez", "grok-2",
        ),
        _QWEN2,
    ),
    "qwen35": _of("qwen35"),
    **dict.fromkeys(
        (
            "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2",
        ),
        _STARCODER,
    ),
    "deepseek-llm": _of(
        "line_ends", "deepseek_words", "deepseek_punctuation", "last_spaces", "east_asian", "number_runs"
    ),
    "deepseek-coder": _of("line_ends", "words", "punctuation", "east_asian", "digits"),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "spark2_5": _of("number_triples", "kana_and_han", "spark", "digits"),
    "youtu": _of("east_asian_runs", "youtu", ignore_merges=True),
    "falcon": _of("falcon_punctuation", "gpt2", "digit_triples"),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "viking": _of("bloom", "digits"),
    "tekken": _of("tekken", ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "granite-embed-multi-97m": _of("gpt4o", ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _TINY_AYA),
    "superbpe": PreTokenizer((Pass(EXPRESSIONS["number_runs"]), CUT_THREES)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _of("bailing")),
    "seed-coder": _of("seed_coder"),
    "ufakzeka": _of("no_contractions"),
    "exaone-moe": _of("exaone_moe"),
    "kimi-k2": _of("kimi_k2"),
    "laguna": _of("lines", "qwen2"),
    "minicpm5": _of("number_triples", "minicpm5", ignore_merges=True),
    "jais-2": _of("jais2"),
    "chameleon": _of(
        "chameleon_sentinels", "chameleon_images", "chameleon_spaces", "digits", "chameleon_punctuation", "gpt2",
        add_bos=True,
    ),
    "afmoe": PreTokenizer((NUMBER_THREES, Pass(EXPRESSIONS["asian_scripts"]), Pass(EXPRESSIONS["deepseek3"]))),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _GEMMA4),
    "sarvam-moe": _LINES,
    "whitespace": PreTokenizer((Pass(EXPRESSIONS["not_spaces"], "removed", True),), alphabet=Alphabet.CHARACTERS),
    "clip": _clip("clip"),
    "clip-marks": _clip("clip_with_marks"),
    "default": _of("punctuation_runs", "gpt2", "number_runs", "digit_triples"),
}  # fmt: skip


def named(name: str) -> PreTokenizer:
    """Return the pre-tokenizer with a ``tokenizer.ggml.pre`` name.  Raises UnsupportedError for unknown names."""
    if name not in BY_NAME:
        raise UnsupportedError(f"[tokenizer] unsupported pre-tokenizer {name!r}: supported are {', '.join(BY_NAME)}")
    return BY_NAME[name]


def gguf_name(pre_tokenizer: PreTokenizer) -> str:
    """Return the ``tokenizer.ggml.pre`` name of a pre-tokenizer.  Raises UnsupportedError if it has none."""
    for name, known in BY_NAME.items():
        if replace(known, add_bos=pre_tokenizer.add_bos, always_bos=pre_tokenizer.always_bos) == pre_tokenizer:
            return name
    raise UnsupportedError(
        "[tokenizer] GGUF has no name for the pre-tokenizer with the expressions "
        f"{[step.expression for step in pre_tokenizer.passes]} and ignore_merges={pre_tokenizer.ignore_merges}"
    )
