"""Five times as many requests as the server can answer: how soon is the rest refused, and what is still done?

    python benchmarks/serve_overload.py [--seconds 20] [--factor 5]

Capacity is measured first, by as many clients as run at a time.  Then requests come at ``factor`` times that rate,
whether or not earlier ones were answered.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from serving import Answer, ask, quantile, running


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--factor", type=float, default=5.0)
    parser.add_argument("--tokens", type=int, default=128)
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
    await asyncio.gather(*(client(i) for i in range(40)))
    return done / (time.monotonic() - started)


async def measure(options: argparse.Namespace) -> None:
    with running(["--max-queue", "32", "--cache-blocks", "512"]) as server:
        await peak(server.port, options)
        capacity = await peak(server.port, options)
        answers: list[Answer] = []

        async def one(i: int) -> None:
            answers.append(await ask(server.port, "/v1/completions", body(i, options)))

        before = sum(server.memory_bytes("RssAnon"))
        started = time.monotonic()
        tasks = []
        n = 0
        while (now := time.monotonic() - started) < options.seconds:
            while n < now * capacity * options.factor:
                tasks.append(asyncio.ensure_future(one(n)))
                n += 1
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
        elapsed_s = time.monotonic() - started
        refused = [answer.total_s for answer in answers if answer.status == 429]
        done = [answer for answer in answers if answer.status == 200]
        other = len(answers) - len(refused) - len(done)
        print(f"capacity {capacity:.1f} answers a second; {n} requests in {options.seconds:.0f} s")
        print(
            f"answered {len(done)}: {len(done) / elapsed_s:.1f} a second, {len(done) / elapsed_s / capacity:.2f} of it"
        )
        p50, p99 = (quantile(refused, share) * 1e3 for share in (0.5, 0.99))
        print(f"refused {len(refused)}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        print(f"neither: {other}; anonymous memory {(sum(server.memory_bytes('RssAnon')) - before) / 1e6:+.1f} MB")


if __name__ == "__main__":
    asyncio.run(measure(arguments()))
