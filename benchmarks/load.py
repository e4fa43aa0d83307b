#!/usr/bin/env python3
"""Measure the time and peak memory of loading a model, with and without the cache of packed weights.

    load.py FILE.gguf ... [--threads 2] [--rounds 5] [--json OUT]

Each figure is from a fresh process with the file in the page cache: seconds until the model is open, seconds from there
to its first token, and peak memory (VmHWM) beyond that of Python with Quire, relative to the file's size.  Rows:
weights packed at load; the first start with a cache, which also writes it; the next start, which maps it; the next
start with the file under another name, which must be hashed.  Rounds alternate between the rows; the script prints
medians.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import json, sys, time
from quire import LLM, SamplingParams
def high_water():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
from quire.engine.loading.loader import open_model
before = high_water()
model, threads, load, cache = sys.argv[1:]
begin = time.perf_counter()
with LLM(model, threads=int(threads), load=load, n_ctx=256, packed_cache=cache or None) as llm:
    opened = time.perf_counter() - begin
    peak = high_water() - before
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=1, ignore_eos=True))
    first = time.perf_counter() - begin - opened
print(json.dumps({"open_s": opened, "first_token_s": first, "peak_bytes": peak}))
"""


def measure(model: Path, load: str, cache: str, threads: int) -> dict[str, float]:
    model.read_bytes()  # read it into the page cache
    command = [sys.executable, "-c", CHILD, str(model), str(threads), load, cache]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert isinstance(found, dict)
    return found


def round_of(model: Path, threads: int) -> dict[str, dict[str, float]]:
    rows = {}
    for load in ("mmap", "copy"):
        with tempfile.TemporaryDirectory(prefix="quire-load-", dir=model.parent) as folder:
            cache = str(Path(folder) / "cache")
            rows[f"{load}: packed at load"] = measure(model, load, "", threads)
            rows[f"{load}: first start with a cache"] = measure(model, load, cache, threads)
            rows[f"{load}: next start"] = measure(model, load, cache, threads)
            copy = Path(folder) / "copy.gguf"
            shutil.copyfile(model, copy)
            rows[f"{load}: next start, unknown file"] = measure(copy, load, cache, threads)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = {}
    for file in options.files:
        rounds = [round_of(file, options.threads) for _ in range(options.rounds)]
        report[file.name] = rounds
        size = file.stat().st_size
        print(f"{file.name} ({size / 1e6:.0f} MB)\n{'':38} {'open s':>8} {'first token s':>14} {'peak / file':>12}")
        for row in rounds[0]:
            opened, first, peak = (
                statistics.median(each[row][name] for each in rounds)
                for name in ("open_s", "first_token_s", "peak_bytes")
            )
            print(f"{row:38} {opened:8.3f} {first:14.3f} {peak / size:12.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
