"""A look at a template's tokens before it is parsed: parsers and compilers recurse, and deep nesting overflows them."""

from __future__ import annotations

import jinja2

from quire.errors import LoadError

__all__ = ["check_nesting"]

MAX_SOURCE_CHARACTERS = 1 << 17
MAX_TOKENS = 25_000
MAX_BLOCKS = 48
MAX_BRACKETS = 48
MAX_OPERATORS = 150  # in one expression: each is a level of the tree
OPENERS = frozenset({"if", "for", "macro", "call", "filter", "block", "generation", "with", "autoescape"})


def check_nesting(environment: jinja2.Environment, source: str) -> None:
    """Raise LoadError for a template that is too long, too deep or no Jinja."""
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise LoadError(
            f"[chat template] the source must have at most {MAX_SOURCE_CHARACTERS} characters but has {len(source)}"
        )
    blocks = brackets = operators = 0
    n_tokens = 0
    at_name = False
    for line, kind, text in environment.lex(source):
        if kind in ("whitespace", "data"):
            continue
        n_tokens += 1
        if n_tokens > MAX_TOKENS:
            raise LoadError(f"[chat template] the source must have at most {MAX_TOKENS} words and signs but has more")
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
        ("blocks must be nested", blocks, MAX_BLOCKS),
        ("brackets must be nested", brackets, MAX_BRACKETS),
        ("an expression must have operators", operators, MAX_OPERATORS),
    ):
        if number > most:
            raise LoadError(f"[chat template] {what} at most {most} times but line {line} has more")
