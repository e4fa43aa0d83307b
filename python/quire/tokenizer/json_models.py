"""The models of ``tokenizer.json`` other than byte-level BPE: SentencePiece's two and WordPiece."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from quire.errors import LoadError, UnsupportedError
from quire.tokenizer.vocabulary import CaseRules, SpaceRules, TokenKind
from quire.tokenizer.word_pieces import written_word_piece

__all__ = [
    "Json",
    "case_rules",
    "character_map",
    "space_rules",
    "steps",
    "unigram_entries",
    "unsupported",
    "word_piece_texts",
]

Json: TypeAlias = "Mapping[str, object]"
SPACE = "\u2581"


def unsupported(what: str) -> UnsupportedError:
    """Return an error about tokenizer.json."""
    return UnsupportedError(f"[tokenizer] tokenizer.json: {what}")


def steps(value: object, key: str) -> list[Json]:
    """Return a normalizer or pre-tokenizer as a list of steps."""
    if value is None:
        return []
    if not isinstance(value, dict):
        raise LoadError(f"[tokenizer] tokenizer.json: {key} is {type(value).__name__}: expected an object")
    if value.get("type") != "Sequence":
        return [value]
    inner = value.get("normalizers", value.get("pretokenizers"))
    if not isinstance(inner, list):
        raise LoadError(f"[tokenizer] tokenizer.json: a Sequence in {key} is not a list")
    return [step for item in inner for step in steps(item, key)]


def unigram_entries(model: Json) -> tuple[list[str], list[float]]:
    """Return texts and scores of a unigram model."""
    entries = model.get("vocab")
    if not isinstance(entries, list):
        raise LoadError("[tokenizer] tokenizer.json: model.vocab is not a list of texts and scores")
    texts, scores = [], []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
            raise LoadError(f"[tokenizer] tokenizer.json: model.vocab has {entry!r}: expected a text and a score")
        score = entry[1]
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise LoadError(f"[tokenizer] tokenizer.json: the score of {entry[0]!r} is {score!r}: expected a number")
        texts.append(entry[0])
        scores.append(float(score))
    return texts, scores


def _untidied(found: list[Json]) -> tuple[list[Json], bool]:
    """Return the steps besides those that remove spaces at the ends and join runs of them, and if there are these."""
    ends = [
        step for step in found if step.get("type") == "Strip" and step.get("strip_left") and step.get("strip_right")
    ]
    runs = [step for step in found if step.get("pattern") == {"Regex": " {2,}"} and step.get("content") == " "]
    if bool(ends) != bool(runs):
        raise unsupported("the normalizer Strip without Replace of ' {2,}', or the reverse, is unsupported")
    return [step for step in found if step not in ends and step not in runs], bool(ends)


def space_rules(normalizer: object, pre_tokenizer: object) -> SpaceRules:
    """Return the rules of SentencePiece's normalizer from the steps that converters write.

    Raises:
        UnsupportedError: There are other steps.
    """
    prefix, writes, once = "none", False, False
    kept, merges = _untidied(steps(normalizer, "normalizer"))
    for step in kept:
        kind, pattern = step.get("type"), step.get("pattern")
        if kind == "Prepend" and step.get("prepend") == SPACE and not writes:
            prefix = "every"
        elif kind == "Replace" and pattern == {"String": " "} and step.get("content") == SPACE:
            writes = True
        elif kind != "Precompiled":
            raise unsupported(f"unsupported normalizer {kind!r}: only Precompiled and those for spaces are supported")
    for step in steps(pre_tokenizer, "pre_tokenizer"):
        kind = step.get("type")
        if kind == "WhitespaceSplit" and not writes:
            merges = True
        elif kind == "Metaspace" and step.get("replacement", SPACE) == SPACE and not writes:
            old = "always" if step.get("add_prefix_space", True) else "never"
            scheme = step.get("prepend_scheme", old)
            schemes = {"always": "every", "first": "first", "never": "none"}
            if not isinstance(scheme, str) or scheme not in schemes:
                raise unsupported(f"unknown Metaspace.prepend_scheme {scheme!r}: expected always, first or never")
            prefix, writes, once = schemes[scheme], True, True
        elif not (writes and kind == "Split" and step.get("pattern") == {"String": " "}):  # no spaces are left
            raise unsupported(f"unsupported pre-tokenizer {kind!r}: only Metaspace and WhitespaceSplit are supported")
    if not writes:
        raise unsupported("no step writes spaces as U+2581")
    if merges and prefix != "every":
        raise unsupported("WhitespaceSplit or Strip is only supported with Metaspace.prepend_scheme 'always'")
    return SpaceRules(prefix, merge_extra=merges, write_spaces=True, prefix_once=once and not merges)


def character_map(normalizer: object) -> bytes:
    """Return the precompiled character map of a normalizer, b"" if it has none."""
    found = b""
    for step in steps(normalizer, "normalizer"):
        if step.get("type") != "Precompiled":
            continue
        source = step.get("precompiled_charsmap")
        try:
            found = base64.b64decode(source, validate=True) if isinstance(source, str) else b""
        except binascii.Error:
            raise LoadError("[tokenizer] tokenizer.json: precompiled_charsmap is not base64") from None
    return found


def word_piece_texts(model: Json, texts: Sequence[str], kinds: Sequence[int]) -> list[str]:
    """Return texts in GGUF's form: U+2581 before tokens that start words, nothing before those that continue one."""
    prefix = model.get("continuing_subword_prefix", "##")
    if not isinstance(prefix, str) or not prefix:
        raise unsupported(f"model.continuing_subword_prefix is {prefix!r}: expected text")
    if (longest := model.get("max_input_chars_per_word", 100)) != 100:
        raise unsupported(f"model.max_input_chars_per_word {longest!r} is unsupported: expected 100")
    return [
        written_word_piece(text, prefix) if kind == TokenKind.NORMAL else text
        for text, kind in zip(texts, kinds, strict=True)
    ]


def case_rules(normalizer: object, pre_tokenizer: object) -> CaseRules:
    """Return BERT's rules for letters.  Raises UnsupportedError for other normalizers and pre-tokenizers."""
    found = steps(normalizer, "normalizer")
    if len(found) != 1 or found[0].get("type") != "BertNormalizer":
        raise unsupported(f"unsupported normalizer {[step.get('type') for step in found]}: expected BertNormalizer")
    rules = found[0]
    for key in ("clean_text", "handle_chinese_chars"):
        if rules.get(key, True) is not True:
            raise unsupported(f"BertNormalizer without {key} is unsupported")
    kinds = [step.get("type") for step in steps(pre_tokenizer, "pre_tokenizer")]
    if kinds != ["BertPreTokenizer"]:
        raise unsupported(f"unsupported pre-tokenizer {kinds}: expected BertPreTokenizer")
    lowercase, strip = bool(rules.get("lowercase", True)), rules.get("strip_accents")
    return CaseRules(lowercase, lowercase if strip is None else bool(strip))
