"""Check a template's nesting before it is parsed, because deep nesting overflows the stack of parser and compiler."""

from __future__ import annotations

import jinja2

from quire.errors import LoadError

__all__ = ["check_nesting"]

MAX_SOURCE_CHARACTERS = 1 << 17
MAX_TOKENS = 25_000
MAX_BLOCKS = 48
MAX_BRACKETS = 48
MAX_OPERATORS = 150  # in one expression; each is a level of the syntax tree
OPENERS = frozenset({"if", "for", "macro", "call", "filter", "block", "generation", "with", "autoescape"})


def check_nesting(environment: jinja2.Environment, source: str) -> None:
    """Raise LoadError for a template that is too long or too deep, or is not Jinja."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise LoadError(
            f"[chat template] the source has {len(source)} characters: expected at most {MAX_SOURCE_CHARACTERS}"
        )
    blocks = brackets = operators = 0
    n_tokens = 0
    at_name = False
    for line, kind, text in environment.lex(source):
        if kind in ("whitespace", "data"):
            continue
        n_tokens += 1
        if n_tokens > MAX_TOKENS:
            raise LoadError(f"[chat template] the source has more than {MAX_TOKENS} tokens")
        if kind in ("block_begin", "variable_begin"):
            brackets = operators = 0
        elif at_name and kind == "name":
            blocks += 1 if text in OPENERS else -1 if text.startswith("end") and text[3:] in OPENERS else 0
        elif kind == "operator":
            brackets += 1 if text in "([{" else -1 if text in ")]}" else 0
            operators += text not in ",:"
        elif kind == "name" and text in ("and", "or", "not", "if", "is", "in"):
            operators += 1
        at_name = kind == "block_begin"
        _check(line, blocks, brackets, operators)


def _check(line: int, blocks: int, brackets: int, operators: int) -> None:
    for what, number, most in (
        ("levels of blocks", blocks, MAX_BLOCKS),
        ("levels of brackets", brackets, MAX_BRACKETS),
        ("operators in one expression", operators, MAX_OPERATORS),
    ):
        if number > most:
            raise LoadError(f"[chat template] line {line} has more than {most} {what}")
