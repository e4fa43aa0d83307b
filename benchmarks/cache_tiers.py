#!/usr/bin/env python3
"""Measure a conversation that continues after a restart from disk, and kill writers of the cache's folder.

    cache_tiers.py [FILE.gguf] [--tokens 8000] [--threads 2] [--folder DIR] [--kills 0]

The conversation has a prompt and an answer of 32 tokens; the next turn adds 16 tokens.  The script prints the time to
its first token without a restart and after one, beside the time to read the same files one after the other without
looking at them, both with the files in the system's page cache and without.  Times are the least of several rounds, and
the answers must be the same.  With --kills, that many writers of short texts are killed at random moments, and after
each a reader must find right answers and no damaged file.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire import LLM

N_ANSWER = 32


def tokens(n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 200) for _ in range(n)]


def ask(model: LLM, text: list[int], n: int = N_ANSWER) -> tuple[list[int], float, int, int]:
    """Return the answer, the seconds to its first token, and the tokens found and found on disk."""
    (found,) = model.generate([text], max_tokens=n, temperature=0, ignore_eos=True)
    timings = found.choices[0].timings
    return found.token_ids, timings.queue_s + timings.prefill_s, found.n_cached_tokens, found.n_disk_tokens


def forget_pages(folder: Path) -> None:
    """Drop the folder's files from the page cache."""
    for path in folder.rglob("*.kv"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_all(folder: Path) -> tuple[float, int]:
    """Return the seconds to read all files, and their bytes."""
    buffer, n_bytes = bytearray(16 << 20), 0
    begin = time.perf_counter()
    for path in folder.rglob("*.kv"):
        with path.open("rb", buffering=0) as file:
            while n := file.readinto(buffer):
                n_bytes += n
    return time.perf_counter() - begin, n_bytes


def conversation(options: dict[str, Any], n_tokens: int, folder: Path, rounds: int) -> None:
    first = tokens(n_tokens, 1)
    with LLM(**options, cache_disk=folder, cache_disk_size="64G") as model:
        answer, cold_s, *_ = ask(model, first)
        second = [*first, *answer, *tokens(16, 2)]
        turns = [ask(model, second) for _ in range(rounds)]
        expected, _, n_warm, _ = turns[0]
        warm_s = min(turn[1] for turn in turns[1:])  # all of it but the last block in the cache
        begin = time.perf_counter()
    print(f"{n_tokens} tokens computed in {cold_s:.2f} s; next turn without a restart {warm_s:.3f} s, {n_warm} cached")
    print(f"closing, with the rest to be written: {time.perf_counter() - begin:.2f} s")
    for name, prepare in [("in the page cache", lambda _: None), ("not in the page cache", forget_pages)]:
        rows = []
        for _ in range(rounds):
            prepare(folder)
            raw_s, n_bytes = read_all(folder)
            with LLM(**options, cache_disk=folder, cache_disk_size="64G") as model:
                ask(model, tokens(40, 3), 1)  # the model's own pages
                prepare(folder)
                found, seconds, n_found, n_disk = ask(model, second)
            assert found == expected, "the answer differs"
            assert len(second) - n_found <= N_ANSWER + 16
            assert n_disk == n_found
            rows.append((raw_s, seconds))
        raw_s, seconds = (min(column) for column in zip(*rows, strict=True))
        print(
            f"{name}: {n_bytes / 1e6:.0f} MB read alone {raw_s:.3f} s; first token after a restart {seconds:.3f} s "
            f"({n_disk} of {len(second)} tokens from disk); without the turn's own {warm_s:.3f} s: "
            f"{(seconds - warm_s) / raw_s:.2f} of reading",
            flush=True,
        )


def child(work: Callable[[], None]) -> int:
    """Run the work in a process of its own; return its id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def kill_writers(options: dict[str, Any], n: int, folder: Path) -> None:
    texts = [tokens(300, seed) for seed in range(16)]
    size = 8 << 20  # so that files are evicted as well
    results = folder / "expected"

    def compute() -> None:
        with LLM(**options) as model:
            results.write_text(repr([ask(model, text, 4)[0] for text in texts]))

    assert os.waitpid(child(compute), 0)[1] == 0
    expected = eval(results.read_text())
    results.unlink()

    def write() -> None:
        rng = random.Random(os.getpid())
        with LLM(**options, cache_disk=folder, cache_disk_size=size) as model:
            while True:
                number = rng.randrange(2 * len(texts))
                ask(model, texts[number] if number < len(texts) else tokens(300, rng.randrange(1 << 30)), 1)

    def check() -> None:
        with LLM(**options, cache_disk=folder, cache_disk_size=size) as model:
            found = [ask(model, text, 4) for text in texts]
            assert [answer for answer, *_ in found] == expected, "an answer differs"
            stats = model.stats().tiers
            assert stats is not None
            assert stats.disk is not None
            assert stats.disk.n_damaged == 0, "a damaged file"
            (folder / "n_found").write_text(str(sum(each[3] for each in found)))

    rng, n_found = random.Random(1), 0
    for i in range(n):
        writer = child(write)
        time.sleep(0.3 + rng.random() * 2.0)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        assert os.waitpid(child(check), 0)[1] == 0, f"after kill {i}"
        n_found += int((folder / "n_found").read_text())
    n_left = len(list(folder.rglob("*.part")))
    print(f"{n} writers killed: no damaged file, right answers; {n_found} tokens found; {n_left} unfinished files left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where files are written, to measure its disk")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="quire-cache-", dir=given.folder))
    options: dict[str, Any] = {"model": given.file, "threads": given.threads, "n_ctx": 512, "device": "cpu"}
    try:
        if given.kills:
            kill_writers(options, given.kills, folder)
        else:
            conversation({**options, "n_ctx": given.tokens + 128}, given.tokens, folder, given.rounds)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
