"""Five times as many requests as the server can answer: how soon is the rest refused, and what is still done?

    python benchmarks/serve_overload.py [--seconds 20] [--factor 5]

Capacity is measured first, by as many clients as run at a time.  Then requests come at ``factor`` times that rate,
whether or not earlier ones were answered.  Refusals are timed twice: by the process that makes the load, whose own event
loop waits for a processor too, and by a probe, a process that asks for one thing at a time over a blocking socket.
The server, the load and the probe share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from serving import Answer, Figure, ask, ask_blocking, loop_run, quantile, running, shown

N_CLIENTS = 40
PROBE_EVERY_S = 0.02


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--factor", type=float, default=5.0)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--server", nargs="*", default=[], help="further options of the server")
    return parser.parse_args()


def body(i: int, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "prompt": f"Once upon a time there was number {i}", "max_tokens": options.tokens, "ignore_eos": True,
        "temperature": 0,
    }  # fmt: skip


async def peak(port: int, options: argparse.Namespace) -> float:
    """Answers a second with the batch full."""
    done = 0
    until = time.monotonic() + options.seconds / 2

    async def client(i: int) -> None:
        nonlocal done
        while time.monotonic() < until:
            answer = await ask(port, "/v1/completions", body(i, options))
            done += answer.status == 200

    started = time.monotonic()
    await asyncio.gather(*(client(i) for i in range(N_CLIENTS)))
    return done / (time.monotonic() - started)


async def overload(port: int, options: argparse.Namespace, per_second: float) -> tuple[list[tuple[int, float]], float]:
    """Status and seconds of each request, and seconds until the last was answered."""
    answers: list[Answer] = []

    async def one(i: int) -> None:
        answers.append(await ask(port, "/v1/completions", body(i, options)))

    started = time.monotonic()
    tasks = []
    n = 0
    while (now := time.monotonic() - started) < options.seconds:
        while n < now * per_second:
            tasks.append(asyncio.ensure_future(one(n)))
            n += 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    return [(answer.status, answer.total_s) for answer in answers], time.monotonic() - started


def make_load(port: int, options: argparse.Namespace, per_second: float) -> tuple[list[tuple[int, float]], float]:
    return loop_run(overload(port, options, per_second))


def find_peak(port: int, options: argparse.Namespace) -> float:
    return loop_run(peak(port, options))


def probe(port: int, options: argparse.Namespace) -> list[tuple[int, float]]:
    """The same, one request at a time, after the queue had time to fill."""
    time.sleep(2.0)
    found = []
    until = time.monotonic() + options.seconds - 4.0
    while time.monotonic() < until:
        found.append(ask_blocking(port, "/v1/completions", body(0, options)))
        time.sleep(PROBE_EVERY_S)
    return found


def measure(options: argparse.Namespace) -> list[Figure]:
    with running(["--max-queue", "32", "--cache-blocks", "512", *options.server]) as server, ProcessPoolExecutor(2) as other:
        other.submit(find_peak, server.port, options).result()
        capacity = other.submit(find_peak, server.port, options).result()
        before = sum(server.memory_bytes("RssAnon"))
        loading = other.submit(make_load, server.port, options, capacity * options.factor)
        probing = other.submit(probe, server.port, options)
        answers, elapsed_s = loading.result()
        probed = probing.result()
        grown = sum(server.memory_bytes("RssAnon")) - before
    done = [s for status, s in answers if status == 200]
    refused = [s for status, s in answers if status == 429]
    seen = [s for status, s in probed if status == 429]
    n_odd = len(answers) - len(done) - len(refused)
    what = f"{options.factor:g} times too many requests"
    return [
        Figure(f"{what}: answers of {options.tokens} tokens a second, of what can be done",
               f"{len(done) / elapsed_s:.1f} of {capacity:.1f}: {len(done) / elapsed_s / capacity:.0%}", "at least 90 %"),
        Figure(f"refused, timed by a probe ({len(seen)} of {len(probed)}): p50, p99, most", shown(seen, "ms", most=True), "50 ms"),
        Figure(f"refused, timed by the load ({len(refused)} of {len(answers)}): p50, p99", shown(refused, "ms")),
        Figure("neither answered nor refused; anonymous memory", f"{n_odd}; {grown / 1e6:+.1f} MB", "0"),
    ]  # fmt: skip


if __name__ == "__main__":
    for figure in measure(arguments()):
        print(figure)
