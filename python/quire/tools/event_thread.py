"""The thread on whose event loop MCP connections live.

A connection outlives a call and may be used from several threads and loops, so it needs a loop of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ..errors import RequestError

__all__ = ["run", "run_at_exit", "submit"]

T = TypeVar("T")
_EXIT_S = 10.0
_NAME = "quire-tools"
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_pid = 0


def submit(job: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on the thread.  Cancelling the future cancels it."""
    return asyncio.run_coroutine_threadsafe(job, _the_loop())


def run(job: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the thread and wait for it.  An interrupt, such as Ctrl-C, cancels it."""
    if _loop is not None and threading.current_thread().name == _NAME:
        job.close()
        raise RequestError("[tools] an async tool cannot wait for a blocking call: use AsyncLLM")
    future = submit(job)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _the_loop() -> asyncio.AbstractEventLoop:
    global _loop, _pid
    with _lock:
        if _loop is None or _pid != os.getpid():  # a forked child has no such thread
            _loop, _pid = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name=_NAME, daemon=True).start()
        return _loop


def run_at_exit(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a last coroutine for a bounded time when the interpreter exits, if the thread runs in that process."""

    def last() -> None:
        if _loop is not None and _pid == os.getpid():
            with suppress(Exception):
                submit(make()).result(_EXIT_S)

    atexit.register(last)
