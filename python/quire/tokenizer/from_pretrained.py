"""Vocabularies from a checkpoint folder: ``tokenizer.json`` and ``tokenizer_config.json``.

Everything in ``tokenizer.json`` that changes ids is honoured or refused by name.  ``truncation`` and ``padding`` are
settings of whoever calls and do not belong to the vocabulary.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from quire.errors import LoadError, UnsupportedError
from quire.tokenizer.pretokenizers import EXPRESSIONS, Pass, PreTokenizer
from quire.tokenizer.vocabulary import AddedTokenRule, Normalization, TokenKind, Vocabulary

__all__ = ["read_pretrained"]

Json: TypeAlias = "Mapping[str, object]"

# Special ids by the names of tokenizer_config.json.
CONFIG_NAMES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unk": "unk_token",
    "sep": "sep_token",
    "pad": "pad_token",
    "mask": "mask_token",
}


def read_pretrained(folder: str | os.PathLike[str]) -> Vocabulary:
    """The vocabulary of a checkpoint folder.

    Raises LoadError where a file is absent or malformed, and UnsupportedError naming what is not byte-level BPE.
    """
    place = Path(folder)
    tokenizer = _read_json(place / "tokenizer.json")
    config_path = place / "tokenizer_config.json"
    config = _read_json(config_path) if config_path.exists() else {}
    model = _object(tokenizer, "model")
    _check_model(model)
    texts, kinds, added = _tokens(tokenizer, model)
    ids = {text: id for id, text in enumerate(texts) if text}
    special_ids = _special_ids(config, ids)
    pre_tokenizer = PreTokenizer(
        passes=_passes(tokenizer.get("pre_tokenizer")), ignore_merges=bool(model.get("ignore_merges", False))
    )
    post_processor = tokenizer.get("post_processor")
    prefix_ids, suffix_ids = _template(post_processor)
    if post_processor is None:
        prefix_ids = (special_ids["bos"],) if config.get("add_bos_token") is True and "bos" in special_ids else ()
        suffix_ids = (special_ids["eos"],) if config.get("add_eos_token") is True and "eos" in special_ids else ()
    return Vocabulary(
        texts=texts,
        kinds=kinds,
        merges=_merges(model),
        pre_tokenizer=pre_tokenizer,
        special_ids=special_ids,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        added=added,
        normalization=_normalization(tokenizer.get("normalizer")),
        chat_templates=_chat_templates(place, config),
    )


def _read_json(path: Path) -> Json:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"[tokenizer] {path} must be readable but is not: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"[tokenizer] {path} must be a JSON file but: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(f"[tokenizer] {path} must hold an object but holds {type(value).__name__}")
    return value


def _object(parent: Json, key: str) -> Json:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise LoadError(f"[tokenizer] tokenizer.json: {key} must be an object but is {type(value).__name__}")
    return value


def _objects(parent: Json, key: str) -> list[Json]:
    value = parent.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise LoadError(f"[tokenizer] tokenizer.json: {key} must be a list of objects")
    return value


def _check_model(model: Json) -> None:
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedError(f"[tokenizer] tokenizer.json: model.type must be BPE but is {model.get('type')!r}")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise UnsupportedError(f"[tokenizer] tokenizer.json: model.{key} must be unset but is {model[key]!r}")


def _tokens(tokenizer: Json, model: Json) -> tuple[list[str], list[int], tuple[AddedTokenRule, ...]]:
    """Texts and kinds by id, and how added tokens are matched."""
    words = _object(model, "vocab")
    found: dict[int, tuple[str, int]] = {}
    for word, number in words.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 24:
            raise LoadError(f"[tokenizer] tokenizer.json: the id of {word!r} must be a small integer but is {number!r}")
        found[number] = (word, TokenKind.NORMAL)
    if len(found) != len(words):
        raise LoadError("[tokenizer] tokenizer.json: ids must be unique but some tokens share one")
    unknown = model.get("unk_token")
    rules = []
    for entry in _objects(tokenizer, "added_tokens"):
        id, text = entry.get("id"), entry.get("content")
        if not isinstance(id, int) or not 0 <= id < 1 << 24 or not isinstance(text, str) or not text:
            raise LoadError(f"[tokenizer] tokenizer.json: an added token must have an id and a text but is {entry!r}")
        found[id] = (text, TokenKind.CONTROL if entry.get("special") else TokenKind.USER_DEFINED)
        flags = {name: bool(entry.get(name)) for name in ("single_word", "normalized")}
        rules.append(AddedTokenRule(id, bool(entry.get("lstrip")), bool(entry.get("rstrip")), **flags))
    texts = [""] * (max(found, default=-1) + 1)
    kinds: list[int] = [TokenKind.UNUSED] * len(texts)
    for id, (text, kind) in found.items():
        texts[id] = text
        kinds[id] = TokenKind.UNKNOWN if text == unknown and kind == TokenKind.NORMAL else kind
    return texts, kinds, tuple(rules)


def _merges(model: Json) -> list[str]:
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise LoadError("[tokenizer] tokenizer.json: model.merges must be a list")
    try:
        return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    except TypeError:
        raise LoadError("[tokenizer] tokenizer.json: model.merges must hold pairs of strings") from None


def _passes(pre_tokenizer: object) -> tuple[Pass, ...]:
    """The passes of a pre-tokenizer; it must end in the byte-level alphabet."""
    if not isinstance(pre_tokenizer, dict):
        raise UnsupportedError("[tokenizer] tokenizer.json: pre_tokenizer must be byte-level but is absent")
    steps = _objects(pre_tokenizer, "pretokenizers") if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
    if not steps or steps[-1].get("type") != "ByteLevel":
        raise UnsupportedError(
            "[tokenizer] tokenizer.json: pre_tokenizer must end in ByteLevel but has "
            f"{[step.get('type') for step in steps]}"
        )
    passes: list[Pass] = []
    for step in steps:
        passes += _passes_of_step(step)
    return tuple(passes)


BEHAVIORS = {
    "Isolated": "isolated",
    "Removed": "removed",
    "MergedWithPrevious": "merged_with_previous",
    "MergedWithNext": "merged_with_next",
    "Contiguous": "contiguous",
}
# Expressions whose matches leave nothing between them: removing the rest is keeping the matches.
COMPLETE = frozenset(EXPRESSIONS[name] for name in ("gpt2", "llama3", "qwen2", "gpt4o", "tekken"))
THREES = {r"(?=(\d{3})+(?!\d))": "cuts", r"\d{1,3}(?=(?:\d{3})*\b)": "word_ends"}


def _passes_of_step(step: Json) -> tuple[Pass, ...]:
    kind = step.get("type")
    if kind == "ByteLevel":
        if step.get("add_prefix_space", True):
            raise UnsupportedError("[tokenizer] tokenizer.json: ByteLevel.add_prefix_space must be false but is true")
        return (Pass(EXPRESSIONS["gpt2"]),) if step.get("use_regex", True) else ()
    if kind == "Digits":
        return (Pass(EXPRESSIONS["digits" if step.get("individual_digits", False) else "number_runs"]),)
    if kind == "Punctuation":
        return (Pass(EXPRESSIONS["chameleon_punctuation"], _behavior(step)),)
    if kind == "Split":
        return (_split(step),)
    raise UnsupportedError(
        f"[tokenizer] tokenizer.json: the pre-tokenizer {kind!r} must be ByteLevel, Digits, Punctuation or Split"
    )


def _behavior(step: Json) -> str:
    name = step.get("behavior", "Isolated")
    if not isinstance(name, str) or name not in BEHAVIORS:
        raise UnsupportedError(f"[tokenizer] tokenizer.json: behavior must be one of {', '.join(BEHAVIORS)}")
    return BEHAVIORS[name]


def _split(step: Json) -> Pass:
    pattern = step.get("pattern")
    pattern = pattern if isinstance(pattern, dict) else {}
    expression, text = pattern.get("Regex"), pattern.get("String")
    if expression is None and isinstance(text, str) and text:
        expression = re.sub(r"([^0-9A-Za-z\s_])", r"\\\1", text) if text.isascii() else text
    if not isinstance(expression, str):
        raise LoadError("[tokenizer] tokenizer.json: Split.pattern must be a Regex or a String")
    behavior, inverted = _behavior(step), bool(step.get("invert"))
    if behavior == "removed" and inverted and expression in COMPLETE:
        behavior, inverted = "isolated", False
    if expression in THREES and behavior == "isolated" and not inverted:
        return Pass(None, THREES[expression])
    return Pass(expression, behavior, inverted)


def _normalization(normalizer: object) -> Normalization:
    if normalizer is None:
        return Normalization.NONE
    kind = normalizer.get("type") if isinstance(normalizer, dict) else None
    if kind == "NFC":
        return Normalization.NFC
    if kind == "Sequence" and isinstance(normalizer, dict) and not _objects(normalizer, "normalizers"):
        return Normalization.NONE
    raise UnsupportedError(f"[tokenizer] tokenizer.json: the normalizer must be absent or NFC but is {kind!r}")


def _template(post_processor: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after a single text."""
    if post_processor is None:
        return (), ()
    kind = post_processor.get("type") if isinstance(post_processor, dict) else None
    if isinstance(post_processor, dict) and kind == "Sequence":
        before: tuple[int, ...] = ()
        after: tuple[int, ...] = ()
        for step in _objects(post_processor, "processors"):
            first, last = _template(step)
            before, after = first + before, after + last
        return before, after
    if kind == "ByteLevel":  # moves offsets, not ids
        return (), ()
    if not isinstance(post_processor, dict) or kind != "TemplateProcessing":
        raise UnsupportedError(
            f"[tokenizer] tokenizer.json: the post-processor must be TemplateProcessing or ByteLevel but is {kind!r}"
        )
    parts: tuple[list[int], list[int]] = ([], [])
    seen_text = 0
    for step in _objects(post_processor, "single"):
        if "Sequence" in step:
            seen_text += 1
            continue
        name = _object(step, "SpecialToken").get("id")
        ids = _object(_object(post_processor, "special_tokens"), str(name)).get("ids")
        if not isinstance(ids, list) or not all(isinstance(id, int) for id in ids):
            raise LoadError(f"[tokenizer] tokenizer.json: the ids of {name!r} in post_processor must be integers")
        parts[min(seen_text, 1)].extend(ids)
    if seen_text != 1:
        raise UnsupportedError("[tokenizer] tokenizer.json: post_processor.single must hold the text once")
    return tuple(parts[0]), tuple(parts[1])


def _special_ids(config: Json, ids: Mapping[str, int]) -> dict[str, int]:
    found = {}
    for name, key in CONFIG_NAMES.items():
        value = config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            continue
        if not isinstance(text, str) or text not in ids:
            raise LoadError(f"[tokenizer] tokenizer_config.json: {key} must be a token but is {text!r}")
        found[name] = ids[text]
    return found


def _chat_templates(place: Path, config: Json) -> dict[str, str]:
    """By name; a template in a file of its own comes before the one in tokenizer_config.json."""
    found: dict[str, str] = {}
    value = config.get("chat_template")
    if isinstance(value, str):
        found["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if not isinstance(entry, dict) or not isinstance(entry.get("template"), str):
                raise LoadError("[tokenizer] tokenizer_config.json: a chat template must have a name and a template")
            found[str(entry.get("name"))] = entry["template"]
    elif value is not None:
        raise LoadError(f"[tokenizer] tokenizer_config.json: chat_template must be text but is {type(value).__name__}")
    file = place / "chat_template.jinja"
    if file.exists():
        found["default"] = file.read_text(encoding="utf-8")
    return found
