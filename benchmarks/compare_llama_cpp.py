#!/usr/bin/env python3
"""Quire beside llama.cpp, on the same files in one run, in alternation.

    compare_llama_cpp.py PEER FILE.gguf ... [--prompt 512] [--generate 32] [--depth 0] [--threads 2] [--rounds 5]
        [--json OUT]

PEER is the folder with llama-bench (build/bin of the peer).  Weights are read into memory by both.  Prints, for every
file, the medians in tokens a second and the ratio; says so when the machine was not quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path


def run(command: list[str]) -> object:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def peer_speeds(peer: Path, file: str, options: argparse.Namespace) -> dict[str, float]:
    """Prompt and generation of llama-bench: tokens a second by test name."""
    command = [
        str(peer / "llama-bench"),
        "-m",
        file,
        "-t",
        str(options.threads),
        "-r",
        "1",
        "-o",
        "json",
        "-lm",
        "none",
    ]
    results = run([*command, "-p", str(options.prompt), "-n", str(options.generate)])
    assert isinstance(results, list)
    speeds = {f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}": r["avg_ts"] for r in results}
    if options.depth:
        results = run([*command, "-p", "0", "-n", str(options.generate), "-d", str(options.depth)])
        assert isinstance(results, list)
        speeds |= {f"tg{r['n_gen']}@{options.depth}": r["avg_ts"] for r in results}
    return speeds


def our_speeds(file: str, options: argparse.Namespace) -> dict[str, float]:
    """The same of `quire bench`."""
    command = [
        sys.executable,
        "-m",
        "quire",
        "bench",
        "-m",
        file,
        "-t",
        str(options.threads),
        "-b",
        "1",
        "-r",
        "1",
        "--json",
    ]
    results = run([*command, "-p", str(options.prompt), "-n", str(options.generate)])
    assert isinstance(results, dict)
    speeds = {r["test"]: r["tokens_per_s"] for r in results["results"]}
    if options.depth:
        results = run([*command, "-p", "0", "-n", str(options.generate), "-d", str(options.depth)])
        assert isinstance(results, dict)
        speeds |= {r["test"]: r["tokens_per_s"] for r in results["results"]}
    return speeds


def other_load() -> float:
    """Share of one core that other processes use, over half a second."""
    before, own_before = os.times(), Path("/proc/stat").read_text(encoding="ascii").split()[1:5]
    subprocess.run(["sleep", "0.5"], check=True)
    after = Path("/proc/stat").read_text(encoding="ascii").split()[1:5]
    busy = sum(int(b) - int(a) for a, b in zip(own_before[:3], after[:3], strict=True)) / os.sysconf("SC_CLK_TCK")
    own = sum(os.times()[:4]) - sum(before[:4])
    return max(0.0, busy - own) / 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--depth", type=int, default=0, help="also answers after so many tokens [0: none]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, object] = {}
    for file in options.files:
        theirs: dict[str, list[float]] = {}
        ours: dict[str, list[float]] = {}
        loads = []
        for _ in range(options.rounds):
            loads.append(other_load())
            for speeds, into in ((peer_speeds(options.peer, file, options), theirs), (our_speeds(file, options), ours)):
                for test, speed in speeds.items():
                    into.setdefault(test, []).append(speed)
        name = Path(file).name
        for test, speeds in theirs.items():
            peer, own = statistics.median(speeds), statistics.median(ours[test])
            print(f"{name:32} {test:10} llama.cpp {peer:8.1f}  quire {own:8.1f}  ratio {own / peer:5.2f}", flush=True)
            report[f"{name} {test}"] = {"llama.cpp": speeds, "quire": ours[test], "ratio": own / peer}
        if max(loads) > 0.2:
            print(
                f"{name}: the machine was not quiet: other processes took up to {max(loads):.1f} cores before a round"
            )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
