"""Time to the first token where a peer has the prompt's blocks, beside computing it.

    python benchmarks/cache_peers.py [FILE.gguf] [--tokens 500,1000,2000] [--rounds 3] [--threads 1]

Two servers on this machine.  One computes prompts, and then the other, which has never seen them, is asked the same
with ``--cache-peers``; times alternate with those of prompts that neither knows.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx


@contextlib.contextmanager
def server(folder: Path, name: str, arguments: list[str]) -> Iterator[httpx.Client]:
    """Run ``quire serve`` until the block ends."""
    log = folder / f"{name}.log"
    own = ["--port", "0", "--no-access-log", "--cache-disk", str(folder / name), "--cache-peer-key-file"]
    with log.open("wb") as file:
        command = [sys.executable, "-m", "quire", "serve", *arguments, *own, str(folder / "key")]
        process = subprocess.Popen(command, stderr=file)
    try:
        while not (found := re.search(r" on (http:\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        with httpx.Client(base_url=found[1], timeout=600) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def ask(client: httpx.Client, prompt: list[int]) -> tuple[float, int]:
    """Return the seconds of an answer of one token, and the prompt's cached tokens."""
    began_s = time.perf_counter()
    found = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1, "temperature": 0}).json()
    return time.perf_counter() - began_s, found["usage"]["prompt_tokens_details"]["cached_tokens"]


def written(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.kv"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--tokens", default="500,1000,2000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    lengths = [int(each) for each in args.tokens.split(",")]
    arguments = [] if args.file is None else [args.file]
    arguments += ["--threads", str(args.threads), "-c", str(max(lengths) + 64)]
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "key").write_text("a-key-of-peers\n")
        there = stack.enter_context(server(folder, "there", arguments))
        here = stack.enter_context(
            server(folder, "here", [*arguments, "--cache-peers", str(there.base_url).rstrip("/")])
        )
        for n in lengths:
            read, computed = [], []
            for _ in range(args.rounds):
                prompt, other = ([draw.randrange(300, 4000) for _ in range(n)] for _ in range(2))
                before = written(folder / "there")
                ask(there, prompt)
                while written(folder / "there") < before + n // 32:
                    time.sleep(0.01)
                seconds, n_cached = ask(here, prompt)
                if n_cached:
                    read.append(seconds)
                seconds, n_cached = ask(here, other)
                assert n_cached == 0
                computed.append(seconds)
            files = list((folder / "there").rglob("*.kv"))
            size = sum(each.stat().st_size for each in files) / len(files) / 32
            print(f"{n} tokens of {size:.0f} bytes: computed in {1e3 * statistics.median(computed):.0f} ms, read from "
                  f"the peer in {1e3 * statistics.median(read) if read else float('nan'):.0f} ms "
                  f"({len(read)} of {args.rounds} were read)", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
