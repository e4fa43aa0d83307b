"""Measure how forms of answers that take long to compile delay other requests.

    python benchmarks/serve_forms.py [--model FILE] [--server ...]

Each of four attacks runs against a fresh server, while a probe sends plain requests one after another:

  endless     24 different schemas of 6000 properties at once; all are refused
  again       the same 24 again, and then one of them alone
  large       16 schemas of 1000 properties at once (32 KiB each, allowed), next to 4 plain streams
  two keys    the 24 schemas from one key, a schema of 1000 properties from another
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving import Answer, Figure, ask, loop_run, running, shown

PATH = "/v1/completions"
KEYS = ("key-of-the-attacker", "key-of-somebody-else")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--server", nargs="*", default=[], help="more options of the server")
    return parser.parse_args()


def schema_body(n: int, number: int) -> dict[str, Any]:
    """Return a completion constrained to a schema of ``n`` properties, different for each ``number``."""
    names = {f"property_{number}_{i:05d}": {"type": "integer"} for i in range(n)}
    form = {"type": "object", "properties": names, "additionalProperties": False}
    schema = {"name": "form", "schema": form}
    return {"prompt": "JSON:", "max_tokens": 8, "response_format": {"type": "json_schema", "json_schema": schema}}


def plain_body(n_tokens: int = 5) -> dict[str, Any]:
    return {"prompt": "Once upon a time", "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}


async def probes(port: int, until: asyncio.Future[Any], key: str | None = None) -> list[float]:
    """Return the times of plain completions of five tokens, sent one after another until ``until`` is done."""
    seconds = []
    while not until.done() or not seconds:
        answer = await ask(port, PATH, plain_body(), key=key)
        assert answer.status == 200, bytes(answer.body)
        seconds.append(answer.total_s)
        await asyncio.sleep(0.02)
    return seconds


async def together(port: int, n: int, numbers: Sequence[int], key: str | None = None) -> list[Answer]:
    return await asyncio.gather(*(ask(port, PATH, schema_body(n, i), key=key) for i in numbers))


def outcome(answers: Sequence[Answer]) -> str:
    """Return the number of answers with each status."""
    found = [answer.status for answer in answers]
    return ", ".join(f"{found.count(status)} x {status}" for status in sorted(set(found)))


async def endless(port: int) -> list[Figure]:
    alone = await probes(port, _done())
    figures = [Figure("plain completion alone", shown(alone, "ms", most=True))]
    for name in ("endless", "again"):
        attack = asyncio.ensure_future(together(port, 6000, range(24)))
        seconds = await probes(port, attack)
        answers = await attack
        total_s = max(answer.total_s for answer in answers)
        figures.append(Figure(f"{name}: plain completions meanwhile", shown(seconds, "ms", most=True), "100 ms"))
        figures.append(Figure(f"{name}: until all 24 are refused", f"{total_s:.2f} s ({outcome(answers)})"))
    last = await ask(port, PATH, schema_body(6000, 0))
    figures.append(Figure("again: one alone", f"{last.total_s:.3f} s ({last.status})"))
    return figures


async def large(port: int) -> list[Figure]:
    gaps: list[float] = []
    stopped = asyncio.Event()

    async def stream() -> None:
        while not stopped.is_set():
            answer = await ask(port, PATH, {**plain_body(400), "stream": True})
            gaps.extend(answer.gaps_s)

    streams = [asyncio.ensure_future(stream()) for _ in range(4)]
    await asyncio.sleep(1.0)
    quiet, gaps[:] = list(gaps), []
    attack = asyncio.ensure_future(together(port, 1000, range(16)))
    seconds = await probes(port, attack)
    answers = await attack
    stopped.set()
    await asyncio.gather(*streams)
    times = [answer.total_s for answer in answers]
    return [
        Figure("large: gaps of streams before", shown(quiet, "ms", most=True)),
        Figure("large: gaps of streams meanwhile", shown(gaps, "ms", most=True), "250 ms"),
        Figure("large: plain completions meanwhile", shown(seconds, "ms", most=True)),
        Figure("large: answers to the 16", f"{shown(times, 's', most=True)} ({outcome(answers)})"),
    ]


async def two_keys(port: int) -> list[Figure]:
    attack = asyncio.ensure_future(together(port, 6000, range(24), KEYS[0]))
    await asyncio.sleep(0.5)
    begin = time.monotonic()
    answer = await ask(port, PATH, schema_body(1000, 99), key=KEYS[1])
    other_s = time.monotonic() - begin
    answers = await attack
    return [
        Figure("two keys: a schema of 1000 properties by the other", f"{other_s:.2f} s ({answer.status})", "2 s"),
        Figure("two keys: the attacker's 24", outcome(answers)),
    ]


def _done() -> asyncio.Future[None]:
    """Return a future that is done after half a second."""
    return asyncio.ensure_future(asyncio.sleep(0.5))


def measure(options: argparse.Namespace) -> list[Figure]:
    model = ["--model", options.model] if options.model else []
    figures = []
    for attack in (endless, large):
        with running([*model, *options.server]) as server:
            figures += loop_run(attack(server.port))
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("\n".join(KEYS))
        with running([*model, "--api-key-file", str(keys), *options.server]) as server:
            figures += loop_run(two_keys(server.port))
    return figures


def main() -> None:
    for figure in measure(arguments()):
        print(figure)


if __name__ == "__main__":
    main()
