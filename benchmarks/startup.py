"""Measure start-up times: importing Quire, ``quire --help``, ``quire info``, the first token of the package's model.

    python benchmarks/startup.py [--runs 9] [--json]

Each figure is the median over fresh processes, from their start; a first run, which warms the system's page cache, does
not count.  "processor" is the CPU time of all threads, which says more than the elapsed time if others use the machine.
"python" is the time of the interpreter alone, which is part of all other figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

PROMPT = "Tell me a story about a fox"
QUIRE = ("-m", "quire")


@dataclass(frozen=True)
class Case:
    """A process, timed until its exit or its first byte of output, with its limit."""

    name: str
    arguments: tuple[str, ...]
    to_first_byte: bool = False
    limit_s: float | None = None


@dataclass(frozen=True)
class Figure:
    name: str
    median_s: float
    lowest_s: float
    processor_s: float
    limit_s: float | None
    runs_s: tuple[float, ...]


CASES = (
    Case("python", ("-c", "pass")),
    Case("import quire", ("-c", "import quire"), limit_s=0.15),
    Case("import quire; LLM", ("-c", "from quire import LLM")),
    Case("quire --version", (*QUIRE, "--version")),
    Case("quire --help", (*QUIRE, "--help")),
    Case("quire run --help", (*QUIRE, "run", "--help")),
    Case("quire info", (*QUIRE, "info")),
    Case("quire run: first token", (*QUIRE, "run", PROMPT), to_first_byte=True, limit_s=0.6),
    Case("quire run -n 1: to the end", (*QUIRE, "run", "-n", "1", PROMPT)),
)


def timed(case: Case) -> tuple[float, float]:
    """Return the elapsed seconds and the CPU seconds of one process."""
    command = [sys.executable, *case.arguments]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as process:
        assert process.stdout is not None
        if case.to_first_byte:
            first = process.stdout.read(1)
            seconds = time.perf_counter() - begin
            process.kill()
            if not first:
                raise SystemExit(f"{case.name}: no output")
        else:
            process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if not case.to_first_byte:
        seconds = time.perf_counter() - begin
        if process.returncode != 0:
            raise SystemExit(f"{case.name}: exit code {process.returncode}")
    return seconds, used.ru_utime


def measure(case: Case, n_runs: int) -> Figure:
    timed(case)
    passed, used = zip(*(timed(case) for _ in range(n_runs)), strict=True)
    return Figure(case.name, statistics.median(passed), min(passed), statistics.median(used), case.limit_s, passed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="processes of each kind [9]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = [measure(case, max(1, options.runs)) for case in CASES]
    if options.json:
        print(json.dumps({"python": sys.version.split()[0], "figures": [asdict(figure) for figure in figures]}))
        return
    print(f"{'':28} {'median':>9} {'lowest':>9} {'processor':>9} {'limit':>9}")
    for figure in figures:
        limit = "" if figure.limit_s is None else f"{figure.limit_s * 1e3:6.0f} ms"
        seconds = (figure.median_s, figure.lowest_s, figure.processor_s)
        print(f"{figure.name:28}", *(f"{value * 1e3:6.0f} ms" for value in seconds), f"{limit:>9}")


if __name__ == "__main__":
    main()
