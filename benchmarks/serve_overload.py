"""Send five times as many requests as the server can answer; measure how soon the rest is refused and the throughput.

    python benchmarks/serve_overload.py [--seconds 20] [--factor 5]

First the peak rate is measured, with as many clients as the server runs at a time.  Then requests are sent at
``factor`` times that rate, whether or not earlier ones were answered.  Refusals are timed twice: by the process that
makes the load, whose own event loop also waits for a core, and by a probe, a process that sends one request at a time
over a blocking socket.  The server, the load and the probe share the machine.  Answers are long, since with short
answers of a small model the clients of hundreds of requests per second would take the cores from the server.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

from serving import Figure, ask, ask_blocking, loop_run, running, shown

N_CLIENTS = 40
PROBE_EVERY_S = 0.01
FIRST_S = 3.0  # time for the batch and the queue to fill


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--factor", type=float, default=5.0)
    parser.add_argument(
        "--tokens", type=int, default=512, help="mean tokens of an answer; actual lengths are 0.5 to 1.5 times that"
    )
    parser.add_argument("--server", nargs="*", default=[], help="more options of the server")
    return parser.parse_args()


def n_tokens(i: int, options: argparse.Namespace) -> int:
    """Return different lengths, since answers of one length would all end together and leave the batch empty."""
    return int(options.tokens * random.Random(i).uniform(0.5, 1.5))


def body(i: int, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "prompt": f"Once upon a time there was number {i}", "max_tokens": n_tokens(i, options), "ignore_eos": True,
        "temperature": 0,
    }  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A request: its tokens, its result, its duration, and when it ended."""

    n_tokens: int
    status: int
    total_s: float
    ended_s: float


async def peak(port: int, options: argparse.Namespace) -> list[Asked]:
    """Run exactly as many requests as fill the batch."""
    started = time.monotonic()
    numbers = count()
    asked = []

    async def client() -> None:
        while time.monotonic() < started + options.seconds:
            i = next(numbers)
            answer = await ask(port, "/v1/completions", body(i, options))
            asked.append(Asked(n_tokens(i, options), answer.status, answer.total_s, time.monotonic() - started))

    await asyncio.gather(*(client() for _ in range(N_CLIENTS)))
    return asked


async def overload(port: int, options: argparse.Namespace, per_second: float) -> list[Asked]:
    """Send requests at a fixed rate, whatever their results."""
    started = time.monotonic()
    asked = []

    async def one(i: int) -> None:
        answer = await ask(port, "/v1/completions", body(i, options))
        asked.append(Asked(n_tokens(i, options), answer.status, answer.total_s, time.monotonic() - started))

    tasks = []
    while (now := time.monotonic() - started) < options.seconds:
        while len(tasks) < now * per_second:
            tasks.append(asyncio.ensure_future(one(len(tasks))))
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    return asked


def per_second(asked: list[Asked], options: argparse.Namespace) -> tuple[float, float]:
    """Return the answers and their tokens per second, between the first answers and the end."""
    within = [one for one in asked if one.status == 200 and FIRST_S < one.ended_s < options.seconds]
    return tuple(
        sum(values) / (options.seconds - FIRST_S) for values in ([1] * len(within), [one.n_tokens for one in within])
    )


def find_peak(port: int, options: argparse.Namespace) -> list[Asked]:
    return loop_run(peak(port, options))


def make_load(port: int, options: argparse.Namespace, rate: float) -> list[Asked]:
    return loop_run(overload(port, options, rate))


def probe(port: int, options: argparse.Namespace) -> list[tuple[int, float]]:
    """Send the same requests one at a time once the queue is full, and disconnect if a request is not refused."""
    time.sleep(FIRST_S)
    found = []
    until = time.monotonic() + options.seconds - FIRST_S - 1.0
    while time.monotonic() < until:
        found.append(ask_blocking(port, "/v1/completions", {**body(0, options), "stream": True}))
        time.sleep(PROBE_EVERY_S)
    return found


def measure(options: argparse.Namespace) -> list[Figure]:
    size = ["--max-queue", "32", "--cache-blocks", "1200"]
    with running([*size, *options.server]) as server, ProcessPoolExecutor(2) as other:
        answers_a_second, peak_tokens = per_second(other.submit(find_peak, server.port, options).result(), options)
        before = sum(server.memory_bytes("RssAnon"))
        loading = other.submit(make_load, server.port, options, answers_a_second * options.factor)
        probing = other.submit(probe, server.port, options)
        asked, probed = loading.result(), probing.result()
        grown = sum(server.memory_bytes("RssAnon")) - before
    _, tokens = per_second(asked, options)
    refused = [one.total_s for one in asked if one.status == 429]
    seen = [s for status, s in probed if status == 429]
    n_odd = sum(one.status not in (200, 429) for one in asked)
    what = f"{options.factor:g} times too many requests ({answers_a_second * options.factor:.0f} per second)"
    return [
        Figure(f"{what}: tokens per second of answers, and at the peak",
               f"{tokens:.0f}, {peak_tokens:.0f}: {tokens / peak_tokens:.0%}", "at least 90 %"),
        Figure(f"refused, timed by a probe ({len(seen)} of {len(probed)}): p50, p99, most",
               shown(seen, "ms", most=True), "50 ms"),
        Figure(f"refused, timed by the load ({len(refused)} of {len(asked)}): p50, p99", shown(refused, "ms")),
        Figure("neither answered nor refused; growth of anonymous memory", f"{n_odd}; {grown / 1e6:+.1f} MB", "0"),
    ]  # fmt: skip


if __name__ == "__main__":
    for figure in measure(arguments()):
        print(figure)
