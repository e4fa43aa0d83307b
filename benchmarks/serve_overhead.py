"""What the listener costs: the same streams over HTTP and in process; time to ready, and memory at rest.

    python benchmarks/serve_overhead.py [--model FILE] [--streams 32] [--tokens 256] [--rounds 3]

Both run the same number of requests at a time with the same engine options, in alternation; tokens a second are those
of all streams, from the first request to the last token.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from quire import AsyncLLM, SamplingParams
from serving import ask, running

PROMPT = "Once upon a time there was a"


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


async def measure(options: argparse.Namespace) -> None:
    http: list[float] = []
    inside: list[float] = []
    for _ in range(options.rounds):
        extra = ["--model", options.model] if options.model else []
        size = ["--cache-blocks", str(options.blocks), "--threads", str(options.threads)]
        with running([*extra, *size]) as server:
            await over_http(server.port, options)
            http.append(await over_http(server.port, options))
        llm = await asyncio.to_thread(
            AsyncLLM, options.model, n_blocks=options.blocks, threads=options.threads, policy="dynamic"
        )
        async with llm:
            await in_process(llm, options)
            inside.append(await in_process(llm, options))
    a, b = statistics.median(http), statistics.median(inside)
    print(f"tokens a second of {options.streams} streams: over HTTP {a:.0f}, in process {b:.0f}, share {a / b:.2f}")


def at_rest(options: argparse.Namespace) -> None:
    ready: list[float] = []
    for _ in range(5):
        with running(["--model", options.model] if options.model else []) as server:
            ready.append(server.ready_s)
            time.sleep(0.5)
            listener, worker = server.memory_bytes("VmRSS")
            own = server.memory_bytes("RssAnon")
    print(f"ready after {statistics.median(ready):.2f} s (median of {len(ready)})")
    print(f"resident at rest: listener {listener / 1e6:.1f} MB, worker with its model {worker / 1e6:.1f} MB")
    print(f"anonymous: listener {own[0] / 1e6:.1f} MB, worker {own[1] / 1e6:.1f} MB")


if __name__ == "__main__":
    given = arguments()
    at_rest(given)
    asyncio.run(measure(given))
