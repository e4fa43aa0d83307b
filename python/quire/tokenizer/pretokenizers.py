"""Pre-tokenizers by their published expressions and by the names GGUF files give them.

A pre-tokenizer is a list of *passes*; each splits the words of the one before.  The scanners are native
(``native/tokenizer/pretokenize.h``); ``EXPRESSIONS`` says what each does, and the tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import UnsupportedError

__all__ = ["BY_NAME", "EXPRESSIONS", "PreTokenizer", "gguf_name", "named", "passes_of_expression"]

# What each pass does, as a regular expression whose matches, and what lies between them, are words.
EXPRESSIONS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "digits": r"\p{N}",
    "number_runs": r"\p{N}+",
    "digit_triples": r"[0-9][0-9][0-9]",
    "punctuation_runs": r"[\p{P}\$\+<=>\^~\|]+",
}


@dataclass(frozen=True)
class PreTokenizer:
    """How a text falls into words, and what goes by the same name in GGUF files.

    ``ignore_merges``: a word that is a token is that token, whatever the merges say.  ``add_bos``: whether the
    beginning-of-sequence token is added where the file does not say.
    """

    passes: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = PreTokenizer(("gpt2",))
_LLAMA3 = PreTokenizer(("llama3",), ignore_merges=True, add_bos=True)
_TIKTOKEN = PreTokenizer(("llama3",))
_QWEN2 = PreTokenizer(("qwen2",))
_STARCODER = PreTokenizer(("digits", "gpt2"))
_DEFAULT = PreTokenizer(("punctuation_runs", "gpt2", "number_runs", "digit_triples"))

# The first name of a pre-tokenizer is the one that is written.
BY_NAME = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "jais": _GPT2,
    "trillion": _GPT2,
    "granite-docling": _GPT2,
    "gigachat": _GPT2,
    "mellum": _GPT2,
    "modern-bert": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "lfm2": _LLAMA3,
    "smaug-bpe": _TIKTOKEN,
    "dbrx": _TIKTOKEN,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "kormo": _QWEN2,
    "stablelm2": _QWEN2,
    "hunyuan": _QWEN2,
    "solar-open": _QWEN2,
    "megrez": _QWEN2,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "command-r": _STARCODER,
    "smollm": _STARCODER,
    "codeshell": _STARCODER,
    "exaone": _STARCODER,
    "minerva-7b": _STARCODER,
    "mellum2": _STARCODER,
    "default": _DEFAULT,
}


def named(name: str) -> PreTokenizer:
    """The pre-tokenizer of a ``tokenizer.ggml.pre`` name.  Raises UnsupportedError, listing what is known."""
    if name not in BY_NAME:
        raise UnsupportedError(f"[tokenizer] pre-tokenizer must be one of {', '.join(BY_NAME)} but is {name!r}")
    return BY_NAME[name]


def gguf_name(pre_tokenizer: PreTokenizer) -> str:
    """The ``tokenizer.ggml.pre`` name that stands for a pre-tokenizer.  Raises UnsupportedError if there is none."""
    for name, known in BY_NAME.items():
        if known.passes == pre_tokenizer.passes and known.ignore_merges == pre_tokenizer.ignore_merges:
            return name
    raise UnsupportedError(
        f"[tokenizer] GGUF must have a name for the pre-tokenizer but has none for the passes {pre_tokenizer.passes} "
        f"with ignore_merges={pre_tokenizer.ignore_merges}"
    )


def passes_of_expression(expression: str) -> tuple[str, ...]:
    """The passes that do what a published expression does.  Raises UnsupportedError for one that is not known."""
    for name, known in EXPRESSIONS.items():
        if expression == known:
            return (name,)
    raise UnsupportedError(f"[tokenizer] the pre-tokenizer's expression must be a known one but is {expression!r}")
