"""Servers of Quire and llama.cpp that read images and sounds, and items to ask about."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["Server", "encoded", "item_bytes", "llama_server", "quire_server"]

HERE = Path(__file__).resolve().parent
START_S = 300.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Server:
    """A server in its own process."""

    name: str
    client: httpx.Client
    pid: int

    def processor_s(self) -> float:
        """Return the processor time that the process and its children took."""
        return sum(_processor_s(pid) for pid in _family(self.pid))


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _family(int(child)))]


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.contextmanager
def _running(name: str, command: Sequence[str], port: int) -> Iterator[Server]:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "python")}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=3600.0, trust_env=False) as client:
                end = time.monotonic() + START_S
                while not _is_ready(client):
                    if process.poll() is not None or time.monotonic() > end:
                        raise RuntimeError(f"{name} did not start: {_complaint(log)}")
                    time.sleep(0.1)
                try:
                    yield Server(name, client, process.pid)
                except httpx.RemoteProtocolError as error:
                    raise RuntimeError(f"{name} exited: {_complaint(log)}") from error
        finally:
            process.terminate()
            process.wait(60)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def _complaint(log: Any) -> str:
    """Return the first line about an error, or the last line."""
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    errors = [line for line in lines if re.search(r"error|assert|failed|missing", line, re.IGNORECASE)]
    return (errors or lines[-1:] or ["it says nothing"])[0][:200]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def llama_server(peer: Path, text: Path, mmproj: Path, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run llama-server of the folder ``peer`` with a model and its encoder until the block ends."""
    port = _free_port()
    command = [str(peer / "llama-server"), "-m", str(text), "--mmproj", str(mmproj), "--port", str(port), "-np", "1"]
    with _running("llama.cpp", [*command, *options], port) as server:
        yield server


@contextlib.contextmanager
def quire_server(text: Path, mmproj: Path, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run ``quire serve`` with a model and its encoder until the block ends."""
    port = _free_port()
    command = [sys.executable, "-m", "quire", "serve", str(text), "--mmproj", str(mmproj), "--port", str(port)]
    with _running("Quire", [*command, *options], port) as server:
        yield server


def item_bytes(data: npt.NDArray[Any]) -> bytes:
    """Return an image as a PNG file, a sound of 16 kHz as a WAV file."""
    file = io.BytesIO()
    if data.dtype == np.uint8:
        Image.fromarray(data).save(file, "PNG", compress_level=1)
    else:
        with wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16_000)
            out.writeframes((data * 32_767).astype("<i2").tobytes())
    return file.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
