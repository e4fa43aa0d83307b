"""Measure how hostile requests affect others: endless headers, the largest bodies, a key that takes all it can.

    python benchmarks/serve_attacks.py [--seconds 10]

During each attack a probe requests ``/health``, one request at a time over a blocking socket, and a stream runs.  The
attack's figures are the longest time of the probe and the longest gap of the stream.  Fairness between keys is measured
with short completions of a second key, while the first has as many long texts in flight as it may.  The server, the
attack and the probe share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from large_requests import counts, excesses
from serving import Figure, Running, running

KEYS = ("first-key-0123456789", "second-key-012345678")
LARGE = 32 << 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    return parser.parse_args()


def post(port: int, path: str, body: bytes, key: str = KEYS[0]) -> tuple[int, float]:
    """Return the status (0: the connection broke) and the seconds of one request."""
    started = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status, time.monotonic() - started
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - started
    finally:
        connection.close()


@dataclass
class Watch:
    """The measurements of other clients: times of ``/health``, and gaps of a stream."""

    port: int
    health_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def probe(self) -> None:
        while not self.over.is_set():
            started = time.monotonic()
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                connection.request("GET", "/health")
                connection.getresponse().read()
                connection.close()
            self.health_s.append(time.monotonic() - started)
            time.sleep(0.005)

    def stream(self) -> None:
        body = {"prompt": "Once", "stream": True, "max_tokens": 900, "ignore_eos": True}
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEYS[1]}"}
        while not self.over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                connection.request("POST", "/v1/completions", json.dumps(body), headers)
                response = connection.getresponse()
                last = time.monotonic()
                while response.read1(1 << 16) and not self.over.is_set():
                    now = time.monotonic()
                    self.gaps_s.append(now - last)
                    last = now
                connection.close()


@contextlib.contextmanager
def watched(port: int) -> Iterator[Watch]:
    watch = Watch(port)
    threads = [threading.Thread(target=each) for each in (watch.probe, watch.stream)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    watch.health_s.clear()
    watch.gaps_s.clear()
    try:
        yield watch
        time.sleep(0.5)
    finally:
        watch.over.set()
        for thread in threads:
            thread.join()


def send_head(port: int, seconds: float) -> None:
    """Send an endless header, 55 MiB in ten seconds, again and again if it is refused."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 20.0) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
            while time.monotonic() < until:
                connection.sendall(b"y" * 57_672)
                time.sleep(0.01)


def together(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def seen(watch: Watch, more: str = "") -> str:
    return f"{max(watch.health_s) * 1e3:.0f} ms, {max(watch.gaps_s, default=0.0) * 1e3:.0f} ms{more}"


def heads(server: Running, seconds: float) -> list[Figure]:
    figures = []
    for n in (1, 3):
        before = server.children()
        with watched(server.port) as watch:
            together(*[lambda: send_head(server.port, seconds)] * n)
        worker = "the same worker" if server.children() == before else "the worker was replaced"
        figures.append(Figure(f"{n} heads without an end: longest health, longest gap", seen(watch, f"; {worker}"), ""))
    return figures


def large(item: str) -> bytes:
    return ("[" + ",".join([item] * (LARGE // (len(item) + 1) - 100)) + "]").encode()


def bodies(server: Running) -> list[Figure]:
    enum = (
        b'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":'
    )
    enum += b'{"properties":{"a":{"enum":'
    cases = {
        "32 MB of empty messages": b'{"messages":' + large("{}") + b"}",
        "a tool's enum of 4 MB": enum + b'["' + b'","'.join(b"%08x" % i for i in range(380_000)) + b'"]}}}}}]}',
        "a tool's enum of 32 MB": enum + large('"abcdefg"') + b"}}}}}]}",
    }
    figures = []
    for name, body in cases.items():
        before = server.children()
        with watched(server.port) as watch:
            status, total_s = post(server.port, "/v1/chat/completions", body)
        worker = "" if server.children() == before else "; the worker was replaced"
        shown = seen(watch, f"; {status or 'reset'} after {total_s * 1e3:.0f} ms{worker}")
        figures.append(Figure(f"{name}: longest health, longest gap", shown, ""))
    requests = [*counts(), *excesses()]  # made in advance, as this process is also the probe
    with watched(server.port) as watch:
        for _, path, body, _ in requests:
            post(server.port, path, body)
    return [*figures, Figure("all of large_requests.py: longest health, longest gap", seen(watch), "")]


def shares(server: Running, seconds: float, n_bytes: int) -> Figure:
    """Measure short completions of one key while another key sends long texts."""
    text = json.dumps({"content": "some words of a text " * (n_bytes // 21)}).encode()
    short = json.dumps({"prompt": "Once", "max_tokens": 4}).encode()
    until = time.monotonic() + seconds
    taken: list[int] = []
    answers: list[tuple[int, float]] = []

    def starve() -> None:
        while time.monotonic() < until:
            taken.append(post(server.port, "/tokenize", text)[0])

    def ask() -> None:
        time.sleep(0.5)
        while time.monotonic() < until:
            answers.append(post(server.port, "/v1/completions", short, KEYS[1]))
            time.sleep(0.02)

    together(*[starve] * 4, ask)
    n_refused = sum(status != 200 for status, _ in answers)
    longest = max((total_s for status, total_s in answers if status == 200), default=float("nan"))
    kinds = ", ".join(f"{taken.count(status)} of {status}" for status in sorted(set(taken)))
    name = f"another key's short completions beside {n_bytes >> 20} MiB /tokenize ({kinds}): refused, longest"
    return Figure(name, f"{n_refused} of {len(answers)}, {longest * 1e3:.0f} ms", "0")


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("\n".join(KEYS))
        with running(
            ["--threads", "1", "--ctx-size", "1024", "--max-queue-tokens", "100000000", "--api-key-file", str(keys)]
        ) as server:
            for figure in (
                *heads(server, options.seconds),
                *bodies(server),
                shares(server, options.seconds, 30 << 20),
                shares(server, options.seconds, 7 << 20),
                shares(server, options.seconds, 2 << 20),
            ):
                print(figure, flush=True)


if __name__ == "__main__":
    main()
