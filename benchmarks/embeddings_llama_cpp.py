#!/usr/bin/env python3
"""Compare embeddings of Quire and llama.cpp: the same file, texts and interface, in alternation.

    embeddings_llama_cpp.py [--peer PEER] [--shapes bge-small,bge-m3] [--types f16,q8_0,f32] [--layers N] [--rounds 5]
       [--threads 2] [--texts 32] [--tokens 128] [--folder build/bench-models]

PEER is the folder of llama-server (build/bin of ``build_peer.sh``); without it only Quire is measured.  Missing files
are made with ``make_shape.py``.  Both servers get the same batches of token ids at their route ``/embedding``, one
batch at a time; the fastest of three batches counts in each round.  The script prints medians of all rounds (texts/s),
the ratio to llama.cpp (* from 2.5 on) and the smallest cosine similarity of the two vectors of a text, which shows
whether both compute the same.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
TARGET = 2.5
N_BATCHES = 3
START_S = 120.0
Array = npt.NDArray[np.float32]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int) -> Iterator[httpx.Client]:
    """Run a server until the block ends, and wait for its first answer."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600.0, trust_env=False) as client:
            end = time.monotonic() + START_S
            while not healthy(client):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{command[0]} does not answer within {START_S} s")
                time.sleep(0.2)
            yield client
    finally:
        process.terminate()
        process.wait()


def healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE.parent / "python")}


def quire(file: Path, options: argparse.Namespace, port: int) -> list[str]:
    own = ["--port", str(port), "--threads", str(options.threads)]
    return [sys.executable, "-m", "quire", "serve", str(file), *own]


def peer(file: Path, options: argparse.Namespace, port: int) -> list[str]:
    """Return llama-server's command, with a batch size for all texts at once, as in Quire."""
    n_all = str(max(512, options.texts * options.tokens))
    sizes = ["-c", n_all, "-b", n_all, "-ub", n_all, "-np", str(options.texts), "-t", str(options.threads)]
    return [
        str(options.peer / "llama-server"),
        "-m",
        str(file),
        "--embedding",
        "--pooling",
        "mean",
        "--port",
        str(port),
        *sizes,
    ]


def made(shape: str, kind: str, options: argparse.Namespace) -> Path:
    layers = f"-{options.layers}" if options.layers else ""
    file: Path = options.folder / f"{shape}{layers}-{kind}.gguf"
    if not file.is_file():
        options.folder.mkdir(parents=True, exist_ok=True)
        fewer = ["--layers", str(options.layers)] if options.layers else []
        command = [sys.executable, str(HERE / "make_shape.py"), shape, str(file), "--type", kind, *fewer]
        subprocess.run(command, check=True, env=environment())
    return file


def vectors_of(client: httpx.Client, texts: list[list[int]]) -> tuple[Array, float]:
    """Return the vectors and the seconds they took."""
    begin = time.perf_counter()
    response = client.post("/embedding", json={"content": texts})
    took = time.perf_counter() - begin
    response.raise_for_status()
    rows = sorted(response.json(), key=lambda row: row["index"])
    return np.array([row["embedding"] for row in rows], np.float32).reshape(len(texts), -1), took


def measured(clients: dict[str, httpx.Client], options: argparse.Namespace) -> tuple[dict[str, list[float]], float]:
    """Return the texts per second of each round, and the similarity of both servers' vectors."""
    random = np.random.default_rng(0)
    speeds: dict[str, list[float]] = {name: [] for name in clients}
    likeness = 1.0
    for turn in range(options.rounds + 1):  # the first round warms up
        batches = [random.integers(5, 256, (options.texts, options.tokens)).tolist() for _ in range(N_BATCHES)]
        found: dict[str, Array] = {}
        for name in sorted(clients, reverse=bool(turn % 2)):
            times = []
            for batch in batches:
                found[name], took = vectors_of(clients[name], batch)
                times.append(took)
            if turn:
                speeds[name].append(options.texts / min(times))
        if len(found) == 2:
            one, other = found.values()
            lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
            likeness = min(likeness, float(((one * other).sum(axis=1) / lengths).min()))
    return speeds, likeness


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--shapes", default="bge-small,bge-m3")
    parser.add_argument("--types", default="f16,q8_0,f32")
    parser.add_argument("--layers", type=int, help="number of layers, if fewer than in the published model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=HERE.parent / "build" / "bench-models")
    options = parser.parse_args()
    print(f"{'model':<22}{'quire':>10}{'llama.cpp':>12}{'ratio':>9}{'likeness':>11}")
    for shape in options.shapes.split(","):
        for kind in options.types.split(","):
            file = made(shape, kind, options)
            with ExitStack() as stack:
                makers = {"quire": quire, **({"llama.cpp": peer} if options.peer else {})}
                clients = {}
                for name, make in makers.items():
                    port = free_port()
                    clients[name] = stack.enter_context(running(make(file, options, port), port))
                speeds, likeness = measured(clients, options)
            own = statistics.median(speeds["quire"])
            line = f"{shape + ' ' + kind:<22}{own:>10.1f}"
            if options.peer:
                ratio = statistics.median(a / b for a, b in zip(speeds["quire"], speeds["llama.cpp"], strict=True))
                other = statistics.median(speeds["llama.cpp"])
                line += f"{other:>12.1f}{ratio:>8.2f}{'*' if ratio >= TARGET else ' '}{likeness:>11.6f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
