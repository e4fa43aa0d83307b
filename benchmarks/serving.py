"""Code shared by the server's benchmarks: a server process, and a client that costs almost nothing.

The client reads data but examines only its end, so that the server is measured rather than the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Running:
    """A server in its own process."""

    process: subprocess.Popen[bytes]
    port: int
    ready_s: float
    log: Path

    def children(self) -> list[int]:
        """Return the ids of its worker processes."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def memory_bytes(self, name: str) -> list[int]:
        """Return ``VmRSS``, ``RssAnon`` or ``Pss`` of the listener and its workers."""
        found = []
        for pid in (self.process.pid, *self.children()):
            text = Path(f"/proc/{pid}/{'smaps_rollup' if name == 'Pss' else 'status'}").read_text()
            match = re.search(rf"{name}:\s+(\d+) kB", text)
            found.append(int(match[1]) * 1024 if match else 0)
        return found


@contextlib.contextmanager
def running(arguments: Sequence[str] = (), program: Sequence[str] = ("-m", "quire", "serve")) -> Iterator[Running]:
    """Run a server with these options until the block ends, then stop it with SIGTERM."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        started = time.monotonic()
        with log.open("wb") as file:
            command = [sys.executable, *program, "--port", "0", "--no-access-log", *arguments]
            process = subprocess.Popen(command, stderr=file)
        try:
            while (found := re.search(r"on http://\S+:(\d+)", log.read_text())) is None:
                if process.poll() is not None:
                    raise SystemExit(f"the server exited: {log.read_text()}")
                time.sleep(0.002)
            yield Running(process, int(found[1]), time.monotonic() - started, log)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@dataclass
class Answer:
    """The result of a request.  Times are in seconds since it was sent; ``body`` is as received."""

    status: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    body: bytearray = field(default_factory=bytearray)
    gaps_s: list[float] = field(default_factory=list)

    @property
    def usage(self) -> dict[str, Any]:
        """Return the usage from a stream's last event."""
        for block in reversed(self.body.split(b"\n\n")):
            at = block.find(b'"usage":{')
            if at >= 0:
                usage, _ = json.JSONDecoder().raw_decode(block[at + 8 :].decode())
                return dict(usage)
        return {}


async def ask(
    port: int, path: str, body: dict[str, Any], leave_after_s: float | None = None, key: str | None = None
) -> Answer:
    """Send one request on its own connection; if given, disconnect after ``leave_after_s``."""
    data = json.dumps(body).encode()
    answer = Answer()
    started = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(_head(path, len(data), key) + data)
        reading = _read(reader, answer, started)
        if leave_after_s is None:
            await reading
        else:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(reading, leave_after_s)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
    answer.total_s = time.monotonic() - started
    return answer


def _head(path: str, n_bytes: int, key: str | None = None) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"{'' if key is None else f'x-api-key: {key}' + chr(13) + chr(10)}content-length: {n_bytes}\r\n\r\n"
    ).encode()


async def _read(reader: asyncio.StreamReader, answer: Answer, started: float) -> None:
    header = await reader.readuntil(b"\r\n\r\n")
    answer.status = int(header[9:12])
    last = 0.0
    # Chunks are not decoded, since their headers do not interfere with the search.
    while part := await reader.read(1 << 16):
        now = time.monotonic()
        # The first event of a chat has no text and does not count.
        if part.count(b'"content":"') > part.count(b'"content":""') or b'"text":"' in part:
            if not answer.first_s:
                answer.first_s = now - started
            elif last:
                answer.gaps_s.append(now - last)
            last = now
        answer.body += part


def ask_blocking(port: int, path: str, body: dict[str, Any]) -> tuple[int, float]:
    """Return the status and the seconds until a reply's header, including the connection, without an event loop.

    The client then disconnects, so that nothing more of a stream is computed.
    """
    data = json.dumps(body).encode()
    request = _head(path, len(data)) + data
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        reply = connection.recv(1 << 16)
        elapsed_s = time.monotonic() - started
    return int(reply[9:12] or 0), elapsed_s


def get(port: int, path: str) -> Any:
    """Return a route's reply."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as response:
        return json.load(response)


def post(port: int, path: str, body: dict[str, Any]) -> Any:
    """Return a route's reply to a body."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def loop_run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop, which the server needs anyway and which costs the client least."""
    import uvloop

    return uvloop.run(main)


@dataclass(frozen=True)
class Figure:
    """A line of the table: name, value, and target."""

    what: str
    value: str
    wanted: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.value}" + (f" (target: {self.wanted})" if self.wanted else "")


def shown(seconds: Sequence[float], unit: str, most: bool = False) -> str:
    """Format the median, the 99th percentile and optionally the maximum, in ``ms`` or ``s``."""
    scale, digits = (1e3, 1) if unit == "ms" else (1.0, 2)
    values = [quantile(seconds, 0.5), quantile(seconds, 0.99), *([max(seconds, default=0.0)] if most else [])]
    return ", ".join(f"{value * scale:.{digits}f}" for value in values) + f" {unit}"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values are."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")
