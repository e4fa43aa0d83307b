"""Read vocabularies from a checkpoint folder: ``tokenizer.json`` or ``tokenizer.model``, and ``tokenizer_config.json``.

Everything in ``tokenizer.json`` that changes ids is either supported or an error that names it.  ``truncation`` and
``padding`` are the caller's settings and not part of the vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from quire.errors import LoadError, UnsupportedError
from quire.tokenizer.configuration import end_ids_of, special_ids_of, with_configuration
from quire.tokenizer.end_of_generation import end_of_generation_ids
from quire.tokenizer.json_file import read_object
from quire.tokenizer.json_merges import character_pairs, ended_words, merges_of
from quire.tokenizer.json_models import (
    case_rules,
    character_map,
    space_rules,
    unigram_entries,
    word_piece_texts,
)
from quire.tokenizer.json_passes import is_white_space_split, passes_of
from quire.tokenizer.marks import with_marks_apart
from quire.tokenizer.mistral_chat import VERSIONS, mistral_template
from quire.tokenizer.plamo import read_jsonl
from quire.tokenizer.pretokenizers import PreTokenizer
from quire.tokenizer.sentencepiece import read_sentencepiece
from quire.tokenizer.tekken import TEKKEN, read_tekken
from quire.tokenizer.vocabulary import (
    BYTE_TOKEN,
    BYTES,
    WORD_END,
    AddedTokenRule,
    Family,
    Normalization,
    TokenKind,
    Vocabulary,
)

__all__ = ["read_pretrained"]

JSONL = "tokenizer.jsonl"  # PLaMo's

Json: TypeAlias = "Mapping[str, object]"


def read_pretrained(folder: str | os.PathLike[str]) -> Vocabulary:
    """Read the vocabulary of a checkpoint folder.

    The file is ``tokenizer.json``, else ``tokenizer.model``, Mistral's ``tekken.json`` or PLaMo's ``tokenizer.jsonl``.

    Raises:
        LoadError: A file is missing or malformed.
        UnsupportedError: The tokenizer uses an unsupported feature, which the message names.
    """
    place = Path(folder)
    config_path = place / "tokenizer_config.json"
    config = read_object(config_path) if config_path.exists() else {}
    for name in ("tokenizer.model", "spiece.model", "spm.model", *(f"tokenizer.model.{v}" for v in VERSIONS)):
        if not (place / "tokenizer.json").exists() and (place / name).exists():
            found = with_configuration(read_sentencepiece(place / name), place, config)
            end_ids = end_ids_of(place, len(found.texts))
            own = mistral_template(name.rpartition(".")[2], found.texts)
            templates = _chat_templates(place, config) or ({} if own is None else {"default": own})
            return _told_apart(replace(found, chat_templates=templates, end_ids=end_ids))
    if not (place / "tokenizer.json").exists() and (place / TEKKEN).exists():
        found = read_tekken(place / TEKKEN)
        return _told_apart(replace(found, chat_templates=_chat_templates(place, config) or found.chat_templates))
    if not (place / "tokenizer.json").exists() and (place / JSONL).exists():
        found = with_configuration(read_jsonl(place / JSONL), place, config)
        end_ids = end_ids_of(place, len(found.texts))
        return _told_apart(replace(found, chat_templates=_chat_templates(place, config), end_ids=end_ids))
    tokenizer = read_object(place / "tokenizer.json")
    model = _object(tokenizer, "model")
    _check_model(model)
    words, scores = _words(model)
    texts, kinds, added = _tokens(tokenizer, model, words)
    ids = {text: id for id, text in enumerate(texts) if text}
    special_ids = special_ids_of(config, ids)
    if TokenKind.UNKNOWN in kinds:
        special_ids["unk"] = kinds.index(TokenKind.UNKNOWN)  # tokenizer.json takes precedence for text
    post_processor = tokenizer.get("post_processor")
    prefix_ids, suffix_ids = _template(post_processor)
    if post_processor is None:
        prefix_ids = (special_ids["bos"],) if config.get("add_bos_token") is True and "bos" in special_ids else ()
        suffix_ids = (special_ids["eos"],) if config.get("add_eos_token") is True and "eos" in special_ids else ()
    first, last = ("cls", "sep") if model.get("type") == "WordPiece" else ("bos", "eos")
    if len(prefix_ids) == 1:
        special_ids.setdefault(first, prefix_ids[0])
    if len(suffix_ids) == 1:
        special_ids.setdefault(last, suffix_ids[0])
    found = Vocabulary(
        texts=texts,
        kinds=kinds,
        special_ids=special_ids,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        doubles_separator=_doubles_separator(post_processor, suffix_ids),
        end_ids=end_ids_of(place, len(texts)),
        added=added,
        chat_templates=_chat_templates(place, config),
        scores=[*scores, *[0.0] * (len(texts) - len(scores))],
    )
    return _told_apart(_with_model(found, tokenizer, model))


def _told_apart(found: Vocabulary) -> Vocabulary:
    """Keep marks apart from text, and drop end ids that are known without being listed."""
    found = with_marks_apart(found)
    known = end_of_generation_ids(found.texts, found.kinds, found.special_ids)
    return replace(found, end_ids=tuple(id for id in found.end_ids if id not in known))


def _with_model(found: Vocabulary, tokenizer: Json, model: Json) -> Vocabulary:
    """Add the parts that the family needs."""
    normalizer, pre_tokenizer = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
    kind = model.get("type", "BPE")
    if model.get("end_of_word_suffix"):
        return ended_words(found, tokenizer, model)
    if kind == "BPE" and not model.get("byte_fallback") and not is_white_space_split(pre_tokenizer):
        splitting = PreTokenizer(passes_of(pre_tokenizer), ignore_merges=bool(model.get("ignore_merges", False)))
        normalization = _normalization(normalizer)
        if model.get("fuse_unk") and TokenKind.UNKNOWN in found.kinds and not set(found.texts) >= BYTES:
            raise UnsupportedError(
                "[tokenizer] tokenizer.json: model.fuse_unk is unsupported if some bytes have no token"
            )
        return replace(found, merges=merges_of(model), pre_tokenizer=splitting, normalization=normalization, scores=())
    if normalizer is not None and any(rule.normalized and not _is_kept(found, rule, str(kind)) for rule in found.added):
        raise UnsupportedError("[tokenizer] tokenizer.json: added tokens matched after normalization are unsupported")
    if kind == "WordPiece":
        return replace(
            found,
            family=Family.WORD_PIECE,
            texts=word_piece_texts(model, found.texts, found.kinds),
            case=case_rules(normalizer, pre_tokenizer),
            scores=(),
        )
    if kind == "Unigram":
        spaces = space_rules(normalizer, pre_tokenizer)
        return replace(found, family=Family.UNIGRAM, spaces=spaces, character_map=character_map(normalizer))
    return character_pairs(found, tokenizer, model)


def _is_kept(found: Vocabulary, rule: AddedTokenRule, kind: str) -> bool:
    """Return whether normalization keeps a mark, so that it may be matched before (MPNet's ``<unk>``, DeBERTa's).

    Then only spellings in capitals stay text, which the published tokenizers take for the mark.
    """
    text = found.texts[rule.id]
    is_text = kind not in ("WordPiece", "Unigram") or found.kinds[rule.id] == TokenKind.USER_DEFINED
    return not is_text and text.isascii() and (text.islower() or kind == "Unigram")


def _object(parent: Json, key: str) -> Json:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise LoadError(f"[tokenizer] tokenizer.json: {key} is {type(value).__name__}: expected an object")
    return value


def _objects(parent: Json, key: str) -> list[Json]:
    value = parent.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise LoadError(f"[tokenizer] tokenizer.json: {key} is not a list of objects")
    return value


def _check_model(model: Json) -> None:
    kind = model.get("type", "BPE")
    if kind not in ("BPE", "Unigram", "WordPiece"):
        raise UnsupportedError(
            f"[tokenizer] tokenizer.json: unsupported model.type {kind!r}: supported are BPE, Unigram and WordPiece"
        )
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key) and kind == "BPE" and (key, model[key]) != ("end_of_word_suffix", WORD_END):
            raise UnsupportedError(f"[tokenizer] tokenizer.json: model.{key} is unsupported: {model[key]!r}")


def _words(model: Json) -> tuple[Mapping[str, object], list[float]]:
    """Return the ids of the model's own tokens and their scores, [] if it has none."""
    if model.get("type") != "Unigram":
        return _object(model, "vocab"), []
    texts, scores = unigram_entries(model)
    return {text: id for id, text in enumerate(texts)}, scores


def _unknown(model: Json, words: Mapping[str, object]) -> object:
    """Return the id of the unknown token."""
    text = model.get("unk_token")
    return model.get("unk_id") if model.get("type") == "Unigram" else words.get(text) if isinstance(text, str) else None


def _tokens(
    tokenizer: Json, model: Json, words: Mapping[str, object]
) -> tuple[list[str], list[int], tuple[AddedTokenRule, ...]]:
    """Return texts and types by id, and the options of added tokens."""
    found: dict[int, tuple[str, int]] = {}
    has_bytes = bool(model.get("byte_fallback"))
    for word, number in words.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 24:
            raise LoadError(f"[tokenizer] tokenizer.json: the id of {word!r} is {number!r}: expected 0 to 2^24 - 1")
        is_byte = has_bytes and word.startswith("<0x") and BYTE_TOKEN.fullmatch(word) is not None
        found[number] = (word, TokenKind.BYTE if is_byte else TokenKind.NORMAL)
    if len(found) != len(words):
        raise LoadError("[tokenizer] tokenizer.json: several tokens have the same id")
    rules = []
    for entry in _objects(tokenizer, "added_tokens"):
        id, text = entry.get("id"), entry.get("content")
        if not isinstance(id, int) or not 0 <= id < 1 << 24 or not isinstance(text, str) or not text:
            raise LoadError(f"[tokenizer] tokenizer.json: an added token lacks its id or text: {entry!r}")
        found[id] = (text, TokenKind.CONTROL if entry.get("special") else TokenKind.USER_DEFINED)
        flags = {name: bool(entry.get(name)) for name in ("single_word", "normalized")}
        rules.append(AddedTokenRule(id, bool(entry.get("lstrip")), bool(entry.get("rstrip")), **flags))
    texts = [""] * (max(found, default=-1) + 1)
    kinds: list[int] = [TokenKind.UNUSED] * len(texts)
    unknown = _unknown(model, words)
    for id, (text, kind) in found.items():
        texts[id] = text
        kinds[id] = TokenKind.UNKNOWN if id == unknown and kind in (TokenKind.NORMAL, TokenKind.CONTROL) else kind
    return texts, kinds, tuple(rules)


def _normalization(normalizer: object) -> Normalization:
    if normalizer is None:
        return Normalization.NONE
    kind = normalizer.get("type") if isinstance(normalizer, dict) else None
    if kind == "NFC":
        return Normalization.NFC
    if kind == "Sequence" and isinstance(normalizer, dict) and not _objects(normalizer, "normalizers"):
        return Normalization.NONE
    raise UnsupportedError(f"[tokenizer] tokenizer.json: unsupported normalizer {kind!r}: only NFC is supported")


def _template(post_processor: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids before and after a single text."""
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
    if kind == "ByteLevel":  # changes offsets, not ids
        return (), ()
    if isinstance(post_processor, dict) and kind in ("BertProcessing", "RobertaProcessing"):
        return (_paired_id(post_processor, "cls"),), (_paired_id(post_processor, "sep"),)
    if not isinstance(post_processor, dict) or kind != "TemplateProcessing":
        raise UnsupportedError(
            f"[tokenizer] tokenizer.json: unsupported post-processor {kind!r}: supported are TemplateProcessing and "
            "ByteLevel"
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
            raise LoadError(f"[tokenizer] tokenizer.json: the ids of {name!r} in post_processor are not integers")
        parts[min(seen_text, 1)].extend(ids)
    if seen_text != 1:
        raise UnsupportedError(f"[tokenizer] tokenizer.json: post_processor.single has the text {seen_text} times")
    return tuple(parts[0]), tuple(parts[1])


def _doubles_separator(post_processor: object, suffix_ids: tuple[int, ...]) -> bool | None:
    """Return True if a pair has two separators between its texts, False for one, None for any other form."""
    if not isinstance(post_processor, dict) or not suffix_ids:
        return None
    kind = post_processor.get("type")
    if kind == "Sequence":
        found: list[bool | None] = [
            _doubles_separator(step, suffix_ids) for step in _objects(post_processor, "processors")
        ]
        return next((one for one in found if one is not None), None)
    if kind in ("BertProcessing", "RobertaProcessing"):
        return bool(kind == "RobertaProcessing")
    parts = _objects(post_processor, "pair") if kind == "TemplateProcessing" else []
    places = [i for i, step in enumerate(parts) if "Sequence" in step]
    if len(places) != 2:
        return None
    n_between = places[1] - places[0] - 1
    return {len(suffix_ids): False, 2 * len(suffix_ids): True}.get(n_between)


def _paired_id(processor: Json, key: str) -> int:
    """Return the id of a [text, id] pair."""
    pair = processor.get(key)
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], int):
        raise LoadError(f"[tokenizer] tokenizer.json: post_processor.{key} is {pair!r}: expected a text and an id")
    return pair[1]


def _chat_templates(place: Path, config: Json) -> dict[str, str]:
    """Return chat templates by name.

    chat_template.jinja takes precedence over tokenizer_config.json, which takes precedence over chat_template.json (a
    processor's file).
    """
    found: dict[str, str] = {}
    value = config.get("chat_template")
    if isinstance(value, str):
        found["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if not isinstance(entry, dict) or not isinstance(entry.get("template"), str):
                raise LoadError("[tokenizer] tokenizer_config.json: a chat template has no text")
            found[str(entry.get("name"))] = entry["template"]
    elif value is not None:
        raise LoadError(f"[tokenizer] tokenizer_config.json: chat_template is {type(value).__name__}: expected text")
    file = place / "chat_template.jinja"
    if file.exists():
        found["default"] = file.read_text(encoding="utf-8")
    of_processor = place / "chat_template.json"
    if not found and of_processor.exists():
        value = read_object(of_processor).get("chat_template")
        if not isinstance(value, str):
            raise LoadError("[tokenizer] chat_template.json: chat_template is not text")
        found["default"] = value
    return found
