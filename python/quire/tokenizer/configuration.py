"""The additions of ``tokenizer_config.json`` and ``added_tokens.json`` to a vocabulary."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from quire.errors import LoadError, UnsupportedError
from quire.tokenizer.vocabulary import AddedTokenRule, Family, TokenKind, Vocabulary

__all__ = ["end_ids_of", "special_ids_of", "with_configuration"]

_LOG = logging.getLogger("quire")

Json: TypeAlias = "Mapping[str, object]"

# The special ids for the keys of tokenizer_config.json.
CONFIG_NAMES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unk": "unk_token",
    "sep": "sep_token",
    "pad": "pad_token",
    "mask": "mask_token",
    "cls": "cls_token",
}


def special_ids_of(config: Json, ids: Mapping[str, int]) -> dict[str, int]:
    """Return the special ids in tokenizer_config.json.  Raises LoadError for a value that is not text.

    Tokens that the vocabulary lacks are ignored with a warning.  Transformers gives them new ids, for which the model
    has no embeddings.
    """
    found, absent = {}, []
    for name, key in CONFIG_NAMES.items():
        value = config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            continue
        if not isinstance(text, str):
            raise LoadError(f"[tokenizer] tokenizer_config.json: {key} is {text!r}: expected the text of a token")
        if text in ids:
            found[name] = ids[text]
        else:
            absent.append(f"{key} {text!r:.40}")
    if absent:
        _LOG.warning(
            "[tokenizer] ignoring special tokens of tokenizer_config.json that the vocabulary lacks: %s",
            ", ".join(absent),
        )
    return found


def end_ids_of(place: Path, n_tokens: int) -> tuple[int, ...]:
    """Return the ids that end an answer, from ``eos_token_id`` of generation_config.json and config.json.

    Ids outside the vocabulary are ignored with a warning.  Raises LoadError for a value that is neither an id nor a
    list of ids.
    """
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = place / name
        if not path.is_file():
            continue
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise LoadError(f"[tokenizer] {path} is not valid JSON: {error}") from error
        value = values.get("eos_token_id") if isinstance(values, dict) else None
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(id, int) and not isinstance(id, bool) for id in ids):
            raise LoadError(f"[tokenizer] {name}: eos_token_id is {value!r:.80}: expected an id or a list of ids")
        beyond = [id for id in ids if not 0 <= id < n_tokens]
        if beyond:
            _LOG.warning("[tokenizer] %s: ignoring eos_token_id outside the vocabulary: %s", name, beyond)
        found.update(id for id in ids if 0 <= id < n_tokens)
    return tuple(sorted(found))


def with_configuration(found: Vocabulary, place: Path, config: Json) -> Vocabulary:
    """Add the tokens in the files next to a ``tokenizer.model``, and the tokens before and after a text."""
    texts, kinds, scores = list(found.texts), list(found.kinds), list(found.scores)
    rules = []
    for id, entry in sorted(_added(place, config).items()):
        text = entry["content"]
        while len(texts) <= id:
            texts.append("")
            kinds.append(TokenKind.UNUSED)
            scores.append(0.0)
        if kinds[id] not in (TokenKind.UNKNOWN, TokenKind.BYTE):
            kinds[id] = TokenKind.CONTROL if entry.get("special") else TokenKind.USER_DEFINED
        texts[id] = str(text)
        flags = {name: bool(entry.get(name)) for name in ("single_word", "normalized")}
        rules.append(AddedTokenRule(id, bool(entry.get("lstrip")), bool(entry.get("rstrip")), **flags))
    ids = {text: id for id, text in enumerate(texts) if text}
    special_ids = dict(found.special_ids) | special_ids_of(config, ids)
    # Defaults of the published classes: Llama's tokenizer for byte pairs, T5's for unigram, PLaMo's.
    is_unigram = found.family is Family.UNIGRAM
    before = config.get("add_bos_token", not is_unigram) is True and "bos" in special_ids
    after = config.get("add_eos_token", is_unigram) is True and "eos" in special_ids
    doubles = found.doubles_separator
    if (_named(texts, special_ids, "bos"), _named(texts, special_ids, "eos")) == ("[CLS]", "[SEP]"):  # DeBERTa's
        for name in ("do_lower_case", "split_by_punct"):
            if config.get(name):
                raise UnsupportedError(f"[tokenizer] tokenizer_config.json: {name} is unsupported: expected false")
        before, after, doubles = True, True, False
    return replace(
        found,
        doubles_separator=doubles,
        texts=texts,
        kinds=kinds,
        scores=scores,
        added=tuple(rules),
        special_ids=special_ids,
        prefix_ids=(special_ids["bos"],) if before else (),
        suffix_ids=(special_ids["eos"],) if after else (),
    )


def _named(texts: Sequence[str], special_ids: Mapping[str, int], name: str) -> str | None:
    return texts[special_ids[name]] if name in special_ids else None


def _added(place: Path, config: Json) -> dict[int, dict[str, object]]:
    """Return added tokens by id."""
    found: dict[int, dict[str, object]] = {}
    path = place / "added_tokens.json"
    if path.exists():
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
            found = {int(id): {"content": str(text)} for text, id in entries.items()}
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise LoadError(f"[tokenizer] {path} does not hold texts and ids: {error}") from error
    decoder = config.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        raise LoadError("[tokenizer] tokenizer_config.json: added_tokens_decoder is not an object")
    for id, entry in decoder.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or not id.isdecimal():
            raise LoadError(f"[tokenizer] tokenizer_config.json: malformed added token {id}: {entry!r}")
        found[int(id)] = entry
    for id, entry in found.items():
        if not 0 <= id < 1 << 24 or not entry["content"]:
            raise LoadError(f"[tokenizer] malformed added token {id}: {entry!r}")
    return found
