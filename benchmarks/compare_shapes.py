"""Compare Quire and llama.cpp on files of make_shape.py (or others): prompts, answers, 8 streams, in alternation.

    python benchmarks/compare_shapes.py PEER FILE ... [--rows prompt-512,answer,streams-8] [--rounds 3] [--threads 2]

PEER is the folder of llama-bench and llama-batched-bench (build/bin of ``build_peer.sh``).  The script prints a line
per file and row: medians of all rounds in tokens per second, the ratio, and the operations that Quire leaves to ggml.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path

from compare_llama_cpp import child_speeds, peer_speeds
from model_costs import Work
from quire import GGUFReader
from quire._native.core import find_device
from quire._native.graph import Executor
from quire.models import load_model

ROWS = {
    "prompt-512": Work(512, 0),
    "prompt-4096": Work(4096, 0),
    "answer": Work(0, 32),
    "streams-8": Work(256, 16, n_streams=8),
}


def stock_operations(file: Path) -> str:
    """Return the operations that ggml's operators compute in Quire's program."""
    model = load_model(GGUFReader(file))
    executor = Executor(model.trace(1024), find_device("cpu"), n_blocks=2, n_states=2, threads=1, repack="no")
    return ", ".join(sorted(set(executor.stock_operations)))


def measured(options: argparse.Namespace, file: Path, work: Work) -> tuple[list[float], list[float]]:
    ours, theirs = [], []
    peer = partial(peer_speeds, options.peer, file, work, options.threads)
    for _ in range(options.rounds):
        try:
            theirs.append(peer(repack=True).of(work))
        except RuntimeError as error:
            print(f"{file.name}: {str(error)[-300:]}", file=sys.stderr, flush=True)
        found = child_speeds(sys.executable, "speed_of_quire.py", file, work, ["--threads", str(options.threads)])
        ours.append(found.of(work))
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--rows", default="prompt-512,answer,streams-8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print("| file | row | Quire | llama.cpp | ratio | by ggml |\n|---|---|---|---|---|---|", flush=True)
    for file in options.files:
        stock = stock_operations(file)
        for row in options.rows.split(","):
            ours, theirs = measured(options, file, ROWS[row])
            mine, other = statistics.median(ours), statistics.median(theirs) if theirs else 0.0
            ratio = f"{mine / other:.2f}" if other else ""
            print(f"| {file.stem} | {row} | {mine:.1f} | {other:.1f} | {ratio} | {stock} |", flush=True)


if __name__ == "__main__":
    main()
