"""Measure how soon the server notices that a client disconnected, and how soon its cache blocks are free.

    python benchmarks/leaving_clients.py [--model FILE] [--rounds N] [--threads N]

A client disconnects, by FIN or RST, while its request is queued, while its prompt is read, or while its answer is
generated, streamed or not.  "noticed" is the time until the server counts a cancellation; "blocks" the time until no
block of the cache is in use (in the queue: until nothing waits).  The script polls /metrics and /v1/status every
millisecond.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable

import httpx

HEAD = (
    "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
)
LONG_ANSWER = {"prompt": "Once upon a time", "max_tokens": 100_000, "ignore_eos": True}
LIMIT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", help="a GGUF file [the package's]")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    command = [sys.executable, "-m", "quire", "serve", "--port", "0", "--threads", str(options.threads)]
    command += [
        "--max-sequences",
        "1",
        "--ctx-size",
        "2048",
        "--no-access-log",
        *([options.model] if options.model else []),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server ended"
            found = re.search(r"on http://\S+:(\d+)", line)
        measure(int(found[1]), options.rounds)
    finally:
        process.terminate()
        process.wait()


def measure(port: int, rounds: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False) as client:
        n_ctx = client.get("/v1/status").json()["models"][0]["n_ctx"]
        print(f"{'phase':<10}{'how':<12}{'noticed p50':>14}{'max':>8}{'blocks p50':>14}{'max':>8}   ms")
        for phase in ("queue", "prompt", "answer"):
            for how in ("FIN, stream", "RST, whole"):
                figures = [one_round(client, port, phase, how, n_ctx, i) for i in range(rounds)]
                noticed, blocks = (sorted(column) for column in zip(*figures, strict=True))
                middle = rounds // 2
                print(
                    f"{phase:<10}{how:<12}{noticed[middle]:>14.1f}{noticed[-1]:>8.1f}"
                    f"{blocks[middle]:>14.1f}{blocks[-1]:>8.1f}"
                )


def one_round(client: httpx.Client, port: int, phase: str, how: str, n_ctx: int, number: int) -> tuple[float, float]:
    """Return the milliseconds until a disconnect is noticed, and until the blocks are free."""
    # Enough choices to keep a batch of one busy for a while.
    other = send(port, {**LONG_ANSWER, "n": 8}) if phase == "queue" else None
    n_others = 0
    if other is not None:
        until(lambda: queue(client)["running"] > 0)
    body = dict(LONG_ANSWER)
    if phase == "prompt":  # none of its blocks is in the cache
        body["prompt"] = [(7 * i + number) % 200 + 30 for i in range(n_ctx - 64)]
    n_before = cancellations(client)
    leaving = send(port, {**body, "stream": how.endswith("stream")}) if phase != "queue" else None
    if phase == "queue":
        n_others = queue(client)["waiting"]
        leaving = send(port, {**body, "stream": how.endswith("stream")})
        until(lambda: queue(client)["waiting"] > n_others)
    elif phase == "prompt":
        until(lambda: queue(client)["running"] > 0, step_s=0.0)
    else:
        time.sleep(0.2)
    assert leaving is not None
    started = time.monotonic()
    if how.startswith("RST"):
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    leaving.close()
    until(lambda: cancellations(client) > n_before)
    noticed = time.monotonic() - started
    if phase == "queue":
        until(lambda: queue(client)["waiting"] <= n_others)
    else:
        until(lambda: model(client)["cache"]["used"] == 0 and queue(client)["running"] == 0)
    blocks = time.monotonic() - started
    if other is not None:
        other.close()
        until(lambda: model(client)["requests"] == 0 and model(client)["cache"]["used"] == 0)
    return 1e3 * noticed, 1e3 * blocks


def send(port: int, body: object) -> socket.socket:
    data = json.dumps(body).encode()
    made = socket.create_connection(("127.0.0.1", port))
    made.sendall(HEAD.format(len(data)).encode() + data)
    return made


def model(client: httpx.Client) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = client.get("/v1/status").json()["models"][0]
    return found


def queue(client: httpx.Client) -> dict[str, int]:
    return model(client)["queue"]


def cancellations(client: httpx.Client) -> float:
    found = re.search(r"^quire_cancellations_total (\S+)", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def until(holds: Callable[[], bool], step_s: float = 0.001) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(step_s)


if __name__ == "__main__":
    main()
