"""Find the characters of a text that each of its tokens stands for."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from quire.tokenizer.vocabulary import Family

if TYPE_CHECKING:
    from quire.tokenizer.base import Tokenizer

__all__ = ["spans_of"]

Span: TypeAlias = tuple[int, int]


def _folded(character: str) -> bytes:
    """Return a character's form for comparison: without case, accents, width, spaces and control characters."""
    apart = unicodedata.normalize("NFKD", character)
    kept = "".join(one for one in apart if unicodedata.category(one) not in ("Mn", "Cc", "Cf") and not one.isspace())
    return kept.replace("Σ", "σ").lower().encode()


def spans_of(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[Span]:
    """Return the characters ``[begin, end)`` of each token's text, without the spaces around it.

    Args:
        tokenizer: The tokenizer of the ids.
        text: The text.
        ids: Its tokens in order, without those that are added around a text.

    Tokens are aligned by their texts, which a normalizer may have changed.  An unknown token stands for what its
    neighbours leave.
    """
    if tokenizer.vocabulary.family is Family.BYTE_PAIR:
        return _spans_of_bytes(tokenizer, text, ids)
    parts = [_folded(character) for character in text]
    place = [i for i, part in enumerate(parts) for _ in part]  # the character of each byte
    haystack = b"".join(parts)
    spans: list[Span] = []
    at, unknown = 0, 0
    for id in ids:
        needle = b"".join(map(_folded, tokenizer.token_bytes(id).decode("utf-8", "replace")))
        found = haystack.find(needle, at) if needle else -1
        if found < 0 or (found > at and not unknown):
            spans.append((0, 0))
            unknown += 1
            continue
        _fill(spans, unknown, text, place, (at, found))
        at, unknown = found + len(needle), 0
        spans.append((place[found], place[at - 1] + 1))
    _fill(spans, unknown, text, place, (at, len(haystack)))
    return spans


def _spans_of_bytes(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[Span]:
    """Return the spans of tokens whose bytes together are the text's, perhaps after a space of their own."""
    data = text.encode()
    place = [i for i, character in enumerate(text) for _ in character.encode()]  # the character of each byte
    spans: list[Span] = []
    at = 0
    for id in ids:
        shown = tokenizer.token_bytes(id)
        if not data.startswith(shown, at):
            shown = shown.removeprefix(b" ")
        end = min(at + len(shown), len(data))
        begin = min(at + len(shown) - len(shown.lstrip()), end)
        at, end = end, max(begin, end - len(shown) + len(shown.rstrip()))
        first = place[begin] if begin < len(data) else len(text)
        spans.append((first, place[end - 1] + 1 if end > begin else first))
    return spans


def _fill(spans: list[Span], n: int, text: str, place: list[int], between: Span) -> None:
    """Give the last ``n`` tokens the words of a stretch of bytes: one each, or else all of them."""
    first, last = between
    if n == 0:
        return
    if first == last:
        end = place[first - 1] + 1 if first else 0
        spans[-n:] = [(end, end)] * n
        return
    begin, end = place[first], place[last - 1] + 1
    words: list[Span] = []
    for i in range(begin, end):
        if text[i].isspace():
            continue
        if words and words[-1][1] == i:
            words[-1] = (words[-1][0], i + 1)
        else:
            words.append((i, i + 1))
    spans[-n:] = words if len(words) == n else [(begin, end)] * n
