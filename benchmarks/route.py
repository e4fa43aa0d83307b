"""Prefix hits behind ``quire route``: conversations over several servers, beside one server and random routing.

    python benchmarks/route.py [--replicas 2] [--conversations 64] [--turns 10] [--systems 16] [--kill]

Servers of the package's model, one thread each.  A hit is a prompt token that a server had cached.  ``--kill`` ends one
server by SIGKILL in the middle of a second round, and reports what the clients saw.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from quire.routing.front import Front
from quire.routing.policy import Policy
from quire.routing.prefix_index import Replica

ROOT = Path(__file__).resolve().parents[1]
WORDS = ("river", "house", "tree", "cat", "sun", "king", "bread", "song", "boat", "road", "bird", "fox", "night")


def serve(n: int, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start server ``n``; return it with its URL."""
    log = folder / f"{n}.log"
    command = [sys.executable, "-m", "quire", "serve", "--port", "0", "--threads", "1", "-c", "2048", "--no-access-log"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    while not (found := re.search(r" on (http:\S+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    return process, found[1]


class AtRandom(Policy):
    """Ignores what replicas have cached."""

    def choose(self, replicas: Any, hashes: Any, tried: Any = ()) -> Replica | None:
        ready = [replica for replica in replicas if replica.is_ready and replica not in tried]
        return self.draw.choice(ready) if ready else None


async def talk(client: httpx.AsyncClient, system: str, seed: int, turns: int, counts: Counter[str]) -> None:
    """Hold a conversation, and count its tokens and failures."""
    draw = random.Random(seed)
    messages: list[dict[str, str]] = [{"role": "system", "content": system}]
    for _ in range(turns):
        messages.append({"role": "user", "content": " ".join(draw.choices(WORDS, k=12))})
        began_s = time.monotonic()
        try:
            asked = {"messages": messages, "max_tokens": 16, "temperature": 0}
            answer = await client.post("/v1/chat/completions", json=asked)
        except httpx.HTTPError as error:
            counts[type(error).__name__] += 1
            messages.pop()
            continue
        counts["slowest_ms"] = max(counts["slowest_ms"], int(1000 * (time.monotonic() - began_s)))
        counts[f"status {answer.status_code}"] += 1
        found = answer.json()
        messages.append({"role": "assistant", "content": found["choices"][0]["message"]["content"] or "."})
        counts["prompt"] += found["usage"]["prompt_tokens"]
        counts["cached"] += found["usage"]["prompt_tokens_details"]["cached_tokens"]


async def measure(args: argparse.Namespace, kind: str, kill: bool = False) -> Counter[str]:
    """Run all conversations against new servers, through a front in this process."""
    counts: Counter[str] = Counter()
    draw = random.Random(7)
    systems = [" ".join(draw.choices(WORDS, k=150)) for _ in range(args.systems)]
    with tempfile.TemporaryDirectory() as name:
        servers = [serve(n, Path(name)) for n in range(1 if kind == "one" else args.replicas)]
        front = Front([url for _, url in servers], AtRandom() if kind == "random" else None, hosts=None)
        await front.start()
        transport = httpx.ASGITransport(front) if not kill else httpx.ASGITransport(front, raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://front", timeout=120) as client:
                talks = [
                    talk(client, systems[i % args.systems], i, args.turns, counts) for i in range(args.conversations)
                ]
                running = asyncio.gather(*(limited(talks)))
                if kill:
                    while counts["status 200"] < args.conversations * args.turns // 3:
                        await asyncio.sleep(0.02)
                    os.kill(servers[0][0].pid, signal.SIGKILL)
                await running
        finally:
            await front.stop()
            for process, _ in servers:
                process.terminate()
            for process, _ in servers:
                process.wait()
    counts["retried"] = front.counts["retried"]
    return counts


def limited(talks: list[Any], most: int = 16) -> list[Any]:
    """Let at most so many run at once."""
    free = asyncio.Semaphore(most)

    async def one(each: Any) -> None:
        async with free:
            await each

    return [one(each) for each in talks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("replicas", 2), ("conversations", 64), ("turns", 10), ("systems", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kill", action="store_true")
    args = parser.parse_args()
    for kind in ("one", "prefix", "random"):
        counts = asyncio.run(measure(args, kind))
        share = counts["cached"] / counts["prompt"]
        print(f"{kind:7} cached {share:.4f} of {counts['prompt']} prompt tokens, {dict(counts)}")
    if args.kill:
        print("kill   ", dict(asyncio.run(measure(args, "prefix", kill=True))))


if __name__ == "__main__":
    main()
