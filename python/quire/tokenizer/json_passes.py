"""Conversion of the pre-tokenizers of ``tokenizer.json`` to passes."""

from __future__ import annotations

import re

from quire.errors import LoadError
from quire.tokenizer.json_models import Json, steps, unsupported
from quire.tokenizer.pretokenizers import EXPRESSIONS, THREES, Pass

__all__ = ["is_white_space_split", "passes_of", "passes_of_step"]


def is_white_space_split(pre_tokenizer: object) -> bool:
    """Return True if words are split at white space, without the byte-level alphabet."""
    found = steps(pre_tokenizer, "pre_tokenizer")
    return len(found) == 1 and found[0].get("type") in ("Whitespace", "WhitespaceSplit")


def passes_of(pre_tokenizer: object) -> tuple[Pass, ...]:
    """Return the passes of a pre-tokenizer, which must end in the byte-level alphabet."""
    found = steps(pre_tokenizer, "pre_tokenizer")
    if not found or found[-1].get("type") != "ByteLevel":
        raise unsupported(f"unsupported pre_tokenizer {[step.get('type') for step in found]}: it must end in ByteLevel")
    return tuple(part for step in found for part in passes_of_step(step))


BEHAVIORS = {
    "Isolated": "isolated",
    "Removed": "removed",
    "MergedWithPrevious": "merged_with_previous",
    "MergedWithNext": "merged_with_next",
    "Contiguous": "contiguous",
}
# Expressions whose matches have no gaps, so removing the gaps is the same as keeping the matches.
COMPLETE = frozenset(EXPRESSIONS[name] for name in ("gpt2", "llama3", "qwen2", "gpt4o", "tekken"))
NAME_OF_THREES = {expression: name for name, expression in THREES.items()}


def passes_of_step(step: Json) -> tuple[Pass, ...]:
    """Return the passes of one step.  Raises UnsupportedError for an unsupported kind."""
    kind = step.get("type")
    if kind == "ByteLevel":
        if step.get("add_prefix_space", True):
            raise unsupported("ByteLevel.add_prefix_space is unsupported")
        return (Pass(EXPRESSIONS["gpt2"]),) if step.get("use_regex", True) else ()
    if kind == "Digits":
        return (Pass(EXPRESSIONS["digits" if step.get("individual_digits", False) else "number_runs"]),)
    if kind == "Punctuation":
        return (Pass(EXPRESSIONS["chameleon_punctuation"], _behavior(step)),)
    if kind == "Split":
        return (_split(step),)
    raise unsupported(f"unsupported pre-tokenizer {kind!r}: supported are ByteLevel, Digits, Punctuation and Split")


def _behavior(step: Json) -> str:
    name = step.get("behavior", "Isolated")
    if not isinstance(name, str) or name not in BEHAVIORS:
        raise unsupported(f"unknown behavior {name!r}: expected one of {', '.join(BEHAVIORS)}")
    return BEHAVIORS[name]


def _split(step: Json) -> Pass:
    pattern = step.get("pattern")
    pattern = pattern if isinstance(pattern, dict) else {}
    expression, text = pattern.get("Regex"), pattern.get("String")
    if expression is None and isinstance(text, str) and text:
        expression = re.sub(r"([^0-9A-Za-z\s_])", r"\\\1", text) if text.isascii() else text
    if not isinstance(expression, str):
        raise LoadError("[tokenizer] tokenizer.json: Split.pattern is neither a Regex nor a String")
    behavior, inverted = _behavior(step), bool(step.get("invert"))
    if behavior == "removed" and inverted and expression in COMPLETE:
        behavior, inverted = "isolated", False
    if expression in NAME_OF_THREES and behavior == "isolated" and not inverted:
        return Pass(None, NAME_OF_THREES[expression])
    return Pass(expression, behavior, inverted)
