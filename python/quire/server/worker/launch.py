"""Starts the process that holds a model, first of all: it and the listener then import what they need side by side."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["WORKER", "Launched", "launch"]

WORKER = (sys.executable, "-m", "quire.server.worker.process")


@dataclass(frozen=True)
class Launched:
    """A process that waits to be told its model, and the listener's end of the sockets between them.

    It ends when that end is closed.
    """

    process: subprocess.Popen[bytes]
    connection: socket.socket
    started_s: float = field(default_factory=time.monotonic)


def launch(command: Sequence[str] | None = None) -> Launched:
    """Start a worker.  ``command`` (None: ``WORKER``) gets the number of the worker's end as its last argument."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*(command or WORKER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return Launched(process, ours)
