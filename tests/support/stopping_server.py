"""A server without a model whose engine takes a moment to stop, for tests: run as a script.

While it stops nothing else runs in it, so that what a client does then lies in the system's queues until the very end.
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
    """Says on standard error that it stops, and holds the event loop."""

    async def stop(self) -> None:
        print("stopping", file=sys.stderr, flush=True)
        time.sleep(STOP_S)


if __name__ == "__main__":
    serve(
        Service(Settings(port=0, access_log=False), Library.of("fake", SlowlyStopping)),
        lambda text: print(text, file=sys.stderr, flush=True),
    )
