"""Corrections of token types that keep control tokens out of plain text, for all families and sources.

Encoders match control tokens only if the caller parses them, and replace only text without a token by the unknown
token.  Both depend on the types of tokens, which files often have wrong.
"""

from __future__ import annotations

import re
from dataclasses import replace

from quire._tokenizer.packed import picked
from quire.tokenizer.end_of_generation import NAMES
from quire.tokenizer.vocabulary import Family, TokenKind, Vocabulary

__all__ = ["unknown_id_of", "with_marks_apart"]

# The form of marks.  A file may say that a line feed ends an answer, but that stays text.
MARK = re.compile(r"<[ -~]+>|\[[ -~]+\]")
# Files often use one token for both.
TEXTLESS = ("unk", "pad")


def with_marks_apart(vocabulary: Vocabulary, guess_unknown: bool = False) -> Vocabulary:
    """Correct token types so that plain text cannot produce marks.

    Marks that the file has as text become control tokens: the tokens before and after a text, the special tokens, and
    user-defined tokens with well-known names.  So does an unknown token that has another meaning, too.

    Args:
        guess_unknown: Give the unknown token of the special ids the unknown type, whatever the file says, in families
            whose published implementations have one.
    """
    kinds, found, named = list(vocabulary.kinds), False, _named(vocabulary)
    ids = sorted({*named, *_ids_of_kind(kinds, TokenKind.USER_DEFINED)})
    for id, text in zip(ids, picked(vocabulary.texts, ids), strict=True):
        if kinds[id] not in (TokenKind.NORMAL, TokenKind.USER_DEFINED):
            continue
        if (kinds[id] == TokenKind.USER_DEFINED and text in NAMES) or (id in named and MARK.fullmatch(text)):
            kinds[id], found = TokenKind.CONTROL, True
    unknown = vocabulary.special_ids.get("unk")
    if unknown is not None:
        is_apart = _is_apart(vocabulary, unknown)
        if kinds[unknown] == TokenKind.UNKNOWN and not is_apart:
            kinds[unknown], found = TokenKind.CONTROL, True
        has_unknown = vocabulary.family not in (Family.BYTE_PAIR, Family.LONGEST_MATCH)
        looks_unknown = kinds[unknown] == TokenKind.CONTROL or (
            kinds[unknown] == TokenKind.NORMAL and MARK.fullmatch(picked(vocabulary.texts, [unknown])[0])
        )
        if guess_unknown and has_unknown and is_apart and looks_unknown:
            kinds[unknown], found = TokenKind.UNKNOWN, True
    return replace(vocabulary, kinds=kinds) if found else vocabulary


def unknown_id_of(vocabulary: Vocabulary) -> int | None:
    """Return the token for text without a token, None if such text is dropped."""
    id = vocabulary.special_ids.get("unk")
    if id is None or vocabulary.kinds[id] != TokenKind.UNKNOWN or not _is_apart(vocabulary, id):
        return None
    return id


def _ids_of_kind(kinds: list[int], kind: TokenKind) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(bytes([kind])), bytes(kinds))]


def _named(vocabulary: Vocabulary) -> set[int]:
    """Return the ids that have a meaning besides their text."""
    named = {id for name, id in vocabulary.special_ids.items() if name not in TEXTLESS}
    return named | {*vocabulary.prefix_ids, *vocabulary.suffix_ids, *vocabulary.end_ids}


def _is_apart(vocabulary: Vocabulary, id: int) -> bool:
    """Return True if a token is only the unknown token."""
    return id not in _named(vocabulary) and picked(vocabulary.texts, [id])[0] not in NAMES
