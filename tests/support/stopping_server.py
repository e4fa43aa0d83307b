"""A server for tests without a model whose engine takes a moment to stop; run as a script.

While the engine stops, it blocks the event loop, so that data from clients stays in the system's queues until the end.
"""

from __future__ import annotations

import sys
import time

from fake_engine import FakeEngine
from quire.server.serve import serve
from quire.server.service.library import Library
from quire.server.service.service import Service
from quire.server.settings import Settings

STOP_S = 1.0


class SlowlyStopping(FakeEngine):
    """Prints on standard error that it stops, and blocks the event loop."""

    async def stop(self) -> None:
        print("stopping", file=sys.stderr, flush=True)
        time.sleep(STOP_S)


if __name__ == "__main__":
    serve(
        Service(Settings(port=0, access_log=False), Library.of("fake", SlowlyStopping)),
        lambda text: print(text, file=sys.stderr, flush=True),
    )
