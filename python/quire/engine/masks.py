"""Threads that compute token masks while the decoder's thread runs the model."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import InternalError, QuireError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native.engine import Decoder, MaskJob, Request
    from ..grammar import Grammar, Matcher

__all__ = ["MaskThreads"]


_MOST_FORCED = 63  # tokens of one draft at most (native/engine/drafter.h), and one more


@dataclass
class _Constrained:
    grammar: Grammar
    matchers: dict[int, Matcher] = field(default_factory=dict)  # by choice


class MaskThreads:
    """Answers the decoder's mask jobs.  Thread-safe.

    ``fail`` is called if a mask cannot be computed: its request ends, others continue.  The threads start with the
    first request that has a grammar and end when the decoder is closed.
    """

    def __init__(self, n_vocab: int, fail: Callable[[int, QuireError], None]) -> None:
        self._n_words = (n_vocab + 31) // 32
        self._fail: Callable[[int, QuireError], None] | None = fail
        self._lock = threading.Lock()
        self._requests: dict[int, _Constrained] = {}
        self._threads: list[threading.Thread] = []

    def submit(self, decoder: Decoder, request: Request, grammar: Grammar) -> int:
        """Submit a request to the decoder and return its id."""
        # The lock keeps its first job from coming before its grammar is known.
        with self._lock:
            if not self._threads:
                self._start(decoder)
            request_id = decoder.submit(request)
            self._requests[request_id] = _Constrained(grammar)
        return request_id

    def forget(self, request_id: int) -> None:
        """Forget a request that has ended."""
        with self._lock:
            self._requests.pop(request_id, None)

    def close(self) -> None:
        """Join the threads of a closed decoder, and drop the reference to ``fail``."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._fail = None

    def _start(self, decoder: Decoder) -> None:
        from ..grammar import start_deep_thread

        for i in range(min(4, os.cpu_count() or 1)):
            self._threads.append(start_deep_thread(self._run, (decoder,), f"quire-mask-{i}"))

    def _run(self, decoder: Decoder) -> None:
        import numpy as np

        mask = np.zeros(self._n_words, np.uint32)
        while True:
            job = decoder.wait_mask_job(60.0)
            if job is None and decoder.closed:
                return
            constrained = self._find(job)
            if job is None or constrained is None:
                continue
            try:
                _answer(decoder, job, constrained, mask)
            except QuireError as error:
                self._report(job, error)
            except Exception as error:
                failure = InternalError(f"[grammar] a mask could not be computed: {error!r:.200}")
                failure.__cause__ = error
                self._report(job, failure)

    def _find(self, job: MaskJob | None) -> _Constrained | None:
        if job is None:
            return None
        with self._lock:
            return self._requests.get(job.request_id)

    def _report(self, job: MaskJob, error: QuireError) -> None:
        fail = self._fail
        if fail is not None:
            fail(job.request_id, error)


def _answer(decoder: Decoder, job: MaskJob, constrained: _Constrained, mask: npt.NDArray[np.uint32]) -> None:
    matcher = constrained.matchers.get(job.choice)
    if matcher is None:
        matcher = constrained.matchers[job.choice] = constrained.grammar.matcher()
    position, is_drafted = job.position, job.n_drafted > 0
    next_token: int | None = None
    try:
        matcher.follow(position - len(job.tokens), job.tokens)
        while True:
            forced = matcher.fill_ahead(mask, _MOST_FORCED)
            next_token = decoder.provide_mask(job.request_id, job.choice, position, mask, forced)
            if next_token is None:
                return
            position, is_drafted = position + len(forced) + 1, True
            matcher.advance(next_token)
    except QuireError:
        if not is_drafted:
            raise
        decoder.decline_mask(job.request_id, job.choice)  # drafted tokens, which may never be drawn
