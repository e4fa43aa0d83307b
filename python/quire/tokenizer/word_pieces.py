"""How GGUF writes the tokens of WordPiece: U+2581 before those that begin words, nothing before those that go on."""

from __future__ import annotations

import re

__all__ = ["shown_word_piece", "written_word_piece"]

SPACE = "\u2581"
# A token that goes on with U+2581 itself would look like one that begins a word: its ## stays, which is ours.
ESCAPED = re.compile(rf"(?:##)+{SPACE}.*", re.DOTALL)


def written_word_piece(text: str, prefix: str) -> str:
    """A token of a published vocabulary, in which ``prefix`` begins tokens that go on, as GGUF writes it."""
    if not text.startswith(prefix) or text == prefix:
        return SPACE + text
    rest = text.removeprefix(prefix)
    return "##" + rest if ESCAPED.fullmatch("##" + rest) else rest


def shown_word_piece(text: str) -> str:
    """What a token that GGUF writes so stands for."""
    if text != SPACE and text.startswith(SPACE):
        return " " + text[1:]
    return text[2:] if ESCAPED.fullmatch(text) else text
