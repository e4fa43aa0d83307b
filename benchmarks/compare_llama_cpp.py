#!/usr/bin/env python3
"""Compare the speed of Quire, llama.cpp and optionally OpenVINO GenAI on the same files and work, in alternation.

    compare_llama_cpp.py PEER [--models qwen3-0.6b,llama-3.2-1b] [--types Q4_K_M,Q4_0,Q8_0,F16,BF16] [--rows ROW,...]
       [--rounds 5] [--threads 2] [--isa NAME] [--peer-repack both] [--openvino [PYTHON]] [--wait 120]
       [--shared ../shared] [--folder build/bench-models] [--json OUT [--add]]

PEER is the folder of llama-bench, llama-batched-bench and llama-quantize (build/bin of ``build_peer.sh``).  Missing
files are made in ``--folder`` with ``make_model.py`` of the shared data and llama-quantize.  Each run is a fresh
process with its weights read into memory, not mapped; one run measures a prompt and the answer after it.  The script
prints medians of all rounds (tokens/s), the ratio to llama.cpp (* if it meets the target), the target, and the share of
the speed that the machine's limits allow; the limits are measured in every round too.  A llama.cpp built by GCC may
fail with repacked weights: ``both`` tries both in the first round and keeps the faster.  ``--openvino`` names a Python
with openvino-genai; the default is this one.

Rows: prefill-512 prefill-4096 decode decode-4k streams-8 shared-32 package.  All of them take hours, a part minutes.
To measure in parts, ``--add`` adds the rounds to those in OUT, which must be of the same programs.  Each line has its
number of rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from comparison_cases import HEADING, PACKAGE_TARGET, TARGETS, TYPES, WORK, Case
from limits import Kind, Machine, wait_until_quiet, warning_of_load
from model_costs import Costs, Speeds, Work

HERE = Path(__file__).resolve().parent
VOCABULARIES = {"qwen3-0.6b": "ggml-vocab-qwen2.gguf", "llama-3.2-1b": "ggml-vocab-llama-bpe.gguf"}


def output_of(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def peer_speeds(folder: Path, file: Path, work: Work, threads: int, repack: bool) -> Speeds:
    """Measure llama.cpp."""
    model = ["-m", str(file), "-t", str(threads), "-lm", "none"]
    if work.n_streams == 1 and not (work.n_context and work.n_generate):
        command = [str(folder / "llama-bench"), *model, "-r", "1", "-o", "json", "--repack", str(int(repack))]
        (result,) = json.loads(output_of([*command, "-p", str(work.n_context), "-n", str(work.n_generate)]))
        return Speeds(**{"writing" if work.n_generate else "reading": float(result["avg_ts"])})
    n_tokens = work.n_context * (1 if work.shared else work.n_streams) + work.n_generate * work.n_streams
    command = [str(folder / "llama-batched-bench"), *model, "--output-format", "jsonl"]
    command += ["-npp", str(work.n_context), "-ntg", str(work.n_generate), "-npl", str(work.n_streams)]
    command += ["-c", str(n_tokens + 64 * work.n_streams), *(["-pps", "-kvu"] if work.shared else [])]
    lines = output_of([*command, *([] if repack else ["--no-repack"])]).splitlines()
    result = next(json.loads(line) for line in lines if line.startswith("{"))
    return Speeds(reading=float(result["speed_pp"]), writing=float(result["speed_tg"]))


def child_speeds(python: str, script: str, file: Path, work: Work, extra: list[str]) -> Speeds:
    """Measure a program with one of our scripts."""
    command = [python, str(HERE / script), str(file), "--prompt", str(work.n_context)]
    command += ["--generate", str(work.n_generate), "--streams", str(work.n_streams), *extra]
    result = next(json.loads(line) for line in reversed(output_of(command).splitlines()) if line.startswith("{"))
    return Speeds(result["reading"], result["writing"])


class Comparison:
    """The cases, the programs that run them, and the state of the machine meanwhile."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.machine = Machine(options.threads)
        self.loads: list[float] = []
        self.bandwidths: list[float] = []
        self.peaks: dict[Kind, list[float]] = {"int8": [], "bf16": [], "f32": []}

    def peak(self, dtype: str) -> float:
        """Return the operations per second of the best instructions for a file of this type."""
        kind: Kind = "bf16" if dtype in ("F16", "BF16") else "int8"
        if not self.machine.instruction(kind):
            kind = "f32"
        self.peaks[kind].append(self.machine.peak(kind))
        return self.peaks[kind][-1]

    def peer(self, case: Case, work: Work) -> Speeds:
        options = self.options
        if case.llama_cpp or options.peer_repack != "both":
            case.repack = case.repack if case.llama_cpp else options.peer_repack == "on"
            return peer_speeds(options.peer, case.file, work, options.threads, case.repack)
        found = {}
        for repack in (True, False):
            try:
                found[repack] = peer_speeds(options.peer, case.file, work, options.threads, repack)
            except RuntimeError as error:
                case.notes.append(f"llama.cpp {'with' if repack else 'without'} repacked weights: {error}")
        if not found:
            raise RuntimeError("neither works")
        case.repack = max(found, key=lambda repack: found[repack].of(work))
        return found[case.repack]

    def round_of(self, cases: list[Case]) -> None:
        """Run each program once with the work of the last case; the other cases are parts of it."""
        case, options = cases[-1], self.options
        work = WORK[case.row]
        self.loads.append(wait_until_quiet(options.wait))
        self.bandwidths.append(self.machine.read_bandwidth())
        peak = self.peak(case.dtype)
        extra = ["--threads", str(options.threads)]
        ours = [*extra, *(["--shared"] if work.shared else []), *(["--isa", options.isa] if options.isa else [])]
        run = partial(child_speeds, file=case.file, work=work)
        self.add(cases, "llama_cpp", lambda: self.peer(case, work))
        self.add(cases, "quire", lambda: run(sys.executable, "speed_of_quire.py", extra=ours))
        if options.openvino and not work.shared and case.row != "package":
            self.add(cases, "openvino", lambda: run(options.openvino, "speed_of_openvino.py", extra=extra))
        for each in cases:
            best, each.limit = Costs.of(each.file).best_speed(WORK[each.row], self.bandwidths[-1], peak)
            if best and each.quire and each.row != "package":  # its weights stay in the processor's caches
                each.shares.append(each.quire[-1] / best)

    @staticmethod
    def add(cases: list[Case], program: str, measure: Callable[[], Speeds]) -> None:
        """Add a figure of a program.  If it fails, that is noted, so that hours of other measurements are not lost."""
        if program in cases[-1].failed:
            return
        try:
            speeds = measure()
        except RuntimeError as error:
            cases[-1].failed.append(program)
            cases[-1].notes.append(f"{program}: {error}")
        else:
            for case in cases:
                getattr(case, program).append(speeds.of(WORK[case.row]))

    def add_earlier(self, cases: list[Case], report: dict[str, Any]) -> list[Case]:
        """Add the rounds of an earlier report to the cases, including cases that only the report has."""
        earlier = [Case.of_report(result) for result in report["results"]]
        for case in cases:
            for other in earlier:
                case.add_rounds(other)
        self.loads += report["load_of_others"]
        self.bandwidths += report["bytes_per_s"]
        for kind, speeds in self.peaks.items():
            speeds.extend(report["operations_per_s"][kind])
        keys = {case.key for case in cases}
        lines = cases + [other for other in earlier if other.key not in keys]
        return sorted(lines, key=Case.place)

    def report(self, cases: list[Case]) -> dict[str, object]:
        return {
            "machine": platform.processor() or platform.machine(),
            "threads": self.options.threads,
            "instructions": {kind: self.machine.instruction(kind) for kind in self.peaks},
            "bytes_per_s": self.bandwidths,
            "operations_per_s": self.peaks,
            "load_of_others": self.loads,
            "results": [asdict(case) | {"file": case.file.name, "ratio": case.ratio()} for case in cases],
        }

    def print_limits(self) -> None:
        print(
            f"\n{self.options.threads} threads; read bandwidth {statistics.median(self.bandwidths) / 1e9:.1f} GB/s",
            end="",
        )
        for kind, speeds in self.peaks.items():
            if speeds:
                name = self.machine.instruction(kind)
                print(f"; {name} peak {statistics.median(speeds) / 1e12:.2f} T operations/s ({kind})", end="")
        print(f".\n{warning_of_load(self.loads)}")


def make_file(options: argparse.Namespace, model: str, dtype: str) -> Path:
    """Return the model's file of this type, and make it if it is missing."""
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    file: Path = folder / f"{model}-{dtype}.gguf"
    if file.exists():
        return file
    part = file.with_suffix(".part")
    print(f"making {file}", file=sys.stderr, flush=True)
    if dtype == "F16":
        script, vocabulary = options.shared / "bench" / "make_model.py", options.shared / "vocab" / VOCABULARIES[model]
        output_of([sys.executable, str(script), model, str(part), "--vocab", str(vocabulary)])
    else:
        source = make_file(options, model, "F16")
        output_of([str(options.peer / "llama-quantize"), str(source), str(part), dtype, str(options.threads)])
    return part.rename(file)


def cases_of(options: argparse.Namespace) -> list[Case]:
    cases = []
    for model in options.models:
        for dtype in options.types:
            for row in options.rows:
                targets = TARGETS.get(row, TARGETS.get(f"{row} {model}"))
                if targets is None:
                    continue
                target = targets[TYPES.index(dtype)]
                cases.append(Case(row, model, dtype, make_file(options, model, dtype), target))
    if "package" in options.rows:
        from quire.engine.loading.loader import packaged_model

        cases.append(Case("package", "tiny-chat", "Q8_0", packaged_model(), PACKAGE_TARGET))
    return cases


def runs_of(cases: list[Case]) -> list[list[Case]]:
    """Group cases that a single run measures: a prompt and the answer after it."""
    runs: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        work = WORK[case.row]
        runs.setdefault((case.model, case.dtype, replace(work, n_generate=0) if work.n_context else work), []).append(
            case
        )
    return [sorted(run, key=lambda case: WORK[case.row].n_generate) for run in runs.values()]


def some_of(known: tuple[str, ...]) -> object:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [each for each in chosen if each not in known]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}: expected some of {', '.join(known)}")
        return chosen

    return parse


def options_of_command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    for name, known in (("models", tuple(VOCABULARIES)), ("types", TYPES), ("rows", tuple(WORK))):
        parser.add_argument(f"--{name}", type=some_of(known), default=list(known))  # type: ignore[arg-type]
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", help="instruction set for Quire, one that `quire devices` lists")
    parser.add_argument("--peer-repack", choices=["both", "on", "off"], default="both")
    parser.add_argument("--openvino", nargs="?", const=sys.executable, metavar="PYTHON")
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="wait at most SECONDS for a quiet machine"
    )
    parser.add_argument("--shared", type=Path, default=HERE.parent.parent / "shared")
    parser.add_argument("--folder", type=Path, default=HERE.parent / "build" / "bench-models")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--add", action="store_true", help="add the rounds to those in --json's file")
    options = parser.parse_args()
    if options.add and not options.json:
        parser.error("--add needs --json, to whose rounds it adds")
    if options.openvino and subprocess.run([options.openvino, "-c", "import openvino_genai"], check=False).returncode:
        parser.error(f"openvino-genai is not installed for {options.openvino}")
    return options


def write_whole(file: Path, text: str) -> None:
    """Replace a file at once, so that an interrupted write does not lose hours of figures."""
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.rename(file)


def main() -> None:
    options = options_of_command_line()
    cases = cases_of(options)
    comparison = Comparison(options)
    lines = cases
    if options.add and options.json.exists():
        lines = comparison.add_earlier(cases, json.loads(options.json.read_text(encoding="utf-8")))
    for i in range(options.rounds):
        for run in runs_of(cases):
            comparison.round_of(run)
            for case in run:
                print(f"round {i + 1}: {case.line()}", file=sys.stderr, flush=True)
            if options.json:
                write_whole(options.json, json.dumps(comparison.report(lines), indent=1) + "\n")
    print(HEADING)
    for case in lines:
        print(case.line())
    comparison.print_limits()
    for case in lines:
        for note in case.notes:
            print(f"{case.row}, {case.model} {case.dtype}: {note}")


if __name__ == "__main__":
    main()
