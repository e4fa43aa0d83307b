"""Check that the time the server takes to refuse a key does not reveal how much of it is right.

    python benchmarks/key_timing.py [--pairs N]

The server refuses pairs of keys in turn, one with no right byte and one with all but the last byte right.  Welch's t of
the two groups of times, without the slowest tenth of each, should be within 4.5.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence

from quire.server.failures import ApiError
from quire.server.listener.access import AccessMiddleware
from quire.server.listener.request_state import RequestState
from quire.server.service.library import Library
from quire.server.service.service import Service
from quire.server.settings import Settings

KEY = "a-secret-of-some-length-0123456789"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=200_000)
    n_pairs = parser.parse_args().pairs
    service = Service(Settings(api_keys=(KEY,)), Library("none", dict, _no_engine, 1))
    gate = AccessMiddleware(None, service)  # type: ignore[arg-type]
    keys = (b"#" * len(KEY), KEY[:-1].encode() + b"#")
    times: tuple[list[int], list[int]] = ([], [])
    for pair in range(n_pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            times[which].append(refused_ns(gate, keys[which]))
    groups = [sorted(group)[: n_pairs * 9 // 10] for group in times]
    means = [statistics.fmean(group) for group in groups]
    print(f"nothing right: {means[0]:.1f} ns, all but one: {means[1]:.1f} ns, t {welch(*groups):+.2f}")


def _no_engine(name: str, share: int) -> object:
    raise AssertionError(name)


def refused_ns(gate: AccessMiddleware, key: bytes) -> int:
    headers, state = {b"x-api-key": key}, RequestState()
    started = time.perf_counter_ns()
    try:
        gate._caller("/v1/models", headers, state)
    except ApiError:
        return time.perf_counter_ns() - started
    raise AssertionError("the key was accepted")


def welch(a: Sequence[int], b: Sequence[int]) -> float:
    spread = math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))
    return (statistics.fmean(a) - statistics.fmean(b)) / spread


if __name__ == "__main__":
    main()
