"""The order of jobs in a fair pool, written down for each case."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from quire.server.fair_pool import FairPool
from quire.server.listener.offload import offload

SMALL, LARGE = 100, 1 << 20
LIMIT_S = 120.0


class Jobs:
    """Jobs that are recorded when they run, and wait for ``go`` if told to."""

    def __init__(self, pool: FairPool) -> None:
        self.pool = pool
        self.ran: list[str] = []
        self.go = threading.Event()
        self._lock = threading.Lock()

    def add(self, caller: str, size: int, waits: bool = False) -> threading.Event:
        began = threading.Event()

        def job() -> None:
            with self._lock:
                self.ran.append(caller)
            began.set()
            if waits:
                assert self.go.wait(LIMIT_S)

        self.pool.submit(caller, size, job)
        return began


def in_pool(n_threads: int, test: Callable[[Jobs], None]) -> None:
    pool = FairPool(n_threads, "test")
    jobs = Jobs(pool)
    try:
        test(jobs)
    finally:
        jobs.go.set()
        pool.close()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_callers_take_turns(size: int) -> None:
    def test(jobs: Jobs) -> None:
        assert jobs.add("first", LARGE, waits=True).wait(LIMIT_S)
        for caller in ("a", "a", "a", "a", "b", "b", "c"):
            last = jobs.add(caller, size)
        jobs.go.set()
        assert jobs.add("z", size).wait(LIMIT_S)
        assert last.wait(LIMIT_S)

    pool_ran: list[str] = []

    def noted(jobs: Jobs) -> None:
        test(jobs)
        jobs.pool.close()
        pool_ran.extend(jobs.ran)

    in_pool(1, noted)
    assert pool_ran[1:4] == ["a", "b", "c"]


def test_small_jobs_do_not_wait_for_large_ones() -> None:
    def test(jobs: Jobs) -> None:
        large = [jobs.add(caller, LARGE, waits=True) for caller in "abcabc"]
        assert large[0].wait(LIMIT_S)
        assert large[1].wait(LIMIT_S)
        # Two large jobs run; the third thread is reserved for small jobs of any caller.
        for caller in "abcd":
            assert jobs.add(caller, SMALL).wait(LIMIT_S)
        assert not any(began.is_set() for began in large[2:])

    in_pool(3, test)


def test_a_caller_has_one_large_job_at_a_time() -> None:
    def test(jobs: Jobs) -> None:
        own = [jobs.add("a", LARGE, waits=True) for _ in range(5)]
        assert own[0].wait(LIMIT_S)
        assert jobs.add("b", LARGE).wait(LIMIT_S)
        assert not own[1].is_set()
        jobs.go.set()
        assert own[4].wait(LIMIT_S)

    in_pool(3, test)


def test_tasks_get_results_and_errors() -> None:
    async def run() -> None:
        pool = FairPool(2, "test")
        assert await offload(pool, "a", SMALL, lambda: 5) == 5
        with pytest.raises(ZeroDivisionError):
            await offload(pool, "a", LARGE, lambda: 1 // 0)
        gone = asyncio.ensure_future(offload(pool, "a", SMALL, lambda: 6))
        gone.cancel()
        assert await offload(pool, "a", SMALL, lambda: 7) == 7
        pool.close()

    asyncio.run(run())
