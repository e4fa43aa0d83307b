"""Limits on what llguidance may spend on a grammar while it compiles and follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance._lib import LLParserLimits

__all__ = ["MAX_ITEMS_IN_ROW", "MAX_LEXER_STATES", "parser_limits"]

MAX_LEXER_STATES = 50_000
# An optional property takes four items in the row where its key may begin, so one object may have 2000.
MAX_ITEMS_IN_ROW = 8_000


def parser_limits() -> LLParserLimits:
    """Return the limits for llguidance."""
    from llguidance._lib import LLParserLimits

    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, max_items_in_row=MAX_ITEMS_IN_ROW, verbose_errors=False)
