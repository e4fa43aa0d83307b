"""Grammars for structured answers: JSON Schema, regular expressions, choices, GBNF, Lark and tool calls."""

from __future__ import annotations

from .answers import AnswerLayout, ReasoningTags, ToolUse, answer_source
from .compiler import Compiler, CompilerLimits
from .deep_thread import start_deep_thread
from .gbnf import gbnf_to_lark
from .matching import Grammar, Matcher
from .schema import check_schema
from .source import GrammarSource, grammar_source
from .turns import Budget
from .vocabulary import TokenVocabulary

__all__ = [
    "AnswerLayout",
    "Budget",
    "Compiler",
    "CompilerLimits",
    "Grammar",
    "GrammarSource",
    "Matcher",
    "ReasoningTags",
    "TokenVocabulary",
    "ToolUse",
    "answer_source",
    "check_schema",
    "gbnf_to_lark",
    "grammar_source",
    "start_deep_thread",
]
