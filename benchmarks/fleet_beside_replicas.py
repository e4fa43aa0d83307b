"""The computed fleet beside real ones: 1, 2 and 4 servers of the package's model behind ``quire route``.

    python benchmarks/fleet_beside_replicas.py [--sizes 1,2,4] [--seconds 40] [--seeds 1,2] [--json FILE]

1. Costs of a step are fitted to speeds of one server, which are measured over HTTP: answers of 1 to 16 requests at a
   time, prompts of growing length, answers after short and long prompts.
2. How much slower a server is beside others that compute is measured with 2 and 4 of them: they share this machine.
3. The same sessions are computed and sent to real servers.  ``--json`` puts all of it into a file of results under
   ``replicas``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fleet.costs import Costs
from fleet.replica import Call
from fleet.simulation import Fleet, Report, arrivals, figures, session_of
from fleet.workloads import Session, Workload

RUNNING, STEP_TOKENS, BLOCKS = 16, 512, 1024
SERVE = ("serve", "--port", "0", "--threads", "1", "-c", "2048", "-np", str(RUNNING), "-b", str(STEP_TOKENS),
         "--cache-blocks", str(BLOCKS), "--no-access-log")  # fmt: skip
LOWEST, N_IDS = 300, 3700  # ids of the model's ordinary tokens
WARM_S = 5.0
WORK = Workload(
    systems=8, system_tokens=192, first_tokens=320, added_tokens=96, answer_tokens=48, spread=0.4, calls=4.0,
    pause_s=1.0, long_pause_s=1.0, long_share=0.0, first_token_s=0.1, token_s=0.005,
)  # fmt: skip
BUSY = 0.35  # share of this machine's cores that the computed replicas use


@contextlib.contextmanager
def started(*command: str) -> Iterator[str]:
    """Run a command of Quire until the block ends; the URL is in its output."""
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, "-m", "quire", *command], stderr=log)
        try:
            while not (found := re.search(r" on (http:\S+)", Path(log.name).read_text())):
                assert process.poll() is None, Path(log.name).read_text()
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()
            process.wait()


@dataclasses.dataclass
class Timed:
    """An answer: when its first and last tokens arrived, and the prompt tokens that were cached."""

    began_s: float
    first_s: float
    last_s: float
    n_cached: int


async def ask(client: httpx.AsyncClient, url: str, prompt: Sequence[int], n: int) -> Timed:
    """Generate ``n`` tokens."""
    body = {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "temperature": 0, "stream": True}
    began_s, times, usage = time.perf_counter(), [], None
    body["stream_options"] = {"include_usage": True}
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                if event["choices"]:
                    times.append(time.perf_counter())
    assert usage is not None, "the stream has no usage"
    return Timed(began_s, times[0], times[-1], usage["prompt_tokens_details"]["cached_tokens"])


_fresh = itertools.count()


def fresh(n: int) -> list[int]:
    """Return a prompt that no server knows."""
    number = next(_fresh)
    return [LOWEST + (number * 7919 + i * (2 * number + 1)) % N_IDS for i in range(n)]


async def token_s(client: httpx.AsyncClient, urls: Sequence[str], n: int, n_prompt: int, n_answer: int = 128) -> float:
    """Return the seconds per token of ``n`` answers at the same time on each server."""
    prompts = [(url, fresh(n_prompt)) for url in urls for _ in range(n)]
    for url, prompt in prompts:  # into the cache
        await ask(client, url, prompt, 1)
    found = await asyncio.gather(*(ask(client, url, prompt, n_answer) for url, prompt in prompts))
    return statistics.median((each.last_s - each.first_s) / (n_answer - 1) for each in found)


async def best(n: int, measure: Any) -> float:
    """Return the median of ``n`` measurements."""
    return statistics.median([await measure() for _ in range(n)])


async def fit(client: httpx.AsyncClient, urls: Sequence[str]) -> tuple[Costs, list[float]]:
    """Return the costs of a server, and how many times longer a token takes while 1, 2, ... servers compute."""
    one, rows, context = urls[:1], [], 64
    short_s = await best(5, lambda: token_s(client, one, 1, context))
    long_s = await best(5, lambda: token_s(client, one, 1, 1536))
    context_s = max(0.0, (long_s - short_s) / (1536 - context))
    for n in (1, 4, 16):
        each_s = await best(3, lambda n=n: token_s(client, one, n, context))
        rows.append((n, each_s - n * (context + 64) * context_s))
    lengths = [64, 256, 512, 1024, 1536] * 3
    firsts = []
    for n in lengths:
        timed = await ask(client, one[0], fresh(n), 1)
        firsts.append(timed.first_s - timed.began_s)
    matrix = np.array([(1.0, n, n * n / 2) for n in lengths])
    request_s, prompt_s, pair_s = np.linalg.lstsq(matrix, np.array(firsts), rcond=None)[0]
    if pair_s < 0:
        request_s, prompt_s = np.linalg.lstsq(matrix[:, :2], np.array(firsts), rcond=None)[0]
    costs = Costs(
        rows=tuple(rows), prompt_token_s=float(prompt_s), context_s=context_s, prompt_context_s=max(0.0, float(pair_s)),
        request_s=max(0.0, float(request_s)), cache_tokens=BLOCKS * 32, step_tokens=STEP_TOKENS, running=RUNNING,
    )  # fmt: skip
    alone_s, slower = await best(3, lambda: token_s(client, one, 4, context)), [1.0]
    for n in range(2, len(urls) + 1):
        beside_s = await best(3, lambda n=n: token_s(client, urls[:n], 4, context))
        slower.append(max(slower[-1], beside_s / alone_s))
    return costs, slower


def ids_of(session: Session) -> list[int]:
    """Return token ids of the model for a session's numbers: equal for equal numbers."""
    return [LOWEST + (number * 2654435761 >> 7) % N_IDS for number in session.tokens]


async def replay(url: str, n: int, rate: float, seed: int, seconds: float) -> Report:
    """Send the sessions that ``Fleet`` computes to a front with ``n`` servers."""
    calls: list[tuple[Call, int]] = []
    numbers, talks = itertools.count(1), set()
    start_s = time.perf_counter()
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:

        async def talk(session: Session) -> None:
            while True:
                prompt = ids_of(session)
                timed = await ask(client, url, prompt, session.n_answer)
                call = Call(session, timed.began_s - start_s, len(prompt), session.n_answer, timed.first_s - start_s)
                call.ended_s = timed.last_s - start_s
                calls.append((call, timed.n_cached))
                if session.n_left <= 1:
                    return
                session.next()
                await asyncio.sleep(session.pause())

        for when_s, number, is_under_way in arrivals(WORK, rate * n, seed):
            if when_s >= seconds:
                break
            session = session_of(WORK, seed, number, 1, numbers)
            if is_under_way:
                session.skip()
            await asyncio.sleep(max(0.0, start_s + when_s - time.perf_counter()))
            talks.add(asyncio.ensure_future(talk(session)))
        await asyncio.sleep(max(0.0, start_s + seconds - time.perf_counter()))
        n_open = sum(not each.done() for each in talks)
        for each in talks:
            each.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
    counted = [(call, cached) for call, cached in calls if call.arrived_s >= WARM_S and call.ended_s < seconds]
    hits = sum(cached for _, cached in counted) / max(1, sum(call.n_prompt for call, _ in counted))
    spent_s = n * (seconds - WARM_S)
    return figures([call for call, _ in counted], WORK, spent_s, hits=hits, busy=0.0, waiting=n_open / n)


def computed(costs: Costs, slower: Sequence[float], n: int, rate: float, seed: int, seconds: float) -> Report:
    fleet = Fleet(costs, WORK, n, rate, "prefix", 1, seed, slow=lambda n_busy: slower[min(n_busy, len(slower)) - 1])
    return fleet.run(WARM_S, seconds)


def rate_of(costs: Costs, slower: Sequence[float], n: int) -> float:
    """Return sessions per second and replica, so that the machine is busy as ``BUSY`` says."""
    low, high, cores = 0.0, 50.0, os.cpu_count() or 1
    for _ in range(12):
        middle = (low + high) / 2
        busy = computed(costs, slower, n, middle, 1, 20.0).busy
        if busy * n / slower[n - 1] > BUSY * min(n, cores):
            high = middle
        else:
            low = middle
    return low


def show(kind: str, report: Report) -> None:
    first, each = report.first_s, report.token_s
    print(f"  {kind:8} n {report.n:5}  hits {report.hits:.3f}  good {report.good_share:.3f} {report.good_per_s:.2f}/s  "
          f"first {1e3 * first[0]:.0f} {1e3 * first[1]:.0f} {1e3 * first[2]:.0f} ms  "
          f"token {1e3 * each[0]:.2f} {1e3 * each[1]:.2f} ms", flush=True)  # fmt: skip


async def fitted(urls: Sequence[str]) -> tuple[Costs, list[float]]:
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:
        return await fit(client, urls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,2,4")
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sizes, seeds = ([int(each) for each in text.split(",")] for text in (args.sizes, args.seeds))
    with contextlib.ExitStack() as stack:
        costs, slower = asyncio.run(fitted([stack.enter_context(started(*SERVE)) for _ in range(max(sizes))]))
    print(costs, "\nslower beside others:", [round(each, 2) for each in slower], flush=True)
    rows = []
    for n in sizes:
        rate = rate_of(costs, slower, n)
        for seed in seeds:
            print(f"{n} replicas, {rate:.2f} sessions per second and replica, seed {seed}")
            simulated = computed(costs, slower, n, rate, seed, args.seconds)
            show("computed", simulated)
            with contextlib.ExitStack() as stack:  # new servers: nothing in their caches
                urls = [stack.enter_context(started(*SERVE)) for _ in range(n)]
                front = stack.enter_context(started("route", "--to", ",".join(urls), "--port", "0"))
                measured = asyncio.run(replay(front, n, rate, seed, args.seconds))
            show("measured", measured)
            row = {"replicas": n, "load": rate, "seed": seed}
            rows.append(row | {"computed": dataclasses.asdict(simulated), "measured": dataclasses.asdict(measured)})
    if args.json:
        results = json.loads(args.json.read_text()) if args.json.exists() else {}
        results["replicas"] = {"costs": dataclasses.asdict(costs), "slower": slower, "rows": rows}
        results["replicas"] |= {"first_token_s": WORK.first_token_s, "token_s": WORK.token_s}
        args.json.write_text(json.dumps(results).replace("}, {", "},\n{") + "\n")


if __name__ == "__main__":
    main()
