"""Measure the listener's cost: the same streams over HTTP and in process, the time until ready, and memory when idle.

    python benchmarks/serve_overhead.py [--model FILE] [--streams 32] [--tokens 256] [--rounds 3]

Both run the same number of requests at a time with the same engine options, in alternation.  Tokens per second are
summed over all streams, from the first request to the last token.  "Ready" is the time from the command's start until
it prints its address.  Memory is the proportional set size (PSS) of the processes, which counts shared pages once.  It
is also measured for the listener alone (with a folder of models, none of them open), and for the worker before it opens
a model.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from quire import AsyncLLM, SamplingParams
from serving import Figure, ask, loop_run, running

PROMPT = "Once upon a time there was a"
# The worker's imports, without a model.
BARE_WORKER = """
import gc, sys
import jinja2, quire.server.worker.process
gc.collect()
print(next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")))
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=1024)
    return parser.parse_args()


async def over_http(port: int, options: argparse.Namespace) -> float:
    bodies: list[dict[str, Any]] = [
        {
            "prompt": f"{PROMPT} {i}", "max_tokens": options.tokens, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "temperature": 0,
        }
        for i in range(options.streams)
    ]  # fmt: skip
    started = time.monotonic()
    answers = await asyncio.gather(*(ask(port, "/v1/completions", body) for body in bodies))
    elapsed_s = time.monotonic() - started
    n_tokens = sum(answer.usage["completion_tokens"] for answer in answers)
    assert n_tokens == options.streams * options.tokens
    return n_tokens / elapsed_s


async def in_process(llm: AsyncLLM, options: argparse.Namespace) -> float:
    params = SamplingParams(max_tokens=options.tokens, ignore_eos=True, temperature=0.0)

    async def one(i: int) -> int:
        return sum([len(delta.token_ids) async for delta in llm.stream(f"{PROMPT} {i}", params)])

    started = time.monotonic()
    n_tokens = sum(await asyncio.gather(*(one(i) for i in range(options.streams))))
    return n_tokens / (time.monotonic() - started)


async def inside(options: argparse.Namespace) -> float:
    llm = await asyncio.to_thread(
        AsyncLLM, options.model, n_blocks=options.blocks, threads=options.threads, policy="dynamic"
    )
    async with llm:
        await in_process(llm, options)
        return await in_process(llm, options)


def throughput(options: argparse.Namespace) -> Figure:
    pairs: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        extra = ["--model", options.model] if options.model else []
        size = ["--cache-blocks", str(options.blocks), "--threads", str(options.threads)]
        with running([*extra, *size]) as server:
            loop_run(over_http(server.port, options))
            http = loop_run(over_http(server.port, options))
        pairs.append((http, loop_run(inside(options))))
    a, b = (statistics.median(values) for values in zip(*pairs, strict=True))
    share = statistics.median(http / within for http, within in pairs)
    what = f"{options.streams} streams of {options.tokens} tokens, over HTTP and in process: tokens per second, share"
    return Figure(what, f"{a:.0f}, {b:.0f}: {share:.0%} (medians of {options.rounds} pairs)", "at least 90 %")


def at_rest(options: argparse.Namespace) -> list[Figure]:
    ready: list[float] = []
    for _ in range(7):
        with running(["--model", options.model] if options.model else []) as server:
            ready.append(server.ready_s)
            time.sleep(0.7)
            listener, worker = (n / 1e6 for n in server.memory_bytes("Pss"))
    with tempfile.TemporaryDirectory() as folder, running(["--models-dir", folder]) as server:
        time.sleep(0.3)
        (alone,) = (n / 1e6 for n in server.memory_bytes("Pss"))
    done = subprocess.run([sys.executable, "-c", BARE_WORKER], capture_output=True, text=True, check=True)
    bare = int(done.stdout) * 1024 / 1e6
    return [
        Figure("from the command to ready: median, most", f"{statistics.median(ready):.2f}, {max(ready):.2f} s",
               "0.8 s"),
        Figure("memory (PSS) of listener and worker, without the model", f"{listener:.0f} and {bare:.0f} MB",
               "70 MB"),
        Figure("with the model, weights and cache included", f"{listener:.0f} and {worker:.0f} MB"),
        Figure("the server without a model: the listener alone", f"{alone:.0f} MB"),
    ]  # fmt: skip


def measure(options: argparse.Namespace) -> list[Figure]:
    return [*at_rest(options), throughput(options)]


if __name__ == "__main__":
    for figure in measure(arguments()):
        print(figure)
