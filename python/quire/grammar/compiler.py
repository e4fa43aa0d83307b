"""Grammars compiled for one vocabulary, by llguidance, on threads of their own."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CapacityError, RequestError, UnsupportedError
from .frame import frame_lark
from .source import GrammarSource
from .trial import MAX_LEXER_STATES, PATIENCE, STACK_BYTES, Trial, too_slow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Compiler", "CompilerLimits", "Grammar", "Matcher", "TokenVocabulary", "start_deep_thread"]


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


@dataclass(frozen=True)
class CompilerLimits:
    """``deadline_s`` of processor time for one grammar, and ``trial_s`` for its trial before; ``threads`` are compiled
    at a time, and another waits ``queue_s`` for its turn.

    ``cache_entries``, ``cache_bytes`` (of source text): what is kept compiled.
    """

    deadline_s: float = 0.6
    trial_s: float = 0.4
    threads: int = 4
    queue_s: float = 5.0
    cache_entries: int = 256
    cache_bytes: int = 2 * 1024 * 1024


_DEAD_END = "NoExtensionBias"  # llguidance's word for a place that no token leads on from
_NO_TOKENS = "the vocabulary must have tokens for what is to come but has none"


class Matcher:
    """Where one answer stands in a grammar.  One thread at a time."""

    def __init__(self, matcher: LLMatcher, drawable: npt.NDArray[np.uint32]) -> None:
        self._matcher, self._drawable = matcher, drawable

    def advance(self, token: int) -> None:
        """A token was drawn.  RequestError where the grammar is too complex to go on."""
        if not self._matcher.consume_token(token):
            raise self._too_complex()

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Write which tokens may come next, end of generation among them only where the grammar is complete.

        RequestError where the grammar is too complex to go on, or the vocabulary has no token to go on with.
        """
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise self._too_complex()
        # Where a text is forced, it is not looked at whether there are tokens for it.
        mask &= self._drawable
        if not mask.any():
            raise RequestError(f"[grammar] {_NO_TOKENS}")

    @property
    def is_complete(self) -> bool:
        """Whether the answer may end here."""
        return self._matcher.is_accepting()

    def _too_complex(self) -> RequestError:
        reason = " ".join(self._matcher.get_error().split())[:200]
        if _DEAD_END in reason:
            return RequestError(f"[grammar] {_NO_TOKENS}")
        return RequestError(f"[grammar] the grammar must be simple enough to follow but {reason}")


class Grammar:
    """A compiled grammar.  Thread-safe."""

    def __init__(self, matcher: LLMatcher, drawable: npt.NDArray[np.uint32]) -> None:
        self._matcher, self._drawable = matcher, drawable
        self._lock = threading.Lock()

    def matcher(self) -> Matcher:
        """A matcher at the beginning."""
        with self._lock:
            return Matcher(self._matcher.deep_copy(), self._drawable)


class _Source:
    """A vocabulary under the names by which llguidance reads it."""

    bos_token_id = None

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.eos_token_id = vocabulary.eog_ids[0]
        self.tokens = list(vocabulary.token_bytes)
        self.special_token_ids = sorted(vocabulary.control_ids.values())
        self._encode = vocabulary.encode

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids that show the text, or its beginning where a byte has no token: what is forced is not looked at again."""
        data = text.encode() if isinstance(text, str) else text
        ids, at = self._encode(data), 0
        for i, token in enumerate(ids):
            shown = self.tokens[token]
            if not shown or not data.startswith(shown, at):
                return ids[:i]
            at += len(shown)
        return ids


class _Compilation(Future[Grammar]):
    """What a thread compiles.  Its processor time is measured, or time by the clock where a system tells only that."""

    def __init__(self) -> None:
        super().__init__()
        self._clock: int = time.CLOCK_MONOTONIC
        self._begin_s: float | None = None

    def begin(self) -> None:
        """Called by that thread."""
        clock_of = getattr(time, "pthread_getcpuclockid", None)
        if clock_of is not None:
            self._clock = clock_of(threading.get_ident())
        self._begin_s = time.clock_gettime(self._clock)

    def within(self, seconds: float) -> Grammar:
        """The result; FutureTimeout where the thread takes longer, or PATIENCE times as much by the clock."""
        end_s = time.monotonic() + seconds * PATIENCE
        left_s = seconds
        while left_s > 0 and time.monotonic() < end_s:
            try:
                return self.result(left_s)
            except FutureTimeout:
                left_s = seconds - self._seconds()
        raise FutureTimeout

    def _seconds(self) -> float:
        if self._begin_s is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock) - self._begin_s
        except OSError:  # the thread has ended, and there is a result
            return 0.0


class Compiler:
    """Compiles grammars for one vocabulary and keeps those last used.  Thread-safe."""

    def __init__(self, vocabulary: Callable[[], TokenVocabulary], limits: CompilerLimits | None = None) -> None:
        """``vocabulary`` is asked once, when the first grammar comes."""
        self._vocabulary_of, self._limits = vocabulary, limits or CompilerLimits()
        self._lock = threading.Lock()
        self._cache: OrderedDict[GrammarSource, _Compilation] = OrderedDict()
        self._cached_bytes = 0
        self._permits = threading.Semaphore(self._limits.threads)
        self._tokenizer_lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._vocabulary: TokenVocabulary | None = None
        self._drawable: npt.NDArray[np.uint32] | None = None
        self._trial: Trial | None = None

    def compile(self, source: GrammarSource) -> Grammar:
        """The compiled grammar; waits at most the deadline.  What could be slow is tried in another process first.

        RequestError for a grammar that is malformed, allows nothing, is too large, or takes too long;
        UnsupportedError for what llguidance cannot do, or where it is absent; CapacityError while too many others are
        being compiled.
        """
        _, vocabulary = self._open_tokenizer()  # once for each model, and not the grammar's fault
        with self._lock:
            future = self._cache.get(source)
            if future is not None:
                self._cache.move_to_end(source)
        if future is None:
            if not source.is_tame:
                self._opened_trial(vocabulary).run(_grammars(source, vocabulary), self._limits.trial_s)
            future = self._start(source)
        try:
            return future.within(self._limits.deadline_s)
        except FutureTimeout:
            raise RequestError(too_slow(self._limits.deadline_s)) from None

    def _start(self, source: GrammarSource) -> _Compilation:
        """Compile on a thread of its own: what is too slow cannot be stopped, only left behind."""
        if not self._permits.acquire(timeout=self._limits.queue_s):
            raise CapacityError(f"[grammar] {self._limits.threads} grammars are being compiled: try again later")
        future = _Compilation()
        with self._lock:
            self._forget(source)
            self._cache[source] = future
            self._cached_bytes += source.size
            while len(self._cache) > self._limits.cache_entries or self._cached_bytes > self._limits.cache_bytes:
                self._forget(next(iter(self._cache)))
        start_deep_thread(self._run, (source, future), "quire-grammar")
        return future

    def _opened_trial(self, vocabulary: TokenVocabulary) -> Trial:
        with self._lock:
            if self._trial is None:
                self._trial = Trial(vocabulary, self._limits.queue_s)
            return self._trial

    def _run(self, source: GrammarSource, future: _Compilation) -> None:
        future.begin()
        try:
            future.set_result(self._compile(source))
        except Exception as error:
            with self._lock:
                if self._cache.get(source) is future:
                    self._forget(source)
            future.set_exception(error)
        finally:
            self._permits.release()

    def _forget(self, source: GrammarSource) -> None:
        if self._cache.pop(source, None) is not None:
            self._cached_bytes -= source.size

    def _open_tokenizer(self) -> tuple[LLTokenizer, TokenVocabulary]:
        with self._tokenizer_lock:
            if self._tokenizer is None or self._vocabulary is None:
                try:
                    from llguidance import LLTokenizer, TokenizerWrapper
                except ImportError as error:
                    raise UnsupportedError("[grammar] structured outputs need the package llguidance") from error
                vocabulary = self._vocabulary_of()
                if not vocabulary.eog_ids:
                    raise UnsupportedError("[grammar] the vocabulary must have an end-of-generation token but has none")
                self._tokenizer = LLTokenizer(
                    TokenizerWrapper(_Source(vocabulary)), eos_token=sorted(vocabulary.eog_ids)
                )
                self._drawable = _drawable(vocabulary)
                self._vocabulary = vocabulary
            return self._tokenizer, self._vocabulary

    def _compile(self, source: GrammarSource) -> Grammar:
        from llguidance import LLMatcher
        from llguidance._lib import LLParserLimits

        tokenizer, vocabulary = self._open_tokenizer()
        limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        matcher = LLMatcher(tokenizer, _grammars(source, vocabulary), log_level=0, limits=limits)
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        warnings = matcher.get_grammar_warnings()
        if warnings:  # of what would not be enforced
            raise UnsupportedError(f"[grammar] {' '.join(warnings[0].split())[:300]}")
        # Of a copy, which leaves what it learned to all: some grammars fail only here, and then allow nothing.
        first = matcher.deep_copy()
        if not any(first.compute_bitmask()) or first.is_error():
            raise _refusal(first.get_error() or "allows no answer")
        assert self._drawable is not None
        return Grammar(matcher, self._drawable)


def _drawable(vocabulary: TokenVocabulary) -> npt.NDArray[np.uint32]:
    """Bits of the tokens that show something."""
    import numpy as np

    shown = np.array([bool(text) for text in vocabulary.token_bytes])
    return np.packbits(np.pad(shown, (0, -len(shown) % 32)), bitorder="little").view(np.uint32)


_STACK_LOCK = threading.Lock()


def start_deep_thread(target: Callable[..., None], arguments: tuple[object, ...], name: str) -> threading.Thread:
    """A thread that may follow grammars by recursion."""
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    with _STACK_LOCK:  # the size is the process's
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return thread


def _grammars(source: GrammarSource, vocabulary: TokenVocabulary) -> str:
    """llguidance's own form, in which grammars refer to one another."""
    body = [] if source.body is None else [json.loads(source.body)]
    if source.frame is None:
        return json.dumps({"grammars": body})
    named = [{"name": "body", **grammar} for grammar in body]
    return json.dumps({"grammars": [{"lark_grammar": frame_lark(source.frame, vocabulary)}, *named]})


_UNSUPPORTED = ("not supported", "unsupported", "not disjoint", "unimplemented", "unknown format", "only supported")


def _refusal(message: str) -> RequestError | UnsupportedError:
    text = " ".join(message.split())[:300]
    if _DEAD_END in text:
        return RequestError("[grammar] the grammar must be valid, with an answer that has tokens, but has none")
    if any(mark in text.lower() for mark in _UNSUPPORTED):
        return UnsupportedError(f"[grammar] {text}")
    return RequestError(f"[grammar] the grammar must be valid but {text}")
