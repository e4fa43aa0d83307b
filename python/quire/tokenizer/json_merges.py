"""Byte-pair encoding over characters in ``tokenizer.json``, by SentencePiece's scores if they are equivalent."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from quire.errors import LoadError
from quire.tokenizer.json_models import Json, character_map, space_rules, steps, unsupported
from quire.tokenizer.json_passes import is_white_space_split, passes_of, passes_of_step
from quire.tokenizer.pretokenizers import Alphabet, PreTokenizer, named
from quire.tokenizer.vocabulary import BYTES, WORD_END, CaseRules, Family, TokenKind, Vocabulary

__all__ = ["character_pairs", "ended_words", "merges_of"]


def merges_of(model: Json) -> list[str]:
    """Return the merges, each as two words with a space between."""
    try:
        return [merge if isinstance(merge, str) else " ".join(merge) for merge in _listed(model)]
    except TypeError:
        raise _no_pairs() from None


def _pairs_of(model: Json) -> list[tuple[str, str]]:
    """Return the merges as pairs of texts."""
    merges = _listed(model)
    try:
        pairs = [split_merge(merge) if isinstance(merge, str) else (merge[0], merge[1]) for merge in merges]
    except (TypeError, LookupError):
        raise _no_pairs() from None
    if not all(isinstance(left, str) and isinstance(right, str) for left, right in pairs):
        raise _no_pairs()
    return pairs


def _listed(model: Json) -> list[Any]:
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise LoadError(f"[tokenizer] tokenizer.json: model.merges is {type(merges).__name__}: expected a list")
    return merges


def _no_pairs() -> LoadError:
    return LoadError("[tokenizer] tokenizer.json: model.merges holds something other than pairs of strings")


def character_pairs(found: Vocabulary, tokenizer: Json, model: Json) -> Vocabulary:
    """Add the merges and the steps before them.  Raises UnsupportedError for anything else that changes ids."""
    normalizer, pre_tokenizer = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
    if is_white_space_split(pre_tokenizer):
        return _between_white_space(found, tokenizer, model, merges_of(model))
    if model.get("ignore_merges"):
        raise unsupported("model.ignore_merges with byte_fallback is unsupported")
    if character_map(normalizer):
        raise unsupported("the normalizer Precompiled with BPE is unsupported")
    if (n_bytes := sum(kind == TokenKind.BYTE for kind in found.kinds)) != 256:
        raise unsupported(f"byte_fallback needs all 256 byte tokens, the vocabulary has {n_bytes}")
    kept = [step for step in steps(normalizer, "normalizer") if step.get("type") != "Lowercase"]
    lowercase = len(kept) < len(steps(normalizer, "normalizer"))
    normalizer = {"type": "Sequence", "normalizers": kept}
    splits = [step for step in steps(pre_tokenizer, "pre_tokenizer") if is_split(step)]
    others = [step for step in steps(pre_tokenizer, "pre_tokenizer") if not is_split(step)]
    if splits and any(step.get("type") == "Metaspace" for step in others):
        raise unsupported("Metaspace with other steps is unsupported")
    spaces = space_rules(normalizer, {"type": "Sequence", "pretokenizers": others})
    if not splits and not lowercase:
        scores = merge_scores(found.texts, found.kinds, _pairs_of(model))
        if scores is not None:
            return replace(found, family=Family.SCORED_PAIR, spaces=spaces, scores=scores)
    passes = tuple(part for step in splits for part in passes_of_step(step))
    return replace(
        found,
        family=Family.CHARACTER_PAIR,
        merges=merges_of(model),
        pre_tokenizer=PreTokenizer(passes, alphabet=Alphabet.CHARACTERS, write_spaces=True),
        spaces=spaces,
        case=CaseRules(lowercase=lowercase, strip_accents=False),
        scores=(),
    )


def ended_words(found: Vocabulary, tokenizer: Json, model: Json) -> Vocabulary:
    """Add CLIP's merges and steps.  Raises UnsupportedError for others in a vocabulary whose words have an end."""
    rules = steps(tokenizer.get("normalizer"), "normalizer")
    if [step.get("type") for step in rules] != ["NFC", "Replace", "Lowercase"] or (
        rules[1].get("pattern"),
        rules[1].get("content"),
    ) != ({"Regex": "\\s+"}, " "):
        raise unsupported("the normalizer of a vocabulary with end_of_word_suffix is not CLIP's")
    passes = passes_of(tokenizer.get("pre_tokenizer"))
    for name in ("clip", "clip-marks"):
        splitting = named(name)
        if replace(splitting, passes=passes) == splitting:
            break
    else:
        raise unsupported("the pre_tokenizer of a vocabulary with end_of_word_suffix is not CLIP's")
    if not set(found.texts) >= BYTES | {byte + WORD_END for byte in BYTES}:
        raise unsupported("end_of_word_suffix needs a token for each byte, in words and at their ends")
    return replace(found, merges=merges_of(model), pre_tokenizer=splitting, scores=())


def _between_white_space(found: Vocabulary, tokenizer: Json, model: Json, merges: Sequence[str]) -> Vocabulary:
    """Add the rules for words between white space, perhaps lowercased, with an unknown token."""
    kinds = [step.get("type") for step in steps(tokenizer.get("normalizer"), "normalizer")]
    if kinds not in ([], ["Lowercase"]):
        raise unsupported(f"unsupported normalizer {kinds} with words between white space: only Lowercase is supported")
    if model.get("ignore_merges") or model.get("fuse_unk"):
        raise unsupported("model.ignore_merges and fuse_unk with words between white space are unsupported")
    step = steps(tokenizer.get("pre_tokenizer"), "pre_tokenizer")[0]
    if step.get("type") == "Whitespace" and not all(map(stays_in_words, map(split_merge, merges))):
        raise unsupported("merges that join letters and punctuation after Whitespace are unsupported")
    if step.get("type") == "Whitespace" and model.get("unk_token") is None:
        # Characters without a token would be dropped, and their neighbours merged.
        raise unsupported("Whitespace without model.unk_token is unsupported")
    ids = dict(found.special_ids)
    if TokenKind.UNKNOWN not in found.kinds:
        ids.pop("unk", None)  # the one in tokenizer_config.json is never used for text
    return replace(
        found,
        family=Family.CHARACTER_PAIR,
        merges=merges,
        pre_tokenizer=named("whitespace"),
        special_ids=ids,
        case=CaseRules(lowercase=kinds == ["Lowercase"], strip_accents=False),
        scores=(),
    )


def is_split(step: Json) -> bool:
    """Return True if a step splits text.  A split at spaces does not, because they are already replaced by then."""
    return step.get("type") in ("Split", "Digits", "Punctuation") and step.get("pattern") != {"String": " "}


def stays_in_words(merge: tuple[str, str]) -> bool:
    """Return True if ``Whitespace``, which cuts between word characters and others, does not cut this merge."""
    return len(set(map(is_word, "".join(merge)))) < 2


def is_word(character: str) -> bool:
    """Return True if a character is ``\\w`` in Unicode's regular expressions."""
    category = unicodedata.category(character)
    circled = "\u24b6" <= character <= "\u24e9" or ("\U0001f130" <= character <= "\U0001f189" and category == "So")
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or character in "\u200c\u200d" or circled


def split_merge(merge: str) -> tuple[str, str]:
    """Return the two parts of a merge written with a space between them."""
    left, _, right = merge.partition(" ")
    return left, right


def merge_scores(texts: Sequence[str], kinds: Sequence[int], merges: Sequence[tuple[str, str]]) -> list[float] | None:
    """Return scores that join characters as the merges do, or None if no scores do.

    When such a file is made, SentencePiece's scores are converted to merges: each token has a block of merges, one for
    each way to make it.  Tokens with equal scores, such as runs of one character, share a block.
    """
    import numpy as np

    ids = {text: id for id, text in enumerate(texts) if kinds[id] in (TokenKind.NORMAL, TokenKind.USER_DEFINED)}
    if not merges or len(set(merges)) != len(merges) or _n_splits(ids) != len(merges):
        return None
    lefts, rights = zip(*merges, strict=True)
    if not (ids.keys() >= set(lefts) and ids.keys() >= set(rights)):
        return None
    made = np.fromiter(map(ids.get, map(str.__add__, lefts, rights), repeat(-1)), np.int64, len(merges))
    if made.min() < 0:
        return None
    tokens, first, counts = np.unique(made, return_index=True, return_counts=True)
    last = np.zeros_like(first)
    last[np.searchsorted(tokens, made)] = np.arange(len(made))  # the last assignment to an index wins
    apart = last - first + 1 != counts
    for character in {texts[id][0] for id in tokens[apart].tolist()}:
        same = np.array([set(texts[id]) == {character} for id in tokens.tolist()])
        first[same], last[same], counts[same] = first[same].min(), last[same].max(), counts[same].sum()
    if (last - first + 1 != counts).any():
        return None
    scores = np.full(len(texts), -float(len(merges) + 1))
    scores[tokens] = -first
    return [*scores.tolist()]


def _n_splits(ids: Mapping[str, int]) -> int:
    """Count the ways to split a token into two tokens, summed over all tokens."""
    n = 0
    prefixes: list[str] = []  # tokens that the text starts with, short ones first
    for text in sorted(ids):
        while prefixes and not text.startswith(prefixes[-1]):
            prefixes.pop()
        for prefix in prefixes:
            if text[len(prefix) :] in ids:
                n += 1
        prefixes.append(text)
    return n
