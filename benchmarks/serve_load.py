"""Load the server with many mixed clients for minutes, with cancellations, bad requests and disconnects.

Complete answers must equal those of the request alone, all blocks must be free afterwards, and memory must not grow.

    python benchmarks/serve_load.py [--clients 200] [--seconds 120]

The clients are spread over several processes, so that their event loops do not distort the times; all share the
machine.  Memory is read after a short warm-up with the same load, and at the end, when the server is idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from serving import Answer, Figure, ask, get, loop_run, running, shown

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
    parser.add_argument("--processes", type=int, default=2, help="for the clients")
    return parser.parse_args()


def requests() -> list[dict[str, Any]]:
    """Return requests with only one right answer: greedy, or with a seed."""
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
    """Return the text of a stream."""
    blocks = answer.body.decode("utf-8", "replace").split("data: ")
    parts = [json.loads(block[: block.rindex("}") + 1]) for block in blocks if '"choices"' in block]
    return "".join(choice["text"] for part in parts for choice in part["choices"])


@dataclass
class Outcome:
    """The results of some clients' requests.  ``odd`` are neither right answers nor expected refusals."""

    firsts_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    n_complete: int = 0
    n_tokens: int = 0
    n_left: int = 0
    n_bad: int = 0
    n_full: int = 0
    odd: list[str] = field(default_factory=list)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


async def learn(port: int) -> list[str]:
    """Return the answer to each request when it runs alone."""
    return [text_of(await ask(port, "/v1/completions", body)) for body in requests()]


class Load:
    """The clients' actions and their results."""

    def __init__(self, port: int, expected: list[str]) -> None:
        self.port = port
        self.bodies = requests()
        self.expected = expected
        self.outcome = Outcome()

    async def client(self, until: float, rng: random.Random) -> None:
        outcome = self.outcome
        while time.monotonic() < until:
            kind = rng.random()
            if kind < 0.1:
                answer = await ask(self.port, *rng.choice(BAD))
                if 400 <= answer.status < 500:
                    outcome.n_bad += 1
                else:
                    outcome.odd.append(f"a bad request has status {answer.status}")
            elif kind < 0.3:
                await ask(self.port, "/v1/completions", rng.choice(self.bodies), rng.random() * 0.2)
                outcome.n_left += 1
            else:
                await self.whole(rng.randrange(len(self.bodies)))

    async def whole(self, number: int) -> None:
        outcome = self.outcome
        answer = await ask(self.port, "/v1/completions", self.bodies[number])
        if answer.status == 429:
            outcome.n_full += 1
            await asyncio.sleep(0.2)
        elif answer.status == 200 and text_of(answer) == self.expected[number]:
            outcome.n_complete += 1
            outcome.n_tokens += answer.usage["completion_tokens"]
            outcome.firsts_s.append(answer.first_s)
            outcome.gaps_s += answer.gaps_s
        else:
            outcome.odd.append(f"request {number}: {answer.status} {text_of(answer)[-80:]!r}")

    async def run(self, seeds: range, seconds: float) -> Outcome:
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.client(until, random.Random(seed)) for seed in seeds))
        return self.outcome


def work(port: int, expected: list[str], seeds: range, seconds: float) -> Outcome:
    return loop_run(Load(port, expected).run(seeds, seconds))


def all_clients(port: int, expected: list[str], options: argparse.Namespace, seconds: float, first: int) -> Outcome:
    n = options.processes
    with ProcessPoolExecutor(n) as processes:
        parts = [
            processes.submit(work, port, expected, range(first + i, first + options.clients, n), seconds)
            for i in range(n)
        ]
        return sum((part.result() for part in parts), Outcome())


def measure(options: argparse.Namespace) -> list[Figure]:
    with running(["--cache-blocks", "512", "--deterministic"]) as server:
        expected = loop_run(learn(server.port))
        all_clients(server.port, expected, options, min(5.0, options.seconds / 4), 10_000)
        time.sleep(1.0)
        before = server.memory_bytes("RssAnon")
        started = time.monotonic()
        outcome = all_clients(server.port, expected, options, options.seconds, 0)
        elapsed_s = time.monotonic() - started
        time.sleep(2.0)
        now = get(server.port, "/v1/status")["models"][0]
        after = server.memory_bytes("RssAnon")
    blocks = now["cache"]
    if outcome.odd or blocks["free"] != blocks["blocks"]:
        raise SystemExit(f"wrong: {outcome.odd[:5]}; {blocks['free']} of {blocks['blocks']} blocks are free")
    before_mb, after_mb = (", ".join(f"{n / 1e6:.1f}" for n in values) for values in (before, after))
    return [
        Figure(f"{options.clients} mixed clients, {options.seconds:.0f} s: complete answers, all as alone; left early; "
               "bad; refused because of load",
               f"{outcome.n_complete}; {outcome.n_left}; {outcome.n_bad}; {outcome.n_full}", "none wrong"),
        Figure("tokens per second of complete answers", f"{outcome.n_tokens / elapsed_s:.0f}"),
        Figure("first token: p50, p99", shown(outcome.firsts_s, "s")),
        Figure("between pieces: p50, p99", shown(outcome.gaps_s, "ms")),
        Figure("blocks free afterwards", f"{blocks['free']} of {blocks['blocks']}", "all"),
        Figure("anonymous memory before and after: listener, worker", f"{before_mb}; {after_mb} MB", "the same"),
    ]  # fmt: skip


if __name__ == "__main__":
    for figure in measure(arguments()):
        print(figure)
