"""Starts the process that holds a model, first of all: it and the listener then import what they need side by side."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...system import start_connected

__all__ = ["WORKER", "Launched", "launch"]

WORKER = (sys.executable, "-m", "quire.server.worker.process")


@dataclass(frozen=True)
class Launched:
    """A process that waits to be told its model, and what gives the listener's end of the sockets between them, once.

    It ends when that end is closed.
    """

    process: subprocess.Popen[bytes]
    connection: Callable[[], socket.socket]
    started_s: float = field(default_factory=time.monotonic)


def launch(command: Sequence[str] | None = None) -> Launched:
    """Start a worker.  ``command`` (None: ``WORKER``) gets what names the worker's end as its last argument."""
    return Launched(*start_connected(command or WORKER))
