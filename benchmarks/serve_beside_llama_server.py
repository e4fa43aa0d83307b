"""Compare the tokens per second of llama-server and ``quire serve`` with the same file and many clients.

    python benchmarks/serve_beside_llama_server.py PEER FILE [--device gpu] [--clients 32] [--prompt 512] [--answer 128]

PEER is the folder of llama-server.  Each request has a different prompt of random tokens, so that none is found in a
cache.  Answers are greedy and have the requested length.  The first round counts only with ``--cold``.  The script
prints one JSON object with the speeds of all rounds and the median times to the first and last token.  Results of each
server are written to standard error as soon as they are known.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving import Answer, ask, running


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=500, help="prompts have token ids below this")
    parser.add_argument("--cold", action="store_true", help="count the first round too, if rounds are long")
    return parser.parse_args()


@contextlib.contextmanager
def llama_server(options: argparse.Namespace) -> Iterator[int]:
    """Run llama-server until the block ends; yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    n_ctx = options.clients * (-(-(options.prompt + options.answer) // 256) * 256)
    layers = "0" if options.device == "cpu" else "99"
    command = [str(options.peer / "llama-server"), "-m", str(options.file), "-ngl", layers, "-np", str(options.clients)]
    command += ["-c", str(n_ctx), "-fa", "on", "--port", str(port), "--no-webui"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise SystemExit(f"llama-server exited with {process.returncode}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                break
            time.sleep(0.1)
        else:
            raise SystemExit("llama-server is not ready after a minute")
        yield port
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def quire_server(options: argparse.Namespace) -> Iterator[int]:
    n_ctx = options.prompt + options.answer + 32
    flags = ["-m", str(options.file), "--device", options.device, "-c", str(n_ctx)]
    flags += ["--max-sequences", str(options.clients), "--kv-dtype", "f16"]
    with running(flags) as server:
        yield server.port


async def one_round(port: int, options: argparse.Namespace, source: random.Random) -> tuple[float, list[Answer]]:
    """Return the seconds until all requests are answered, and the answers."""
    bodies: list[dict[str, Any]] = [
        {
            "prompt": [source.randrange(options.vocabulary) for _ in range(options.prompt)],
            "max_tokens": options.answer,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        for _ in range(options.clients)
    ]
    started = time.perf_counter()
    answers = await asyncio.gather(*(ask(port, "/v1/completions", body) for body in bodies))
    seconds = time.perf_counter() - started
    for answer in answers:
        if answer.status != 200:
            raise SystemExit(f"a request failed with status {answer.status}: {answer.body[:300]!r}")
    return seconds, answers


def measured(port: int, options: argparse.Namespace) -> dict[str, Any]:
    source = random.Random(1)
    rounds = [asyncio.run(one_round(port, options, source)) for _ in range(options.rounds + (not options.cold))]
    rounds = rounds[-options.rounds :]
    answers = [answer for _, each in rounds for answer in each]
    return {
        "tokens_per_s": [options.clients * options.answer / seconds for seconds, _ in rounds],
        "first_token_s": statistics.median(answer.first_s for answer in answers),
        "last_token_s": statistics.median(answer.total_s for answer in answers),
    }


def main() -> None:
    options = arguments()
    found = {}
    for name, server in (("quire", quire_server), ("llama.cpp", llama_server)):
        with server(options) as port:
            found[name] = measured(port, options)
        print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
