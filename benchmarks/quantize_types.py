#!/usr/bin/env python3
"""Compare each type of `quire quantize` and llama-quantize on one model: bytes, CPU time, memory, and perplexity.

    quantize_types.py PROGRAMS MODEL.gguf --imatrix FILE [--text FILE] [--types Q4_0,...] [--context 512]
        [--threads 1] [--json OUT]

PROGRAMS is the folder of llama.cpp's programs, MODEL a file of F32, F16 or BF16.  Both quantize it with the same
importance matrix, one after the other.  Time is user-mode time, which other processes do not lengthen.  Quire's
excludes the start and imports of Python (0.7 s for any model); its memory includes them.  With --text, llama-perplexity
and `quire perplexity` measure the resulting file, both with exact caches, and Quire with its own kernels and with
ggml's operators.  The exit code is 1 if bytes differ, or if perplexity differs by more than 0.1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from quire.quantization import MIXES

LIMIT = 0.001
ONE = """
import os, sys
from quire.cli.main import main
import quire.quantization, quire.cli.quantize
before = os.times()
code = main(sys.argv[1:])
after = os.times()
print(f"user {after.user - before.user}")
sys.exit(code)
"""


@dataclass
class Done:
    user_s: float
    peak_bytes: int
    output: str


def run(command: list[str]) -> Done:
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{text[-3000:]}")
    return Done(used.ru_utime, used.ru_maxrss * 1024, text)


def number(output: str, pattern: str) -> float:
    return float(re.findall(pattern, output)[-1])


def perplexities(programs: Path, file: Path, options: argparse.Namespace) -> tuple[float, float, float]:
    """Return the perplexity of llama.cpp, of Quire's own kernels, and of Quire with ggml's operators."""
    common = ["-m", str(file), "-f", str(options.text), "-c", str(options.context), "-t", str(options.threads)]
    theirs = run([str(programs / "llama-perplexity"), *common, "-fa", "off", "-ctk", "f32", "-ctv", "f32"])
    ours = [sys.executable, "-m", "quire", "perplexity", *common, "--kv-dtype", "f32", "--json", "--kernels"]
    own, stock = (number(run([*ours, kernels]).output, r'"value": ([\d.]+)') for kernels in ("cpu", "stock"))
    return number(theirs.output, r"Final estimate: PPL = ([\d.]+)"), own, stock


def measured(name: str, folder: Path, options: argparse.Namespace) -> dict[str, float | str | bool]:
    theirs, ours = folder / "theirs.gguf", folder / "ours.gguf"
    importance = ["--imatrix", str(options.imatrix)]
    peer = run(
        [
            str(options.programs / "llama-quantize"), *importance, str(options.model), str(theirs), name,
            str(options.threads),
        ]
    )  # fmt: skip
    own = run(
        [
            sys.executable, "-c", ONE, "quantize", *importance, "-t", str(options.threads), str(options.model),
            str(ours), name,
        ]
    )  # fmt: skip
    row: dict[str, float | str | bool] = {
        "type": name,
        "bytes": ours.stat().st_size,
        "is_equal": ours.read_bytes() == theirs.read_bytes(),
        "peer_user_s": peer.user_s,
        "user_s": number(own.output, r"user ([\d.]+)"),
        "peer_peak_bytes": peer.peak_bytes,
        "peak_bytes": own.peak_bytes,
    }
    if options.text:
        row["peer_perplexity"], row["perplexity"], row["stock_perplexity"] = perplexities(
            options.programs, ours, options
        )
    ours.unlink()
    theirs.unlink()
    return row


def line_of(row: dict[str, float | str | bool]) -> str:
    """Return a row of a Markdown table."""
    cells = [
        str(row["type"]), f"{float(row['bytes']) / 1e6:.1f}", "yes" if row["is_equal"] else "NO",
        f"{float(row['peer_user_s']):.2f}", f"{float(row['user_s']):.2f}",
        f"{float(row['peer_user_s']) / max(float(row['user_s']), 0.01):.2f}",
        f"{float(row['peer_peak_bytes']) / 2**20:.0f}", f"{float(row['peak_bytes']) / 2**20:.0f}",
    ]  # fmt: skip
    if "perplexity" in row:
        theirs = float(row["peer_perplexity"])
        cells.append(f"{theirs:.4f}")
        for name in ("perplexity", "stock_perplexity"):
            cells += [f"{float(row[name]):.4f}", f"{(float(row[name]) / theirs - 1) * 100:+.3f} %"]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--imatrix", type=Path, required=True)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--types", default=",".join(MIXES))
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    heads = ["type", "MB", "equal", "peer, s", "Quire, s", "times as fast", "peer, MiB", "Quire, MiB"]
    heads += ["peer's perplexity", "Quire's", "apart", "by ggml's operators", "apart"] if options.text else []
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    rows, begin = [], time.time()
    with tempfile.TemporaryDirectory(prefix="quire-types-") as folder:
        for name in options.types.split(","):
            rows.append(measured(name, Path(folder), options))
            print(line_of(rows[-1]), flush=True)
    print(f"\n{len(rows)} types, {time.time() - begin:.0f} s", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    apart = [row for row in rows if "perplexity" in row
             and abs(float(row["perplexity"]) / float(row["peer_perplexity"]) - 1) > LIMIT]  # fmt: skip
    return int(bool(apart) or not all(row["is_equal"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
