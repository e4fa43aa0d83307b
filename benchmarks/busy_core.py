#!/usr/bin/env python3
"""Measure how much decoding slows down while another process keeps one core busy: llama.cpp and Quire on the same file.

    busy_core.py FILE [--peer PEER] [--threads 2] [--cpu N] [--tokens 64] [--rounds 5] [--wait SECONDS]

The other process computes endlessly, on core ``--cpu`` (Linux) or on any core.  At best, it and the ``--threads``
threads share the same number of cores equally: with two threads, the fair share is two thirds of the speed.  Rounds
alternate between quiet and busy and between the programs.  Each figure is from a fresh process with its weights in
memory.  PEER is the folder of llama-bench.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from compare_llama_cpp import child_speeds, peer_speeds
from limits import wait_until_quiet, warning_of_load
from model_costs import Work


@contextlib.contextmanager
def busy_core(cpu: int | None) -> Iterator[None]:
    bind = "" if cpu is None else f"import os\nos.sched_setaffinity(0, {{{cpu}}})\n"
    program = f"{bind}print('busy', flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait at most SECONDS for a quiet machine before each round",
    )
    options = parser.parse_args()
    if options.cpu is not None and options.cpu not in os.sched_getaffinity(0):
        parser.error(f"--cpu is {options.cpu}: expected one of {sorted(os.sched_getaffinity(0))}")
    work, file, threads = Work(0, options.tokens), options.file, options.threads
    ours = ["--threads", str(threads), "--repeat", "3"]
    programs: dict[str, Callable[[], float]] = {}
    if options.peer:
        programs["llama.cpp"] = lambda: peer_speeds(options.peer, file, work, threads, True).of(work)
    programs["Quire"] = lambda: child_speeds(sys.executable, "speed_of_quire.py", file, work, ours).of(work)
    speeds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in programs}
    loads = []
    for _ in range(options.rounds):
        loads.append(wait_until_quiet(options.wait))
        for name, speed in programs.items():
            quiet, busy = speeds[name]
            quiet.append(speed())
            with busy_core(options.cpu):
                busy.append(speed())
    print(f"{file.name}, {threads} threads, tokens per second, medians of {options.rounds}")
    for name, (quiet, busy) in speeds.items():
        kept = statistics.median(b / q for q, b in zip(quiet, busy, strict=True))
        line = f"{statistics.median(quiet):7.1f} quiet {statistics.median(busy):7.1f} beside a busy process"
        print(f"{name:10}{line}: {kept:.0%} ({min(busy):.1f} to {max(busy):.1f})")
    print(warning_of_load(loads))


if __name__ == "__main__":
    main()
