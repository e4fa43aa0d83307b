"""GGUF's form of WordPiece tokens: U+2581 before those that start words, nothing before those that continue one."""

from __future__ import annotations

import re

__all__ = ["shown_word_piece", "written_word_piece"]

SPACE = "\u2581"
# A token that continues a word with U+2581 itself would look like one that starts a word.  Quire keeps its ##.
ESCAPED = re.compile(rf"(?:##)+{SPACE}.*", re.DOTALL)


def written_word_piece(text: str, prefix: str) -> str:
    """Convert a token to GGUF's form; ``prefix`` marks tokens that continue a word in the published vocabulary."""
    if not text.startswith(prefix) or text == prefix:
        return SPACE + text
    rest = text.removeprefix(prefix)
    return "##" + rest if ESCAPED.fullmatch("##" + rest) else rest


def shown_word_piece(text: str) -> str:
    """Return the text of a token in GGUF's form."""
    if text != SPACE and text.startswith(SPACE):
        return " " + text[1:]
    return text[2:] if ESCAPED.fullmatch(text) else text
