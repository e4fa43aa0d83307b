"""Many clients with one long system prompt: what the cache saves.

python benchmarks/serve_prefix.py [--clients 32] [--words 700]
"""

from __future__ import annotations

import argparse
import asyncio
import random
from typing import Any

from serving import Answer, ask, quantile, running


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--words", type=int, default=330, help="of the system prompt: about a thousand tokens")
    parser.add_argument("--model")
    return parser.parse_args()


async def round_of(port: int, options: argparse.Namespace, round_name: str | None) -> list[Answer]:
    rng = random.Random(1)
    system = " ".join(
        rng.choice(("story", "river", "king", "garden", "winter", "letter")) for _ in range(options.words)
    )
    bodies: list[dict[str, Any]] = []
    for i in range(options.clients):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question number {i}"}]
        body: dict[str, Any] = {"messages": messages, "max_tokens": 8, "stream": True, "temperature": 0}
        body["stream_options"] = {"include_usage": True}
        if round_name is not None:  # so that nothing is shared
            body["cache_salt"] = f"{round_name}-{i}"
        bodies.append(body)
    if round_name is None:
        await ask(port, "/v1/chat/completions", bodies[0])
    return await asyncio.gather(*(ask(port, "/v1/chat/completions", body) for body in bodies))


async def measure(options: argparse.Namespace) -> None:
    with running([*(["--model", options.model] if options.model else []), "--cache-blocks", "2048"]) as server:
        for name, salt in (("warming up", "a"), ("nothing shared", "b"), ("shared", None)):
            answers = await round_of(server.port, options, salt)
            cached = sum(answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in answers)
            prompt = sum(answer.usage["prompt_tokens"] for answer in answers)
            firsts = [answer.first_s for answer in answers]
            print(
                f"{name}: {cached} of {prompt} prompt tokens cached; first token p50 "
                f"{quantile(firsts, 0.5) * 1e3:.0f} ms, p99 {quantile(firsts, 0.99) * 1e3:.0f} ms"
            )


if __name__ == "__main__":
    asyncio.run(measure(arguments()))
