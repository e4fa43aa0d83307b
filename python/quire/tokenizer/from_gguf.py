"""Vocabularies from GGUF metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from quire._native.gguf import Reader
from quire._tokenizer.packed import PackedStrings
from quire.errors import LoadError, UnsupportedError
from quire.tokenizer.end_of_generation import NAMES
from quire.tokenizer.pretokenizers import named
from quire.tokenizer.vocabulary import SPECIAL_KEYS, TokenKind, Vocabulary

__all__ = ["read_gguf", "vocabulary_of_metadata"]

MERGES = "tokenizer.ggml.merges"
FAMILIES = ("gpt2",)


def read_gguf(path: str | os.PathLike[str]) -> Vocabulary:
    """The vocabulary of a GGUF file.  Raises LoadError and UnsupportedError."""
    reader = Reader(os.fspath(path), load="mmap")
    keys = [key for key in list(reader.keys()) if key.startswith("tokenizer.") and key != MERGES]
    metadata = {key: reader.value(key) for key in keys}
    if reader.has(MERGES) and reader.value_type(MERGES) == "string[]":
        metadata[MERGES] = PackedStrings(*reader.packed_strings(MERGES))
    return vocabulary_of_metadata(metadata)


def vocabulary_of_metadata(metadata: Mapping[str, object]) -> Vocabulary:
    """The vocabulary in GGUF keys and values.

    Raises LoadError where a value is absent, of a wrong type, or does not fit the others, and UnsupportedError for a
    family or pre-tokenizer that is not known.
    """
    family = _string(metadata, "tokenizer.ggml.model")
    if family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UnsupportedError(f"[tokenizer] tokenizer.ggml.model must be one of {known} but is {family!r}")
    pre_tokenizer = named(_string(metadata, "tokenizer.ggml.pre", "default"))
    texts = _strings(metadata, "tokenizer.ggml.tokens")
    special_ids = {name: _integer(metadata, key) for name, key in SPECIAL_KEYS.items() if key in metadata}
    for name, id in special_ids.items():
        if not 0 <= id < len(texts):
            raise LoadError(f"[tokenizer] {SPECIAL_KEYS[name]} must be below {len(texts)} but is {id}")
    add_bos = _boolean(metadata, "tokenizer.ggml.add_bos_token", pre_tokenizer.add_bos)
    add_eos = _boolean(metadata, "tokenizer.ggml.add_eos_token", False)
    prefix = "tokenizer.chat_template"
    return Vocabulary(
        texts=texts,
        kinds=_kinds(metadata, texts),
        merges=_strings(metadata, MERGES),
        pre_tokenizer=pre_tokenizer,
        special_ids=special_ids,
        prefix_ids=(special_ids["bos"],) if add_bos and "bos" in special_ids else (),
        suffix_ids=(special_ids["eos"],) if add_eos and "eos" in special_ids else (),
        chat_templates={
            key[len(prefix) + 1 :] or "default": _string(metadata, key)
            for key in metadata
            if key == prefix or key.startswith(prefix + ".")
        },
    )


def _kinds(metadata: Mapping[str, object], texts: Sequence[str]) -> list[int]:
    key = "tokenizer.ggml.token_type"
    values = metadata.get(key)
    if values is None:
        return [TokenKind.NORMAL] * len(texts)
    if not isinstance(values, (list, np.ndarray)):
        raise LoadError(f"[tokenizer] {key} must be an array but is {type(values).__name__}")
    kinds: list[int] = list(values) if isinstance(values, list) else values.tolist()
    used = set(kinds)
    for odd in used - set(TokenKind):
        raise LoadError(f"[tokenizer] {key} must hold kinds of byte-level BPE, 1 to 5, but has {odd}")
    # Some files have marks that end an answer among the user-defined tokens, which user text may contain.
    for id, kind in enumerate(kinds if TokenKind.USER_DEFINED in used else ()):
        if kind == TokenKind.USER_DEFINED and texts[id] in NAMES:
            kinds[id] = TokenKind.CONTROL
    return kinds


def _string(metadata: Mapping[str, object], key: str, default: str | None = None) -> str:
    value = metadata.get(key, default)
    if not isinstance(value, str):
        raise LoadError(f"[tokenizer] {key} must be a string but is {'absent' if value is None else repr(value)}")
    return value


def _strings(metadata: Mapping[str, object], key: str) -> Sequence[str]:
    value = metadata.get(key)
    if isinstance(value, PackedStrings):
        return value
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise LoadError(f"[tokenizer] {key} must be an array of strings but is {type(value).__name__}")
    return value


def _integer(metadata: Mapping[str, object], key: str) -> int:
    value = metadata[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise LoadError(f"[tokenizer] {key} must be an integer but is {value!r}")
    return value


def _boolean(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise LoadError(f"[tokenizer] {key} must be a boolean but is {value!r}")
    return value
