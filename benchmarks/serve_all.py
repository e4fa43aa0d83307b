"""Run all benchmarks of the server, one script after the other, and print one Markdown table.

    python benchmarks/serve_all.py [--quick] [NAME ...]

NAME is one of overhead, overload, prefix, chaos, load.  They take about 1, 1, 1, 5 and 3 minutes; ``--quick`` shortens
them, to test that they work.  A script that finds an error exits with the reason, and the others still run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time

SCRIPTS = ("overhead", "overload", "prefix", "chaos", "load")
QUICK = {
    "overhead": ["--rounds", "1", "--tokens", "32"],
    "overload": ["--seconds", "8"],
    "prefix": ["--rounds", "1"],
    "chaos": ["--rounds", "1"],
    "load": ["--seconds", "10"],
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*SCRIPTS, []], default=[])
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main(options: argparse.Namespace) -> int:
    load = os.getloadavg()[0]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load average {load:.1f} before; {time.strftime('%Y-%m-%d')}\n"
    )
    print("| what | figure | asked for |\n|---|---|---|", flush=True)
    failed = 0
    for name in options.names or SCRIPTS:
        script = importlib.import_module(f"serve_{name}")
        sys.argv = [f"serve_{name}.py", *(QUICK[name] if options.quick else [])]
        try:
            figures = script.measure(script.arguments())
        except SystemExit as end:
            failed = 1
            print(f"| {name} | failed: {end} | |", flush=True)
            continue
        for figure in figures:
            print(f"| {figure.what} | {figure.value} | {figure.wanted} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(arguments()))
