"""A thread pool shared fairly between callers, in which small jobs do not wait for large ones."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["FairPool"]

_SMALL = 64 << 10


class FairPool:
    """Runs jobs, which have a caller and a size in bytes.

    Callers take turns.  Each caller runs at most one large job at a time, and one thread is always left for small jobs,
    unless there is only one thread.  Jobs must not raise.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._changed = threading.Condition()
        self._small: dict[str, deque[Callable[[], None]]] = {}
        self._large: dict[str, deque[Callable[[], None]]] = {}
        self._callers_at_large: set[str] = set()
        self._most_at_large = max(1, n_threads - 1)
        self._closed = False
        self._n_threads, self._name = n_threads, name
        self._threads: list[threading.Thread] = []

    def submit(self, caller: str, size: int, job: Callable[[], None]) -> None:
        """Queue a job and return at once.  Does nothing after ``close``."""
        queues = self._small if size <= _SMALL else self._large
        with self._changed:
            if self._closed:
                return
            queues.setdefault(caller, deque()).append(job)
            self._changed.notify()
            if len(self._threads) < self._n_threads:
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()

    def close(self) -> None:
        """Drop queued jobs, wait for running ones, and end the threads."""
        with self._changed:
            self._closed = True
            self._small.clear()
            self._large.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (taken := self._take()) is None:
                    if self._closed:
                        return
                    self._changed.wait()
            caller, job = taken
            job()
            del job
            if caller is not None:
                with self._changed:
                    self._callers_at_large.discard(caller)
                    self._changed.notify_all()

    def _take(self) -> tuple[str | None, Callable[[], None]] | None:
        """Return the next job, with its caller if it is a large one."""
        for caller in self._small:
            return None, _pop(self._small, caller)
        if len(self._callers_at_large) < self._most_at_large:
            for caller in self._large:
                if caller not in self._callers_at_large:
                    self._callers_at_large.add(caller)
                    return caller, _pop(self._large, caller)
        return None


def _pop(queues: dict[str, deque[Callable[[], None]]], caller: str) -> Callable[[], None]:
    """Remove a caller's first job and move the caller behind the others."""
    queue = queues.pop(caller)
    job = queue.popleft()
    if queue:
        queues[caller] = queue
    return job
