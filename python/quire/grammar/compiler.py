"""Compile grammars for one vocabulary with llguidance, in a queue and on separate threads."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import BusyError, QuireError, RequestError, UnsupportedError
from ..system import clock_of_this_thread
from .deep_thread import be_patient, start_deep_thread
from .refusals import Refusals
from .trial import PATIENCE, Trial, too_slow
from .turns import Budget, Turns
from .vocabulary import GrammarVocabulary, grammars

if TYPE_CHECKING:
    from .matching import Grammar
    from .source import GrammarSource
    from .vocabulary import TokenVocabulary

__all__ = ["Compiler", "CompilerLimits"]


@dataclass(frozen=True)
class CompilerLimits:
    """Limits on compiling.  One grammar is compiled at a time.

    Attributes:
        deadline_s: Processor time for one grammar.
        trial_s: Processor time for its trial.
        threads: How many threads with grammars that take too long may be left running.
        queue_s: How long a grammar waits for its turn.
        cache_entries: Compiled grammars that are kept.
        cache_bytes: Source text of those grammars.
        refusals: Refused grammars that are remembered.
        refused_s: How long each of them is.
        budget: Compile time of callers that have a key.
    """

    deadline_s: float = 0.6
    trial_s: float = 0.4
    threads: int = 4
    queue_s: float = 15.0
    cache_entries: int = 256
    cache_bytes: int = 2 * 1024 * 1024
    refusals: int = 4096
    refused_s: float = 600.0
    budget: Budget = field(default_factory=Budget)


class _Compilation:
    """A grammar being compiled on a thread.  Measures processor time, or wall time on systems without thread clocks."""

    def __init__(self) -> None:
        self._result: Future[Grammar] = Future()
        self._now: Callable[[], float] = time.monotonic
        self._begin_s: float | None = None
        self._taken_s: float | None = None

    def run(self, make: Callable[[], Grammar]) -> None:
        """Compile; called on that thread."""
        self._now = clock_of_this_thread()
        self._begin_s = self._now()
        try:
            made = make()
        except BaseException as error:
            self._taken_s = self._now() - self._begin_s
            self._result.set_exception(error)
        else:
            self._taken_s = self._now() - self._begin_s
            self._result.set_result(made)

    def within(self, seconds: float) -> Grammar:
        """Wait for the result.  FutureTimeout if it takes longer, or PATIENCE times as long in wall time."""
        end_s = time.monotonic() + seconds * PATIENCE
        left_s = seconds
        while left_s > 0 and time.monotonic() < end_s:
            try:
                return self._result.result(left_s)
            except FutureTimeout:
                left_s = seconds - self.seconds
        raise FutureTimeout

    @property
    def seconds(self) -> float:
        """The processor time used so far."""
        if self._taken_s is not None or self._begin_s is None:
            return self._taken_s or 0.0
        try:
            return self._now() - self._begin_s
        except OSError:  # the thread has just ended
            return self._taken_s or 0.0


@dataclass
class _Job:
    """A grammar in the queue and the futures that wait for it."""

    source: GrammarSource
    key: str | None
    waiting: list[Future[Grammar]] = field(default_factory=list)


class Compiler:
    """Compiles grammars for one vocabulary and caches those used last.  Thread-safe."""

    def __init__(self, vocabulary: Callable[[], TokenVocabulary], limits: CompilerLimits | None = None) -> None:
        """Create a compiler.  ``vocabulary`` is called once, for the first grammar."""
        self._vocabulary, self._limits = GrammarVocabulary(vocabulary), limits or CompilerLimits()
        self._lock = threading.Lock()
        self._cache: OrderedDict[GrammarSource, Grammar] = OrderedDict()
        self._cached_bytes = 0
        self._refusals = Refusals(self._limits.refusals, self._limits.refused_s)
        self._turns: Turns[_Job] = Turns(self._limits.budget, self._limits.queue_s)
        self._jobs: dict[tuple[GrammarSource, str | None], _Job] = {}
        self._running = False
        self._permits = threading.Semaphore(self._limits.threads)
        self._trial: Trial | None = None

    def compile(self, source: GrammarSource) -> Grammar:
        """Compile a grammar and wait for it; see ``begin``."""
        return self.begin(source).result()

    def begin(self, source: GrammarSource, key: str | None = None) -> Future[Grammar]:
        """Start compiling a grammar.  A grammar that could be slow is tried in another process first.

        Args:
            source: The grammar.
            key: The caller, for turns and budget; None for a caller without a budget.

        Returns:
            A future with the grammar, or with one of these errors: RequestError if the grammar is malformed, allows
            nothing, is too large or takes too long; UnsupportedError if llguidance is absent or does not support it;
            BusyError if too many grammars are waiting or the caller has used up its time.
        """
        future: Future[Grammar] = Future()
        with self._lock:
            try:
                grammar = self._known(source)
                if grammar is not None:
                    future.set_result(grammar)
                    return future
                job = self._jobs.get((source, key))
                if job is None:
                    job = _Job(source, key)
                    self._turns.add(job, key, source.size, is_free=source.is_tame)
                    self._jobs[source, key] = job
                job.waiting.append(future)
            except QuireError as error:
                future.set_exception(error)
                return future
            start, self._running = not self._running, True
        if start:
            start_deep_thread(self._run, (), "quire-grammar")
        return future

    def _known(self, source: GrammarSource) -> Grammar | None:
        """Return the grammar if it is cached.  Raises the error if it was refused before."""
        grammar = self._cache.get(source)
        if grammar is not None:
            self._cache.move_to_end(source)
            return grammar
        refused = self._refusals.of(source.digest)
        if refused is not None:
            raise refused
        return None

    def _run(self) -> None:
        """Compile one grammar after another until none is left; the queue's thread."""
        while True:
            with self._lock:
                given_up = self._turns.given_up()
                job = self._turns.next()
                if job is None and not len(self._turns):
                    self._running = False
                pause_s = self._turns.pause_s
                running = self._running
            for other, error in given_up:
                self._answer(other, error)
            if job is not None:
                self._answer(job, self._made(job))
            elif running:
                time.sleep(min(pause_s, 0.25))
            else:
                return

    def _answer(self, job: _Job, outcome: Grammar | Exception) -> None:
        with self._lock:
            del self._jobs[job.source, job.key]
        for future in job.waiting:
            if future.set_running_or_notify_cancel():
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    def _made(self, job: _Job) -> Grammar | Exception:
        """Return a job's grammar, or the error."""
        source = job.source
        try:
            if all(future.cancelled() for future in job.waiting):
                raise BusyError("[grammar] cancelled: nobody is waiting for the grammar", 1)
            with self._lock:
                grammar = self._known(source)  # compiled for another caller in the meantime
            if grammar is None:
                grammar = self._compiled(job)
                with self._lock:
                    self._keep(source, grammar)
        except Exception as error:
            return error
        return grammar

    def _compiled(self, job: _Job) -> Grammar:
        """Compile on a separate thread: one that is too slow cannot be stopped, only left running."""
        source, limits = job.source, self._limits
        vocabulary = self._vocabulary.open()
        if not source.is_plain:
            self._trial = self._trial or Trial(vocabulary)
            seconds, refusal = self._trial.run(grammars(source, vocabulary), limits.trial_s)
            self._charge(job, seconds)
            if refusal is not None:
                raise self._refused(source, refusal)
        if not self._permits.acquire(timeout=limits.queue_s):
            raise BusyError(f"[grammar] {limits.threads} grammars are being compiled: try again later", 5)
        compilation = _Compilation()
        start_deep_thread(self._compile, (source, compilation), "quire-compile")
        try:
            return compilation.within(limits.deadline_s)
        except FutureTimeout:
            if compilation.seconds < limits.deadline_s:
                raise BusyError("[grammar] the machine is too busy to compile grammars: try again later") from None
            raise self._refused(source, RequestError(too_slow(limits.deadline_s))) from None
        except QuireError as error:
            raise self._refused(source, error) from None
        finally:
            self._charge(job, compilation.seconds)

    def _compile(self, source: GrammarSource, compilation: _Compilation) -> None:
        be_patient()
        try:
            compilation.run(lambda: self._vocabulary.compile(source))
        finally:
            self._permits.release()

    def _refused(self, source: GrammarSource, error: QuireError) -> QuireError:
        """Remember an error that would be the same next time; returns it."""
        if isinstance(error, RequestError | UnsupportedError):
            with self._lock:
                self._refusals.add(source.digest, error)
        return error

    def _charge(self, job: _Job, seconds: float) -> None:
        with self._lock:
            self._turns.charge(job.key, seconds)

    def _keep(self, source: GrammarSource, grammar: Grammar) -> None:
        self._cache[source] = grammar
        self._cached_bytes += source.size
        while len(self._cache) > self._limits.cache_entries or self._cached_bytes > self._limits.cache_bytes:
            oldest, _ = self._cache.popitem(last=False)
            self._cached_bytes -= oldest.size
