"""Measure the host's time in a step on a device, by phase, in us per step, from perf's samples of the decoder's thread.

    python benchmarks/host_part.py [--streams N] [--tokens N] [--rounds N]

The device is the tests' counting device, which runs each graph once and then returns the same results.  The script
needs Linux's perf, a C++ compiler, and native modules with symbols (ci/build).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))
RATE = 20000  # samples per second
PHASES = {  # patterns of the sampled function; the first match counts
    "plan of the scheduler": r"Scheduler::(plan|run_running|chunk|add_item|make_room|admit)"
    r"|SequenceCache::(prepare|has_)|BlockTable::(reserve|ensure|blocks_needed)|PolicyRanks|Budget",
    "arrays of the batch": r"fill_batch|StepRunner::run|wants_of|n_likeliest",
    "form of attention": r"AttentionPlanner|introsort|insertion_sort|adjust_heap",
    "masks and other inputs": r"StepInputs|fill_|InputMemory|GraphCache|StockGraphs",
    "logits to their rows": r"LogitStrips",
    "drawing": r"Sampler|Candidates|find_|draw|next_token|take_rows|ActiveRequest|Utf8|StopMatcher|ending|sample",
    "commit, events, drafts": r"Scheduler::|HashChain|Blake2b|SequenceCache|BlockTable|EventQueue|stats"
    r"|Decoder|Speculator",
    "making and running graphs": r"ggml|quantize_row|expf|sincosf|Lowering",
    "copies": r"memmove|memcpy",
}


def work(streams: int, tokens: int, rounds: int) -> None:
    """Do the work, in the process that perf watches."""
    from counting_device import counting_device
    from quire import LLM, SamplingParams
    from quire.engine.loading.loader import packaged_model

    counting_device()
    params = [SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)] * streams
    with LLM(packaged_model(), device="Counting0", threads=1, max_sequences=streams, n_ctx=2048) as llm:
        for _ in range(rounds):
            llm.generate([f"Once upon a time there was a fox number {i} who" for i in range(streams)], params)
        print(llm.stats().n_steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=900)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return work(args.streams, args.tokens, args.rounds)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples"
        command = ["perf", "record", "-q", "-F", str(RATE), "-e", "cpu-clock:u", "-o", str(data)]
        command += [sys.executable, __file__, "--work", "--streams", str(args.streams)]
        command += ["--tokens", str(args.tokens), "--rounds", str(args.rounds)]
        environment = os.environ | {"COUNTING_IDLE": "1"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        script = ["perf", "script", "-i", str(data), "-F", "tid,ip,sym"]
        samples = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    n_steps = int(done.stdout.split()[-1])
    words = (line.split(maxsplit=2) for line in samples)
    places = [(int(tid), place) for tid, _, place in (each for each in words if len(each) == 3)]
    decoder = Counter(tid for tid, place in places if "DecoderLoop" in place).most_common(1)[0][0]
    found: Counter[str] = Counter()
    for tid, place in places:
        fitting = [name for name, what in PHASES.items() if re.search(what, place)]
        found[(fitting or ["memory, clocks, others"])[0]] += tid == decoder
    for name, n in found.items():
        print(f"{n * 1e6 / RATE / n_steps:8.1f} us {name}")


if __name__ == "__main__":
    main()
