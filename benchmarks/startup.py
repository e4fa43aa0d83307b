"""How soon Quire is there: importing it, ``quire --version``, the first token of the package's model.

    python benchmarks/startup.py [--runs 9] [--json]

Each figure is the time of a fresh process, from its start; the median of the runs, after one that warms the system's
page cache and does not count.  "python" is what the interpreter takes to do nothing: part of every other figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

PROMPT = "Tell me a story about a fox"
QUIRE = ("-m", "quire")


@dataclass(frozen=True)
class Case:
    """A process, timed to its end or to the first byte that it writes, and the issue's limit for it."""

    name: str
    arguments: tuple[str, ...]
    to_first_byte: bool = False
    limit_s: float | None = None


@dataclass(frozen=True)
class Figure:
    name: str
    median_s: float
    lowest_s: float
    limit_s: float | None
    runs_s: tuple[float, ...]


CASES = (
    Case("python", ("-c", "pass")),
    Case("import quire", ("-c", "import quire"), limit_s=0.15),
    Case("import quire; LLM", ("-c", "from quire import LLM")),
    Case("quire --version", (*QUIRE, "--version")),
    Case("quire run: first token", (*QUIRE, "run", PROMPT), to_first_byte=True, limit_s=0.6),
    Case("quire run -n 1: to the end", (*QUIRE, "run", "-n", "1", PROMPT)),
)


def timed(case: Case) -> float:
    """Seconds of one process."""
    command = [sys.executable, *case.arguments]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as process:
        assert process.stdout is not None
        if case.to_first_byte:
            first = process.stdout.read(1)
            seconds = time.perf_counter() - begin
            process.kill()
            if not first:
                raise SystemExit(f"{case.name}: nothing was written")
            return seconds
        process.stdout.read()
        code = process.wait()
        seconds = time.perf_counter() - begin
    if code != 0:
        raise SystemExit(f"{case.name}: exit code {code}")
    return seconds


def measure(case: Case, n_runs: int) -> Figure:
    timed(case)
    runs = tuple(timed(case) for _ in range(n_runs))
    return Figure(case.name, statistics.median(runs), min(runs), case.limit_s, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="processes of each kind [9]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = [measure(case, max(1, options.runs)) for case in CASES]
    if options.json:
        print(json.dumps({"python": sys.version.split()[0], "figures": [asdict(figure) for figure in figures]}))
        return
    print(f"{'':28} {'median':>9} {'lowest':>9} {'limit':>9}")
    for figure in figures:
        limit = "" if figure.limit_s is None else f"{figure.limit_s * 1e3:6.0f} ms"
        print(f"{figure.name:28} {figure.median_s * 1e3:6.0f} ms {figure.lowest_s * 1e3:6.0f} ms {limit:>9}")


if __name__ == "__main__":
    main()
