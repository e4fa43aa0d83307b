"""Many mixed clients for minutes, with cancellations, bad requests and disconnects: complete answers are those of the
request alone, all blocks come back, and memory afterwards is that of before.

    python benchmarks/serve_load.py [--clients 200] [--seconds 120]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import urllib.request
from typing import Any

from serving import Answer, ask, quantile, running

SUBJECTS = ("a fox", "the sea", "a king", "two birds", "an old house", "the rain", "a small boat", "a bear")
BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "x", "temperature": -1}),
    ("/v1/completions", {"prompt": [5] * 4000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "nonsense": 1}),
    ("/v1/messages", {"model": "tiny-chat", "messages": []}),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    return parser.parse_args()


def requests() -> list[dict[str, Any]]:
    """Requests of which each has one right answer: greedy, or with a seed."""
    made: list[dict[str, Any]] = []
    for i, subject in enumerate(SUBJECTS):
        for seed in range(3):
            sampling = {"temperature": 0} if seed == 0 else {"temperature": 0.8, "seed": seed}
            made.append(
                {
                    "prompt": f"Once upon a time there was {subject}",
                    "max_tokens": 16 + 8 * i,
                    "stream": True,
                    "ignore_eos": True,
                    **sampling,
                }
            )
    return [{**body, "stream_options": {"include_usage": True}} for body in made]


def text_of(answer: Answer) -> str:
    """The text of a stream."""
    blocks = answer.body.decode("utf-8", "replace").split("data: ")
    parts = [json.loads(block[: block.rindex("}") + 1]) for block in blocks if '"choices"' in block]
    return "".join(choice["text"] for part in parts for choice in part["choices"])


class Load:
    """What the clients do, and what came of it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.bodies = requests()
        self.expected: list[str] = []
        self.complete: list[Answer] = []
        self.wrong = self.left = self.refused = 0

    async def learn(self) -> None:
        """Each request alone."""
        for body in self.bodies:
            self.expected.append(text_of(await ask(self.port, "/v1/completions", body)))

    async def client(self, until: float, rng: random.Random) -> None:
        while time.monotonic() < until:
            kind = rng.random()
            if kind < 0.1:
                answer = await ask(self.port, *rng.choice(BAD))
                self.refused += 400 <= answer.status < 500
                self.wrong += not 400 <= answer.status < 500
            elif kind < 0.3:
                await ask(self.port, "/v1/completions", rng.choice(self.bodies), rng.random() * 0.2)
                self.left += 1
            else:
                number = rng.randrange(len(self.bodies))
                answer = await ask(self.port, "/v1/completions", self.bodies[number])
                if answer.status == 429:
                    self.refused += 1
                    await asyncio.sleep(0.2)
                elif answer.status == 200 and text_of(answer) == self.expected[number]:
                    self.complete.append(answer)
                else:
                    self.wrong += 1


def status(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status") as response:
        found: dict[str, Any] = json.load(response)["models"][0]
        return found


async def measure(options: argparse.Namespace) -> None:
    with running(["--cache-blocks", "512"]) as server:
        load = Load(server.port)
        await load.learn()
        await warm(load, options)
        before = server.memory_bytes("RssAnon")
        started = time.monotonic()
        clients = [load.client(started + options.seconds, random.Random(i)) for i in range(options.clients)]
        await asyncio.gather(*clients)
        elapsed_s = time.monotonic() - started
        await asyncio.sleep(2.0)
        now = status(server.port)
        after = server.memory_bytes("RssAnon")
        n_tokens = sum(answer.usage["completion_tokens"] for answer in load.complete)
        firsts = [answer.first_s for answer in load.complete if answer.first_s]
        gaps = [gap for answer in load.complete for gap in answer.gaps_s]
        print(f"{len(load.complete)} complete, {load.left} left, {load.refused} refused, {load.wrong} wrong")
        print(f"blocks: {now['cache']['free']} of {now['cache']['blocks']} free; requests: {now['requests']}")
        print(f"tokens a second of complete answers: {n_tokens / elapsed_s:.0f}")
        for name, values in (("first token", firsts), ("between pieces", gaps)):
            print(f"{name}: p50 {quantile(values, 0.5) * 1e3:.0f} ms, p99 {quantile(values, 0.99) * 1e3:.0f} ms")
        print("anonymous MB before and after:", [(a / 1e6, b / 1e6) for a, b in zip(before, after, strict=True)])
        if load.wrong or now["cache"]["free"] != now["cache"]["blocks"]:
            raise SystemExit("something was wrong")


async def warm(load: Load, options: argparse.Namespace) -> None:
    """A few seconds of the same, so that what memory is kept for good is there already."""
    until = time.monotonic() + min(5.0, options.seconds / 4)
    await asyncio.gather(*(load.client(until, random.Random(-i - 1)) for i in range(options.clients)))
    load.complete.clear()
    load.left = load.refused = 0


if __name__ == "__main__":
    asyncio.run(measure(arguments()))
