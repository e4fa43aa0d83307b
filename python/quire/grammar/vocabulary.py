"""The vocabulary that grammars are compiled for, and its form for llguidance."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import RequestError, UnsupportedError
from .frame import frame_lark
from .lazy import LazyGrammar, Trigger, free_frame
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
    """The part of a tokenizer that grammars need.

    Attributes:
        token_bytes: The bytes that each token shows, or a control token's name.  Empty ones are never drawn.
        control_ids: Ids of control tokens by name.
        eog_ids: Ids that end an answer.
        encode: Returns the ids of a text, without control tokens.
    """

    token_bytes: Sequence[bytes]
    control_ids: dict[str, int]
    eog_ids: Sequence[int]
    encode: Callable[[bytes], list[int]]


class _Source:
    """A vocabulary with the attributes that llguidance reads."""

    bos_token_id = None

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.eos_token_id = vocabulary.eog_ids[0]
        self.tokens = list(vocabulary.token_bytes)
        self.special_token_ids = sorted(vocabulary.control_ids.values())
        self._encode, self._shown = vocabulary.encode, vocabulary.token_bytes

    def __call__(self, text: bytes | str) -> list[int]:
        """Return ids that show the text, up to the first byte without a token: llguidance does not check forced ids."""
        data = text.encode() if isinstance(text, str) else text
        ids, at = self._encode(data), 0
        for i, token in enumerate(ids):
            shown = self._shown[token]
            if not shown or not data.startswith(shown, at):
                return ids[:i]
            at += len(shown)
        return ids


class GrammarVocabulary:
    """A vocabulary that is read once, for the first grammar.  Thread-safe."""

    def __init__(self, vocabulary: Callable[[], TokenVocabulary]) -> None:
        self._vocabulary_of = vocabulary
        self._lock = threading.Lock()
        self._opened: tuple[LLTokenizer, TokenVocabulary, npt.NDArray[np.uint32]] | None = None

    def open(self) -> TokenVocabulary:
        """Return the vocabulary.  UnsupportedError if grammars cannot be compiled at all."""
        return self._open()[1]

    def compile(self, source: GrammarSource) -> Grammar:
        """Compile a grammar without a limit of time.  RequestError or UnsupportedError if it is invalid."""
        from llguidance import LLMatcher

        if source.triggers:
            return self._compile_lazy(source)
        tokenizer, vocabulary, drawable = self._open()
        matcher = LLMatcher(tokenizer, grammars(source, vocabulary), log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        warnings = matcher.get_grammar_warnings()
        if warnings:  # llguidance would not enforce everything
            raise UnsupportedError(f"[grammar] {' '.join(warnings[0].split())[:300]}")
        # Some grammars fail only at the first mask.  The copy shares its results with the original.
        first = matcher.deep_copy()
        if not any(first.compute_bitmask()) or first.is_error():
            raise _refusal(first.get_error() or "it allows no answer")
        return Grammar(matcher, drawable)

    def _compile_lazy(self, source: GrammarSource) -> Grammar:
        vocabulary = self.open()
        triggers = []
        for text in source.triggers:
            shown, control = text.encode(), vocabulary.control_ids.get(text)
            ids = _Source(vocabulary)(shown) if control is None else [control]
            if b"".join(vocabulary.token_bytes[id_] for id_ in ids) != shown:
                raise RequestError(f"[grammar] the vocabulary has no tokens for the trigger {text!r:.80}")
            triggers.append(Trigger(shown, tuple(ids)))
        body = self.compile(replace(source, triggers=()))
        free = self.compile(replace(source, body=None, frame=free_frame(source.triggers), triggers=()))
        return LazyGrammar(free, body, triggers, vocabulary.token_bytes)

    def _open(self) -> tuple[LLTokenizer, TokenVocabulary, npt.NDArray[np.uint32]]:
        with self._lock:
            if self._opened is None:
                try:
                    from llguidance import LLTokenizer, TokenizerWrapper
                except ImportError as error:
                    raise UnsupportedError(
                        "[grammar] structured outputs need the package llguidance, which is not installed"
                    ) from error
                vocabulary = self._vocabulary_of()
                if not vocabulary.eog_ids:
                    raise UnsupportedError("[grammar] the vocabulary has no end-of-generation token")
                source = _Source(vocabulary)
                eos = sorted(vocabulary.eog_ids)
                # In two steps, because each holds the GIL: half a second for 150 000 tokens.
                tokenizer = LLTokenizer(TokenizerWrapper(source), eos_token=eos, slices=[])
                tokenizer = tokenizer.with_slices(LLTokenizer.general_slices())
                source.tokens = []  # the tree has copies
                self._opened = (tokenizer, vocabulary, _drawable(vocabulary))
            return self._opened


def _drawable(vocabulary: TokenVocabulary) -> npt.NDArray[np.uint32]:
    """Return bits that are set for tokens that show something."""
    import numpy as np

    shown = np.array([bool(text) for text in vocabulary.token_bytes])
    return np.packbits(np.pad(shown, (0, -len(shown) % 32)), bitorder="little").view(np.uint32)


def grammars(source: GrammarSource, vocabulary: TokenVocabulary) -> str:
    """Return the grammar as JSON for llguidance, in which grammars can refer to each other."""
    body = [] if source.body is None else [json.loads(source.body)]
    if source.frame is None:
        return json.dumps({"grammars": body})
    named = [{"name": "body", **grammar} for grammar in body]
    return json.dumps({"grammars": [{"lark_grammar": frame_lark(source.frame, vocabulary)}, *named]})


_UNSUPPORTED = ("not supported", "unsupported", "not disjoint", "unimplemented", "unknown format", "only supported")


def _refusal(message: str) -> RequestError | UnsupportedError:
    text = " ".join(message.split())[:300]
    if DEAD_END in text:
        return RequestError("[grammar] the grammar is invalid: the vocabulary has no tokens for any of its answers")
    if any(mark in text.lower() for mark in _UNSUPPORTED):
        return UnsupportedError(f"[grammar] {text}")
    return RequestError(f"[grammar] the grammar is invalid: {text}")
