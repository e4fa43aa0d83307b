"""Print a table of the processor time that each part of a build takes.

    python ci/build_costs.py [--target T] [CMAKE OPTION ...]      # T: this and what it needs; default: all

A clean build in build/costs, one process at a time and without a cache.  This file starts the compilers and linkers and
records the processor time of each, so other load on the machine does not change the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "costs"
LOG = FOLDER / "costs.jsonl"

# The first pattern that matches a command's output names its part.
PARTS = (
    (r"(^|/)ggml-cpu\S*\.dir/", "ggml: the CPU's module"),
    (r"(^|/)ggml\S*\.dir/|libggml|quire-ggml", "ggml: the rest"),
    (r"native/bindings/|quire_bindings", "bindings (pybind11)"),
    (r"native/kernels/([a-z0-9]+)/|/kernels/([a-z0-9]+)/", "kernels: {}"),
    (r"/kernels/", "kernels: choice and threads"),
    (r"cython|tokenizer_", "tokenizers (Cython)"),
    (r"quire_core", "core: graphs, engine, cache, files"),
)


@dataclass
class Cost:
    """The cost of one part."""

    n_commands: int = 0
    seconds: float = 0.0
    slowest: str = ""
    slowest_s: float = 0.0


def launch(command: list[str]) -> int:
    """Run a command and add its processor time to the log."""
    done = subprocess.run(command, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = command[command.index("-o") + 1] if "-o" in command else command[-1]
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps([made, used.ru_utime + used.ru_stime]) + "\n")
    return done.returncode


def part_of(made: str) -> str:
    for pattern, name in PARTS:
        found = re.search(pattern, made)
        if found:
            return name.format(next((group for group in found.groups() if group), ""))
    return "linking the module"


def build(target: str, options: list[str]) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    start = f"{sys.executable} {Path(__file__).resolve()} --launch"
    hook = FOLDER / "launch.cmake"
    rules = "".join(
        f'set_property(GLOBAL PROPERTY RULE_LAUNCH_{kind} "{start}")\n' for kind in ("COMPILE", "LINK", "CUSTOM")
    )
    hook.write_text(rules, encoding="utf-8")
    for command in (
        ["cmake", "-S", ROOT, "-B", FOLDER, "-G", "Ninja", f"-DCMAKE_PROJECT_INCLUDE={hook}",
         f"-DPython_EXECUTABLE={sys.executable}", "-DGGML_CCACHE=OFF", *options],
        ["cmake", "--build", FOLDER, "-j", "1", "--target", target],
    ):  # fmt: skip
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CCACHE_DISABLE": "1"},
        )
        if done.returncode != 0:
            sys.exit(done.stdout[-4000:] + done.stderr[-4000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="all")
    known, options = parser.parse_known_args()
    build(known.target, options)
    costs: defaultdict[str, Cost] = defaultdict(Cost)
    for line in LOG.read_text(encoding="utf-8").splitlines():
        made, seconds = json.loads(line)
        cost = costs[part_of(made)]
        cost.n_commands += 1
        cost.seconds += seconds
        if seconds > cost.slowest_s:
            cost.slowest, cost.slowest_s = Path(made).name.removesuffix(".o"), seconds
    print(f"{' '.join(options) or 'without options'}; {platform.machine()}\n")
    print("| part | commands | processor s | slowest | s |\n|---|---:|---:|---|---:|")
    for name, cost in sorted(costs.items(), key=lambda item: -item[1].seconds):
        print(f"| {name} | {cost.n_commands} | {cost.seconds:.1f} | `{cost.slowest}` | {cost.slowest_s:.1f} |")
    n_commands, seconds = sum(cost.n_commands for cost in costs.values()), sum(cost.seconds for cost in costs.values())
    print(f"| **total** | {n_commands} | {seconds:.0f} | | |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        sys.exit(launch(sys.argv[2:]))
    main()
