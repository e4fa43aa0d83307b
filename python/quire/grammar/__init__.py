"""Grammars that answers must follow: JSON Schema, regular expressions, choices, GBNF and Lark, tool calls."""

from __future__ import annotations

from .compiler import Compiler, CompilerLimits, Grammar, Matcher, TokenVocabulary
from .gbnf import gbnf_to_lark
from .schema import check_schema
from .source import GrammarSource, grammar_source

__all__ = [
    "Compiler",
    "CompilerLimits",
    "Grammar",
    "GrammarSource",
    "Matcher",
    "TokenVocabulary",
    "check_schema",
    "gbnf_to_lark",
    "grammar_source",
]
