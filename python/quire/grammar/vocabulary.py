"""What a grammar needs to know of a vocabulary, and the vocabulary as llguidance reads it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import RequestError, UnsupportedError
from .frame import frame_lark
from .matching import DEAD_END, Grammar
from .parser_limits import parser_limits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from llguidance import LLTokenizer

    from .source import GrammarSource

__all__ = ["GrammarVocabulary", "TokenVocabulary", "grammars"]


@dataclass(frozen=True)
class TokenVocabulary:
    """What a grammar needs to know of a vocabulary.

    ``token_bytes``: what each token shows, of control tokens their name; empty ones are never drawn.
    ``control_ids``: name to id.  ``encode``: ids of a text, without control tokens.
    """

    token_bytes: Sequence[bytes]
    control_ids: dict[str, int]
    eog_ids: Sequence[int]
    encode: Callable[[bytes], list[int]]


class _Source:
    """A vocabulary under the names by which llguidance reads it."""

    bos_token_id = None

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.eos_token_id = vocabulary.eog_ids[0]
        self.tokens = list(vocabulary.token_bytes)
        self.special_token_ids = sorted(vocabulary.control_ids.values())
        self._encode, self._shown = vocabulary.encode, vocabulary.token_bytes

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids that show the text, or its beginning where a byte has no token: what is forced is not looked at again."""
        data = text.encode() if isinstance(text, str) else text
        ids, at = self._encode(data), 0
        for i, token in enumerate(ids):
            shown = self._shown[token]
            if not shown or not data.startswith(shown, at):
                return ids[:i]
            at += len(shown)
        return ids


class GrammarVocabulary:
    """A vocabulary that grammars are compiled for; read once, when the first of them comes.  Thread-safe."""

    def __init__(self, vocabulary: Callable[[], TokenVocabulary]) -> None:
        self._vocabulary_of = vocabulary
        self._lock = threading.Lock()
        self._opened: tuple[LLTokenizer, TokenVocabulary, npt.NDArray[np.uint32]] | None = None

    def open(self) -> TokenVocabulary:
        """The vocabulary.  UnsupportedError where grammars cannot be compiled at all."""
        return self._open()[1]

    def compile(self, source: GrammarSource) -> Grammar:
        """The grammar, however long that takes; RequestError or UnsupportedError for what is none."""
        from llguidance import LLMatcher

        tokenizer, vocabulary, drawable = self._open()
        matcher = LLMatcher(tokenizer, grammars(source, vocabulary), log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        warnings = matcher.get_grammar_warnings()
        if warnings:  # of what would not be enforced
            raise UnsupportedError(f"[grammar] {' '.join(warnings[0].split())[:300]}")
        # Some grammars fail only at the first mask.  The copy shares what it computes with the original.
        first = matcher.deep_copy()
        if not any(first.compute_bitmask()) or first.is_error():
            raise _refusal(first.get_error() or "allows no answer")
        return Grammar(matcher, drawable)

    def _open(self) -> tuple[LLTokenizer, TokenVocabulary, npt.NDArray[np.uint32]]:
        with self._lock:
            if self._opened is None:
                try:
                    from llguidance import LLTokenizer, TokenizerWrapper
                except ImportError as error:
                    raise UnsupportedError("[grammar] structured outputs need the package llguidance") from error
                vocabulary = self._vocabulary_of()
                if not vocabulary.eog_ids:
                    raise UnsupportedError("[grammar] the vocabulary must have an end-of-generation token but has none")
                source = _Source(vocabulary)
                eos = sorted(vocabulary.eog_ids)
                # In two steps, as each holds the interpreter's lock: half a second for 150 000 tokens.
                tokenizer = LLTokenizer(TokenizerWrapper(source), eos_token=eos, slices=[])
                tokenizer = tokenizer.with_slices(LLTokenizer.general_slices())
                source.tokens = []  # they are in the tree now
                self._opened = (tokenizer, vocabulary, _drawable(vocabulary))
            return self._opened


def _drawable(vocabulary: TokenVocabulary) -> npt.NDArray[np.uint32]:
    """Bits of the tokens that show something."""
    import numpy as np

    shown = np.array([bool(text) for text in vocabulary.token_bytes])
    return np.packbits(np.pad(shown, (0, -len(shown) % 32)), bitorder="little").view(np.uint32)


def grammars(source: GrammarSource, vocabulary: TokenVocabulary) -> str:
    """llguidance's own form, in which grammars refer to one another."""
    body = [] if source.body is None else [json.loads(source.body)]
    if source.frame is None:
        return json.dumps({"grammars": body})
    named = [{"name": "body", **grammar} for grammar in body]
    return json.dumps({"grammars": [{"lark_grammar": frame_lark(source.frame, vocabulary)}, *named]})


_UNSUPPORTED = ("not supported", "unsupported", "not disjoint", "unimplemented", "unknown format", "only supported")


def _refusal(message: str) -> RequestError | UnsupportedError:
    text = " ".join(message.split())[:300]
    if DEAD_END in text:
        return RequestError("[grammar] the grammar must be valid, with an answer that has tokens, but has none")
    if any(mark in text.lower() for mark in _UNSUPPORTED):
        return UnsupportedError(f"[grammar] {text}")
    return RequestError(f"[grammar] the grammar must be valid but {text}")
