#!/usr/bin/env python3
"""Measure what was written without a card, in one run of a few minutes on a machine with an NVIDIA GPU.

    gpu_experiment.py OUT [--device CUDA0] [--library FILE] [--experts FILE] [--shapes qwen3-8b] [--minutes 9]
    gpu_experiment.py OUT --dry-run                         # a tiny shape on the CPU, to test the script

In this order, so that the most important results come first if time runs out:

1. ``tune_kernels.py``: products of 2 to 64 rows against NumPy, then timed; the best plans go to OUT/kernels.txt.
   ``tune_experts.py``: layers of experts likewise.
2. ``quire devices --check`` with these kernels.
3. ``quire bench`` with ggml's products, with OUT/kernels.txt, with attention of prompts by block tables, and with
   cuBLAS for prompts from 128 and from 512 rows; with BF16 weights, also with single rows by Quire's kernels.
4. ``torch_baseline.py`` with the same shapes and tests, if PyTorch is there.

OUT/report.md is rewritten after each step.  ``--library`` and ``--experts`` are what ``tune_kernels.py --build`` and
``tune_experts.py --build`` made elsewhere, for machines without nvcc.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from on_gpu import DRY, SHAPES, TINY, Machine, Report, Sizes, make_file

HERE = Path(__file__).resolve().parent
SIZES = Sizes((512,), (1, 8, 32), 64, 2)
SETTINGS: dict[str, dict[str, dict[str, str]]] = {  # by type of the weights; "TABLE" stands for the table's path
    "Q4_K_M": {
        "ggml's products": {},
        "kernels of 2 to 64 rows": {"QUIRE_BATCH_PRODUCTS": "TABLE"},
        "attention of prompts": {"QUIRE_PROMPT_ATTENTION": "1"},
        "cuBLAS from 128 rows": {"QUIRE_CUBLAS_ROWS": "128"},
        "cuBLAS from 512 rows": {"QUIRE_CUBLAS_ROWS": "512"},
    },
    "BF16": {  # only the smallest shape
        "ggml's products": {},
        "single rows": {"QUIRE_ROW_PRODUCTS": "1"},
        "kernels of 2 to 64 rows": {"QUIRE_BATCH_PRODUCTS": "TABLE", "QUIRE_ROW_PRODUCTS": "1"},
    },
}


@contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Results(Report):
    """A report with one column per program."""

    def write(self) -> None:
        (self.out / "report.json").write_text(json.dumps({"steps": self.steps, "rows": self.rows}, indent=1))
        programs = list(dict.fromkeys(row["program"] for row in self.rows))
        found: dict[tuple[str, str, int], dict[str, float]] = {}
        for row in self.rows:
            found.setdefault((row["file"], row["test"], row["streams"]), {})[row["program"]] = row["tokens_per_s"]
        lines = [f"| file | test | streams | {' | '.join(programs)} |", "|---" * (3 + len(programs)) + "|"]
        for (file, test, streams), by in found.items():
            cells = [f"{by[program]:.0f}" if program in by else "-" for program in programs]
            lines.append(f"| {file} | {test} | {streams} | {' | '.join(cells)} |")
        lines += ["", "| step | s | error |", "|---|---|---|"]
        lines += [f"| {step['step']} | {step['seconds']} | {step['error'].replace('|', '/')} |" for step in self.steps]
        (self.out / "report.md").write_text("\n".join(lines) + "\n")


def bench(report: Results, machine: Machine, file: Path, name: str) -> None:
    sizes = machine.sizes
    command = [sys.executable, "-m", "quire", "bench", "-m", str(file), "--device", machine.device, "--json"]
    command += ["-p", str(sizes.prompts[0]), "-n", str(sizes.answer), "-d", str(sizes.prompts[0]), "--kv-dtype", "f16"]
    command += ["-b", ",".join(map(str, sizes.streams)), "-r", str(sizes.repetitions)]
    for row in json.loads(report.run(f"{file.stem}-{name}", command, machine.timeout_s))["results"]:
        report.add(file, name, row["test"], row["batch"], row["tokens_per_s"])


def torch_rows(report: Results, machine: Machine, shape: str) -> None:
    found = report.out / f"torch-{shape}.json"
    command = [sys.executable, str(HERE / "torch_baseline.py"), "--shapes", shape, "--json", str(found)]
    command += ["--streams", ",".join(map(str, machine.sizes.streams)), "--answer", str(machine.sizes.answer)]
    command += ["--prompts", str(machine.sizes.prompts[0]), "--rounds", str(machine.sizes.repetitions)]
    report.run(f"torch-{shape}", [*command, "--tiny"] if machine.device == "cpu" else command, machine.timeout_s)
    for row in json.loads(found.read_text()):
        report.add(Path(f"{row['shape']}-BF16"), "torch", row["test"], row["streams"], row["tokens_per_s"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--library", type=Path, help="the kernels, built before")
    parser.add_argument("--experts", type=Path, help="the kernels for experts, built before")
    parser.add_argument("--shapes", default=",".join(shape.name for shape in reversed(SHAPES)))
    parser.add_argument("--types", default="q4_k,q6_k,q8_0,bf16", help="types of matrices to tune for")
    parser.add_argument("--minutes", type=float, default=9, help="start no other step after this time")
    parser.add_argument("--dry-run", action="store_true", help="a tiny shape on the CPU, to test the script")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    is_dry, table = options.dry_run, options.out / "kernels.txt"
    machine = Machine(Path(), "cpu" if is_dry else options.device, DRY if is_dry else SIZES, 300)
    shapes = TINY if is_dry else [shape for shape in SHAPES if shape.name in options.shapes.split(",")]
    report, end = Results(options.out), time.monotonic() + options.minutes * 60
    library = ["--library", str(options.library)] if options.library else []

    def step(name: str, run: Callable[[], Any]) -> None:
        if time.monotonic() < end:
            report.step(name, run)

    tune = [sys.executable, str(HERE / "tune_kernels.py"), str(table), *library, "--types", options.types]
    tune += ["--emulate"] if is_dry else ["--seconds", "120"]
    step("tune", lambda: report.run("tune", tune, machine.timeout_s))
    of_experts = [sys.executable, str(HERE / "tune_experts.py"), str(table)]
    of_experts += ["--library", str(options.experts)] if options.experts else []
    of_experts += ["--emulate", "--types", "q4_k:q4_k"] if is_dry else ["--seconds", "40"]
    step("tune experts", lambda: report.run("tune-experts", of_experts, machine.timeout_s))
    if not is_dry:
        every = dict.fromkeys(("QUIRE_BATCH_PRODUCTS", "QUIRE_ROW_PRODUCTS", "QUIRE_PROMPT_ATTENTION"), "1")
        with environment(every):
            check = [sys.executable, "-m", "quire", "devices", "--check", "--device", machine.device]
            step("check", lambda: report.run("check", check, machine.timeout_s))
    for mix, settings in SETTINGS.items():
        for shape in shapes if mix == "Q4_K_M" else [min(shapes, key=lambda shape: shape.dim)]:
            file = options.out / f"{shape.name}-{mix}.gguf"
            step(f"make {file.name}", lambda s=shape, m=mix, f=file: make_file(s, m, f))  # type: ignore[misc]
            for name, wanted in settings.items():
                if "TABLE" in wanted.values() and not table.is_file():
                    continue
                with environment({key: str(table) if value == "TABLE" else value for key, value in wanted.items()}):
                    step(f"{file.stem}, {name}", lambda f=file, n=name: bench(report, machine, f, n))  # type: ignore[misc]
    for shape in shapes if importlib.util.find_spec("torch") else ():
        step(f"torch {shape.name}", lambda s=shape.name: torch_rows(report, machine, s))  # type: ignore[misc]
    report.write()
    print((options.out / "report.md").read_text())
    if any(each["error"] for each in report.steps):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
