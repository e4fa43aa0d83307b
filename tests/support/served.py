"""A server for tests: ``quire serve`` in a separate process on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

START_S = 120.0
WAIT_S = 120.0  # only a failure takes this long


@dataclass(frozen=True)
class Served:
    """A running server.  ``log`` is its standard error so far."""

    process: subprocess.Popen[bytes]
    url: str
    log_path: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=WAIT_S, trust_env=False, **options)  # type: ignore[arg-type]


def command(*arguments: str) -> list[str]:
    """Return a command that serves the package's model with small sizes on a free port."""
    own = ["--port", "0", "--threads", "1", "--kv-dtype", "f32"]
    return [sys.executable, "-W", "error", "-m", "quire", "serve", *own, *arguments]


def environment() -> dict[str, str]:
    """Return an environment that uses the same quire as this process in any folder."""
    import quire

    assert quire.__file__ is not None
    return {**os.environ, "PYTHONPATH": str(Path(quire.__file__).resolve().parent.parent)}


def wait_until(holds: Callable[[], bool], most_s: float = WAIT_S) -> None:
    """Wait for a state, such as a figure that the worker reports late.  AssertionError if it does not come."""
    end = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < end, "the awaited state has not come"
        time.sleep(0.01)


@contextmanager
def served(folder: Path, arguments: Sequence[str] = ()) -> Iterator[Served]:
    """Run a server with these options until the block ends; it must exit on SIGTERM."""
    log = folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command(*arguments), stderr=file, env=environment())
    try:
        yield Served(process, _address(process, log), log)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0, log.read_text(encoding="utf-8")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextmanager
def impatient_server() -> Iterator[int]:
    """Run impatient_server.py, a server without a model, until the block ends; yield its port.

    It must exit on SIGTERM.
    """
    with impatient_process() as (port, _):
        yield port


@contextmanager
def impatient_process() -> Iterator[tuple[int, int]]:
    """Run impatient_server.py until the block ends; yield its port and process id."""
    script = Path(__file__).parent / "impatient_server.py"
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, env=environment(), text=True)
    assert process.stderr is not None
    found = re.search(r":(\d+)$", process.stderr.readline())
    assert found is not None
    try:
        yield int(found[1]), process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        text = log.read_text(encoding="utf-8")
        if (found := re.search(r"serving .* on (http://\S+)", text)) is not None:
            return found[1]
        if process.poll() is not None:
            raise AssertionError(f"the server exited with {process.returncode}: {text}")
        time.sleep(0.02)
    raise AssertionError("the server did not print its address")
