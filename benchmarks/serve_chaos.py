"""A worker that is killed, stopped, or made to fail, again and again under load: how soon is it there again, and does
anything hang?

    python benchmarks/serve_chaos.py [--rounds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import time
import urllib.error
import urllib.request

from serving import Answer, Running, ask, quantile, running

FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "aborted": signal.SIGABRT}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    return parser.parse_args()


def health(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


async def client(port: int, name: int, answers: list[Answer], stop: asyncio.Event) -> None:
    """Different prompts each time, as a request that was there at two ends is refused."""
    n = 0
    while not stop.is_set():
        n += 1
        body = {"prompt": f"Tell {name} of {n}", "max_tokens": 200, "ignore_eos": True, "stream": True}
        answer = await ask(port, "/v1/completions", body)
        answers.append(answer)
        if answer.status != 200:
            await asyncio.sleep(0.1)


async def fault(server: Running, signum: int) -> tuple[float, float]:
    """Seconds until health tells, and until it is well again."""
    (worker,) = server.children()
    await asyncio.sleep(0.5)
    started = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signum)
    while await asyncio.to_thread(health, server.port) == 200:
        if time.monotonic() - started > 30:
            raise SystemExit("health does not tell")
        await asyncio.sleep(0.02)
    told_s = time.monotonic() - started
    while await asyncio.to_thread(health, server.port) != 200:
        if time.monotonic() - started > 60:
            raise SystemExit("the worker does not come back")
        await asyncio.sleep(0.02)
    return told_s, time.monotonic() - started


async def measure(options: argparse.Namespace) -> None:
    for name, signum in FAULTS.items():
        with running() as server:
            answers: list[Answer] = []
            stop = asyncio.Event()
            clients = [asyncio.ensure_future(client(server.port, i, answers, stop)) for i in range(options.clients)]
            times = [await fault(server, signum) for _ in range(options.rounds)]
            stop.set()
            await asyncio.gather(*clients)
            told, well = zip(*times, strict=True)
            longest = max(answer.total_s for answer in answers)
            n = len(answers)
            print(
                f"{name} {options.rounds} times: told after {quantile(told, 0.5):.2f} s (most {max(told):.2f}), well "
                f"after {quantile(well, 0.5):.2f} s (most {max(well):.2f}); longest request {longest:.1f} s of {n}"
            )
            if longest > 15:
                raise SystemExit("a request hung")


if __name__ == "__main__":
    asyncio.run(measure(arguments()))
