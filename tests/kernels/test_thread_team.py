"""The thread team: every piece of work is done exactly once."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from quire._native.testing import ThreadTeam
from quire.errors import CapacityError, ShapeError

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def own_threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("n_workers", [1, 2, 3, 8])
@pytest.mark.parametrize(("n", "grain"), [(0, 1), (1, 1), (7, 1), (7, 3), (100, 100), (1000, 7)])
def test_every_index_is_handed_out_once(n_workers: int, n: int, grain: int) -> None:
    team = ThreadTeam(n_workers)
    assert team.n_workers == n_workers
    assert team.count(n, grain=grain, repetitions=200) == [200] * n


def test_many_short_rounds_with_more_threads_than_cores() -> None:
    # Threads come late to most rounds and must not enter a finished one.
    assert ThreadTeam(4 * (os.cpu_count() or 1)).count(3, repetitions=20_000) == [20_000] * 3


def test_rounds_after_the_threads_fell_asleep() -> None:
    team = ThreadTeam(3)
    for _ in range(20):
        time.sleep(0.003)
        assert team.count(5, repetitions=2) == [2] * 5


def test_teams_of_several_callers_do_not_interfere() -> None:
    found: list[list[int]] = []
    callers = [
        threading.Thread(target=lambda: found.append(ThreadTeam(3).count(50, repetitions=500))) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [[500] * 50] * 4


@linux_only
def test_threads_sleep_when_there_is_nothing_to_do() -> None:
    team = ThreadTeam(4)
    team.count(100, repetitions=10)
    time.sleep(0.01)  # longer than a thread spins
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05
    assert team.count(3) == [1] * 3


@linux_only
def test_threads_stay_on_the_processors_of_the_mask() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    found: list[list[set[int]]] = []

    def work() -> None:  # in a new thread, because the caller is bound, too
        before = own_threads()
        team = ThreadTeam(3, cpus=allowed[:1])
        assert team.count(9, repetitions=5) == [5] * 9
        mine = (own_threads() - before) | {threading.get_native_id()}
        for _ in range(1000):  # a thread binds itself when it first runs
            bound = [os.sched_getaffinity(thread) for thread in sorted(mine)]
            if bound == [{allowed[0]}] * 3:
                break
            time.sleep(0.005)
        found.append(bound)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[{allowed[0]}] * 3]
    assert os.sched_getaffinity(0) == set(allowed)


@linux_only
def test_invalid_teams_are_errors() -> None:
    with pytest.raises(ShapeError, match=r"\[threads\] 0 threads.* 512"):
        ThreadTeam(0)
    with pytest.raises(ShapeError, match="processor"):
        ThreadTeam(2, cpus=[-1])
    absent = max(os.sched_getaffinity(0)) + 500
    with pytest.raises(CapacityError, match="processors in the mask"):
        ThreadTeam(2, cpus=[absent])
