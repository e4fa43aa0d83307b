"""A server for tests that reports how long its event loop was blocked; run as a script, with the package's model.

The answer to the prompt ``held?`` is the longest time in milliseconds since the previous such prompt.
"""

from __future__ import annotations

import asyncio
import sys
import time

from quire.server.serve import serve
from quire.server.service.library import Library
from quire.server.service.service import Service
from quire.server.settings import Settings
from quire.server.worker.engine_client import Stream
from quire.server.worker.protocol import Delta, Finished, Generate, Open, Started, Work
from quire.server.worker.supervisor import WorkerSupervisor

BEAT_S = 0.002
CONFIG = {"threads": 1, "kv_dtype": "f32", "n_ctx": 1024}


class Probed(WorkerSupervisor):
    """Watches its event loop."""

    held_s = 0.0

    async def start(self) -> None:
        await super().start()
        self.watching = asyncio.ensure_future(self.watch())

    async def watch(self) -> None:
        """Record the longest time between two iterations of the loop, but at most this process's CPU time meanwhile.

        CPU time excludes times when other processes used the cores.  All threads count, since a thread that computes
        without releasing the GIL blocks the loop too.
        """
        while True:
            wall_s, computed_s = time.monotonic(), time.process_time()
            await asyncio.sleep(BEAT_S)
            late_s = min(time.monotonic() - wall_s - BEAT_S, time.process_time() - computed_s)
            self.held_s = max(self.held_s, late_s)

    def submit(self, work: Work) -> Stream:
        if not isinstance(work, Generate) or work.prompt != "held?":
            return super().submit(work)
        made, stream = self.open(work)
        text, self.held_s = f"{self.held_s * 1e3:.3f}", 0.0
        end = Finished(made.id, 0, "stop", None, 1, 0, 1, 0.0, 0.0, 0.0)
        asyncio.get_running_loop().call_soon(self.dispatch, [Started(made.id, 1), Delta(made.id, 0, text, [1]), end])
        return stream


if __name__ == "__main__":
    settings = Settings(port=0, access_log=False)
    library = Library.of("tiny-chat", lambda: Probed(Open(None, CONFIG)))
    serve(Service(settings, library), lambda text: print(text, file=sys.stderr, flush=True))
