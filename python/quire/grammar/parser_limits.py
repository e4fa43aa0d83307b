"""What a grammar may take of llguidance while it is compiled and followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance._lib import LLParserLimits

__all__ = ["MAX_ITEMS_IN_ROW", "MAX_LEXER_STATES", "parser_limits"]

MAX_LEXER_STATES = 50_000
# An optional property takes four items of the row in which its key may begin: 2000 of them are one object's.
MAX_ITEMS_IN_ROW = 8_000


def parser_limits() -> LLParserLimits:
    """The limits as llguidance takes them."""
    from llguidance._lib import LLParserLimits

    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, max_items_in_row=MAX_ITEMS_IN_ROW, verbose_errors=False)
