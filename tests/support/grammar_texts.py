"""Check whether a grammar allows a text, with its masks token by token, for a vocabulary of single bytes."""

from __future__ import annotations

from functools import cache

import numpy as np
from quire.grammar import Compiler, CompilerLimits, GrammarSource, TokenVocabulary, grammar_source
from quire.params.structured import StructuredOutputsParams

EOG, CONTROL = 256, 257
N_VOCAB = 258


def byte_vocabulary() -> TokenVocabulary:
    shown = [bytes([i]) for i in range(256)] + [b"<eog>", b"<mark>"]
    return TokenVocabulary(shown, {"<eog>": EOG, "<mark>": CONTROL}, [EOG], list)


@cache
def compiler() -> Compiler:
    return Compiler(byte_vocabulary, CompilerLimits(deadline_s=20.0))


def bits(mask: np.ndarray) -> np.ndarray:
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:N_VOCAB]


def allows(form: StructuredOutputsParams, text: str | bytes | list[int]) -> bool:
    """Return whether each mask allows the next token, and only the last one the end of generation."""
    return allows_source(grammar_source(form), text)


def allows_source(source: GrammarSource, text: str | bytes | list[int]) -> bool:
    """Do what ``allows`` does, for a grammar's source."""
    matcher = compiler().compile(source).matcher()
    mask = np.zeros((N_VOCAB + 31) // 32, np.uint32)
    tokens = list(text.encode()) if isinstance(text, str) else list(text)
    for token in tokens:
        matcher.fill(mask)
        assert bits(mask)[EOG] == matcher.is_complete
        if not bits(mask)[token]:
            return False
        matcher.advance(token)
    matcher.fill(mask)
    assert bits(mask)[EOG] == matcher.is_complete
    return matcher.is_complete
