"""A worker for tests that prompts can crash; run as a script, with the number of its socket."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from quire.errors import LoadError
from quire.server.worker.model_worker import ModelWorker
from quire.server.worker.process import main


class CrashingWorker(ModelWorker):
    """Does what prompts say: ``abort``, ``kill``, ``stop`` (like SIGSTOP), ``throw``, ``mute`` (no heartbeats)."""

    def __init__(self, opened: Any, emit: Any) -> None:
        if opened.config.get("n_ctx") == 77:
            raise LoadError("[test] the model does not load")
        if opened.config.get("n_ctx") == 78:
            raise RuntimeError("a bug in the worker")
        self._muted = threading.Event()
        super().__init__(opened, emit)

    def beat(self) -> Any:
        if self._muted.is_set():
            threading.Event().wait()
        return super().beat()

    def _submit(self, message: Any, running: Any) -> None:
        prompt = getattr(message, "prompt", "")
        if prompt == "abort":
            os.abort()
        if prompt in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if prompt == "kill" else signal.SIGSTOP)
        if prompt == "throw":
            raise RuntimeError("thrown")
        if prompt == "mute":
            self._muted.set()
        super()._submit(message, running)


if __name__ == "__main__":
    main(CrashingWorker)
