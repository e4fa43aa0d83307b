"""Run ``quire serve`` with a worker that raises an exception when it gets SIGUSR1; for serve_chaos.py.

This file is the server and, if given the number of a socket, also its worker.
"""

from __future__ import annotations

import signal
import sys


def throw(*_: object) -> None:
    raise RuntimeError("raised because of a signal")


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        from quire.server.worker.process import main as work

        signal.signal(signal.SIGUSR1, throw)
        work()
    else:
        from quire.cli.main import main
        from quire.server.worker import launch

        launch.WORKER = (sys.executable, __file__)
        sys.exit(main(["serve", *sys.argv[1:]]))
