"""The worker process: ``python -m quire.server.worker.process END``, started by the listener.

It exits when the listener's end of the socket closes, so no worker is ever left behind.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable

from ...errors import QuireError
from ...system import connection_of, ignore_stops, lower_priority
from .controls import restore_controls
from .model_worker import Emit, ModelWorker
from .protocol import Failed, Open, Ready
from .worker_channel import WorkerSide

__all__ = ["BEAT_S", "run"]

BEAT_S = 0.5
# The listener takes precedence on a shared core: it needs little time, and error replies depend only on it.
_NICE = 3
_LAST_WORDS_S = 0.05
WorkerMaker = Callable[[Open, Emit], ModelWorker]


def run(connection: socket.socket, make_worker: WorkerMaker = ModelWorker) -> None:
    """Load the model that the first message names, then answer until the connection ends."""
    channel = WorkerSide(connection)
    incoming = channel.messages()
    opened = next(incoming, None)
    if not isinstance(opened, Open):
        return
    try:
        worker = make_worker(opened, channel.send)
        ready = Ready(worker.info())
        restore_controls(worker, opened)
    except (QuireError, OSError, MemoryError) as error:
        kind = type(error).__name__ if isinstance(error, QuireError) else "LoadError"
        channel.send([Failed(0, kind, str(error) or "[loader] out of memory")])
        channel.finish()
        return
    channel.send([ready, worker.beat()])
    gc.collect()
    gc.freeze()
    threading.Thread(target=_beat, args=(worker, channel), name="quire-beat", daemon=True).start()
    worker.warm_up()
    for message in incoming:
        worker.handle(message)


def _beat(worker: ModelWorker, channel: WorkerSide) -> None:
    while not worker.device_lost.wait(BEAT_S):
        channel.send([worker.beat()])
    # The requests have been told; only a new process can try the device again.
    time.sleep(_LAST_WORDS_S)
    channel.finish()
    sys.stderr.write("quire: the worker exits because its device is lost\n")
    sys.stderr.flush()
    os._exit(1)


def main(make_worker: WorkerMaker = ModelWorker) -> None:
    """Run the worker process."""
    ignore_stops()  # the listener decides when this process exits
    lower_priority(_NICE)
    logging.basicConfig(
        format="quire: %(message)s", level="INFO" if os.environ.get("QUIRE_LOG") == "debug" else "WARNING"
    )
    connection = connection_of(sys.argv[1])
    code = 1
    try:
        run(connection, make_worker)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Exit without cleanup: the memory goes back with the process, and nothing is left to send or save.
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
