"""What keeps control tokens out of plain text, whatever the family and wherever the vocabulary was read from.

Encoders match control tokens only where a caller parses them, and nothing but an unknown token stands for text without
a token.  So it is the kinds of tokens that decide, and files are not careful with them.
"""

from __future__ import annotations

import re
from dataclasses import replace

from quire._tokenizer.packed import picked
from quire.tokenizer.end_of_generation import NAMES
from quire.tokenizer.vocabulary import Family, TokenKind, Vocabulary

__all__ = ["unknown_id_of", "with_marks_apart"]

# How marks are written.  A file may say that a line feed ends an answer: that stays text.
MARK = re.compile(r"<[ -~]+>|\[[ -~]+\]")
# The token of these is often its own neighbour: files have one for both.
TEXTLESS = ("unk", "pad")


def with_marks_apart(vocabulary: Vocabulary, guess_unknown: bool = False) -> Vocabulary:
    """With the kinds that keep plain text apart from marks.

    Marks that a file calls text (the tokens around a text, the special ones, those of well-known names among the
    user-defined) become control tokens.  An unknown token that is something else besides becomes one, too.
    ``guess_unknown``: that of the special ids is of the unknown kind, whatever the file says, in families whose
    published implementations have one.
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
    """The token of what no other stands for; None where plain text without a token is nothing."""
    id = vocabulary.special_ids.get("unk")
    if id is None or vocabulary.kinds[id] != TokenKind.UNKNOWN or not _is_apart(vocabulary, id):
        return None
    return id


def _ids_of_kind(kinds: list[int], kind: TokenKind) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(bytes([kind])), bytes(kinds))]


def _named(vocabulary: Vocabulary) -> set[int]:
    """The ids that a file gives a meaning beyond their text."""
    named = {id for name, id in vocabulary.special_ids.items() if name not in TEXTLESS}
    return named | {*vocabulary.prefix_ids, *vocabulary.suffix_ids, *vocabulary.end_ids}


def _is_apart(vocabulary: Vocabulary, id: int) -> bool:
    """Whether a token is the unknown one and nothing else."""
    return id not in _named(vocabulary) and picked(vocabulary.texts, [id])[0] not in NAMES
