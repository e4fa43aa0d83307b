"""Start the worker process early, so that it and the listener import their modules at the same time."""

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
    """A worker process that waits for its model.

    ``connection`` returns the listener's end of the socket, once.  The worker exits when that end is closed.
    """

    process: subprocess.Popen[bytes]
    connection: Callable[[], socket.socket]
    started_s: float = field(default_factory=time.monotonic)


def launch(command: Sequence[str] | None = None) -> Launched:
    """Start a worker.  ``command`` (default ``WORKER``) gets the name of its socket end as its last argument."""
    return Launched(*start_connected(command or WORKER))
