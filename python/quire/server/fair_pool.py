"""A few threads for work of many callers, who take turns."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

__all__ = ["FairPool"]


class FairPool:
    """Runs functions, which must not raise, on at most ``n_threads`` threads.  Thread-safe.

    Of callers that have work the one that was served first comes first, whatever number of things each has.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._n_threads, self._name = n_threads, name
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._n_idle = 0
        self._closed = False

    def submit(self, key: str, work: Callable[[], None]) -> None:
        """Have a caller's work done in its turn; after ``close`` it is dropped."""
        with self._changed:
            if self._closed:
                return
            self._waiting.setdefault(key, deque()).append(work)
            n_waiting = sum(map(len, self._waiting.values()))
            if self._n_idle < n_waiting and len(self._threads) < self._n_threads:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Drop what waits, and wait for what runs."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._n_idle += 1
                self._changed.wait_for(lambda: self._closed or self._waiting)
                self._n_idle -= 1
                if self._closed:
                    return
                key, works = self._waiting.popitem(last=False)
                work = works.popleft()
                if works:
                    self._waiting[key] = works  # at the end of the line
            work()
