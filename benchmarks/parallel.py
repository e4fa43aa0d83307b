"""Steps of one model in one process on one core, in two on two cores, and in one with two threads, in alternation.

    python benchmarks/parallel.py FILE [--rounds 5] [--cpus 0,1] [--prompt 256] [--new 32]

Prints the median milliseconds of a prompt, of a token after it, and of a token of each of 8 streams, with the ratio to
one core.  Beside them are the processor milliseconds of the busiest process and of all.  On a busy machine, wall time
counts the neighbours, too, while a step cannot be shorter than its busiest process takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire import LLM


def cpu_seconds() -> list[float]:
    """Return the processor time of this process and of each of its children, by process id."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if os.getpid() in (int(stat.parent.name), parent):
                threads = [int(each.read_text().split()[0]) for each in stat.parent.glob("task/*/schedstat")]
                found[int(stat.parent.name)] = sum(threads) * 1e-9
        except OSError:  # it ended meanwhile
            continue
    return [seconds for _, seconds in sorted(found.items())]


@contextmanager
def timed(into: list[tuple[float, float, float]], n: int) -> Iterator[None]:
    """Add wall time, the busiest process's and all processor time, each divided by ``n``."""
    before, start = cpu_seconds(), time.perf_counter()
    yield
    wall, after = time.perf_counter() - start, cpu_seconds()
    spent = [b - a for a, b in zip(before, after, strict=True)]
    into.append((wall / n, max(spent) / n, sum(spent) / n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", default="0,1")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=32)
    given = parser.parse_args()
    cpus = [int(cpu) for cpu in given.cpus.split(",")]
    both, first = sum(1 << cpu for cpu in cpus), 1 << cpus[0]
    ways: dict[str, dict[str, Any]] = {
        "one core": {"cpu_mask": first, "threads": 1},
        "two threads": {"cpu_mask": both, "threads": 2},
        "-tp 2": {"cpu_mask": both, "threads": 1, "tensor_parallel_size": 2},
        "-pp 2": {"cpu_mask": both, "threads": 1, "pipeline_parallel_size": 2},
    }
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    ids = [(7 * i + 3) % 250 for i in range(given.prompt)]
    for turn in range(given.rounds):
        for way, options in ways.items():
            with LLM(given.file, n_ctx=given.prompt + given.new + 8, max_sequences=8, **options) as llm:
                llm.logits(ids[:8])  # reads the weights once
                prompt = [turn % 200, *ids[1:]]
                tasks = {
                    "prompt": (1, [prompt], 1),
                    "token": (given.new, [prompt[:8]], given.new),
                    "8 streams": (given.new, [[i, *prompt[:7]] for i in range(8)], given.new),
                }
                for task, (n, prompts, n_new) in tasks.items():
                    with timed(found.setdefault((task, way), []), n):
                        llm.generate(prompts, temperature=0, max_tokens=n_new, ignore_eos=True)
    print("| | | wall ms | ratio | busiest process, ms | ratio | all processes, ms |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for (task, way), rows in found.items():
        wall, busiest, total = (statistics.median(row[i] for row in rows) * 1e3 for i in range(3))
        base = [statistics.median(row[i] for row in found[task, "one core"]) * 1e3 for i in range(2)]
        print(
            f"| {task} | {way} | {wall:.1f} | {wall / base[0]:.2f} | {busiest:.1f} | {busiest / base[1]:.2f} |"
            f" {total:.1f} |"
        )


if __name__ == "__main__":
    main()
