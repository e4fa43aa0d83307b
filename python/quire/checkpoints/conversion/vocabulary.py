"""Write a checkpoint's tokenizer as GGUF keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import LoadError
from ...tokenizer.from_pretrained import read_pretrained
from ...tokenizer.vocabulary import TokenKind, Vocabulary

if TYPE_CHECKING:
    from ...files.gguf import GGUFWriter

__all__ = ["write_vocabulary"]

_SPEECH = "<|startoftranscript|>"
ARRAY_TYPES = {"token_type": "i32[]", "scores": "f32[]", "end_ids": "u32[]"}


def write_vocabulary(writer: GGUFWriter, folder: Path, n_vocab: int) -> None:
    """Write tokens, merges, special ids and chat templates.

    Raises what ``Tokenizer.from_pretrained`` raises, and LoadError for an id that the model has no row for.
    """
    vocabulary = read_pretrained(folder)
    if vocabulary.prefix_ids and vocabulary.texts[vocabulary.prefix_ids[0]] == _SPEECH:
        # GGUF has no keys for these tokens, and the tokens around a transcript depend on what is asked for.
        vocabulary = replace(vocabulary, prefix_ids=(), suffix_ids=())
    n_tokens = len(vocabulary.texts)
    if n_tokens > n_vocab:
        raise LoadError(f"[convert] token id {n_tokens - 1} is out of range: expected less than vocab_size {n_vocab}")
    for key, value in _filled(vocabulary, n_vocab - n_tokens).gguf_metadata().items():
        if isinstance(value, bool | str):
            writer.set(key, value)
        elif isinstance(value, int):
            writer.set(key, value, "u32")
        elif isinstance(value, bytes):
            writer.set(key, list(value), "u8[]")
        elif isinstance(value, Sequence):
            writer.set(key, value, ARRAY_TYPES.get(key.rpartition(".")[2], "string[]"))


def _filled(vocabulary: Vocabulary, n_missing: int) -> Vocabulary:
    """Give rows without a token an unused token with a unique text, including ``n_missing`` rows at the end."""
    kinds = [*vocabulary.kinds, *[TokenKind.UNUSED] * n_missing]
    texts = [*vocabulary.texts, *[""] * n_missing]
    numbered = enumerate(zip(texts, kinds, strict=True))
    return replace(
        vocabulary,
        texts=[f"[PAD{i}]" if kind == TokenKind.UNUSED else text for i, (text, kind) in numbered],
        kinds=kinds,
        scores=[*vocabulary.scores, *[0.0] * n_missing] if vocabulary.scores else (),
    )
