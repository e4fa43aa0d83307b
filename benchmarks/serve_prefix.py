"""Measure what the prefix cache saves for many clients with the same long system prompt.

    python benchmarks/serve_prefix.py [--clients 32] [--tokens 1000] [--model FILE]

The system prompt consists of words, as many as make the requested number of tokens.  "nothing shared" means that each
request has its own ``cache_salt``; otherwise one request was sent before, which filled the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from typing import Any

from serving import Answer, Figure, ask, get, loop_run, post, running, shown

WORDS = ("story", "river", "king", "garden", "winter", "letter")
USER_TOKENS = 64  # for question, answer and template


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1000, help="minimum length of the system prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model")
    return parser.parse_args()


def system_prompt(port: int, n_tokens: int) -> tuple[str, int]:
    """Return the words and their number of tokens."""
    rng = random.Random(1)
    words: list[str] = []
    n = 0
    while n < n_tokens:
        words += [rng.choice(WORDS) for _ in range(max(1, (n_tokens - n) // 2))]
        n = len(post(port, "/tokenize", {"content": " ".join(words)})["tokens"])
    return " ".join(words), n


async def round_of(port: int, options: argparse.Namespace, system: str, salt: str | None) -> list[Answer]:
    bodies: list[dict[str, Any]] = []
    for i in range(options.clients):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question number {i}"}]
        body: dict[str, Any] = {"messages": messages, "max_tokens": 8, "stream": True, "temperature": 0}
        body["stream_options"] = {"include_usage": True}
        if salt is not None:
            body["cache_salt"] = f"{salt}-{i}"
        bodies.append(body)
    if salt is None:
        await ask(port, "/v1/chat/completions", bodies[0])
    return await asyncio.gather(*(ask(port, "/v1/chat/completions", body) for body in bodies))


def measure(options: argparse.Namespace) -> list[Figure]:
    model = ["--model", options.model] if options.model else []
    # Enough blocks for all the clients' prompts at the same time, shared or not.
    n_blocks = (options.clients + 1) * ((options.tokens + USER_TOKENS) // 32 + 2) * 2
    with running([*model, "--cache-blocks", str(n_blocks)]) as server:
        n_ctx = get(server.port, "/props")["default_generation_settings"]["n_ctx"]
        wanted = min(options.tokens, n_ctx - 2 * USER_TOKENS)
        system, n_tokens = system_prompt(server.port, wanted)
        short = "" if wanted == options.tokens else f" (the model's context, {n_ctx}, does not allow more)"
        loop_run(round_of(server.port, options, system, "warm"))
        rows: dict[str, list[Answer]] = {"alone": [], "shared": []}
        for i in range(options.rounds):
            rows["alone"] += loop_run(round_of(server.port, options, system, f"round-{i}"))
            rows["shared"] += loop_run(round_of(server.port, options, system, None))
    figures = []
    for name, answers in rows.items():
        odd = [answer for answer in answers if answer.status != 200 or not answer.first_s]
        if odd:
            raise SystemExit(f"unexpected status {odd[0].status}: {bytes(odd[0].body[-200:])!r}")
        cached = sum(answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in answers)
        prompt = sum(answer.usage["prompt_tokens"] for answer in answers)
        if name == "shared" and cached < len(answers) * (n_tokens - 64):
            raise SystemExit(f"only {cached} of the {prompt} prompt tokens were cached")
        how = "nothing shared" if name == "alone" else "one system prompt in the cache"
        value = f"{cached} of {prompt} prompt tokens cached; first token {shown([a.first_s for a in answers], 'ms')}"
        figures.append(
            Figure(f"{options.clients} clients, system prompt of {n_tokens} tokens{short}, {how}: p50, p99", value)
        )
    return figures


if __name__ == "__main__":
    for figure in measure(arguments()):
        print(figure)
