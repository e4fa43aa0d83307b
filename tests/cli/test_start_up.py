"""Modules that a server imports before it is ready: imports are most of that time and much of its idle memory.

Oracle: ``sys.modules`` of fresh processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
from quire.server.worker.engine_client import EngineState

MODEL_CODE = ("numpy", "jinja2", "llguidance", "quire._native", "quire._tokenizer", "quire.engine", "quire.tokenizer")
WEB_CODE = ("asyncio", "ssl", "starlette", "uvicorn", "uvloop", "httptools", "prometheus_client", "click", "numpy")
WORKER = """
from quire.server.worker.model_worker import ModelWorker
from quire.server.worker.protocol import Open
import quire.server.worker.process
worker = ModelWorker(Open(None, {"threads": 1}), lambda messages: None)
worker.info(), worker.beat()
"""


def modules(program: str, unwanted: tuple[str, ...]) -> list[str]:
    """Return which of these modules a program imports."""
    code = f"{program}\nimport sys\nprint(*[name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        # Starts the worker process before anything else is imported.
        ("import quire.server.worker.launch", ("asyncio", "msgspec", *WEB_CODE[1:], *MODEL_CODE)),
        (
            "import quire.cli.serve, quire.server.serve, quire.server.service.service, quire.server.worker.supervisor",
            MODEL_CODE,
        ),
        (WORKER, WEB_CODE),
    ],
    ids=["launch", "listener", "worker with its model"],
)
def test_a_process_imports_only_what_it_needs(program: str, unwanted: tuple[str, ...]) -> None:
    assert modules(program, unwanted) == []


THROWING = """
import signal
from quire.server.worker.process import main
def throw(*_):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise RuntimeError("thrown")
signal.signal(signal.SIGUSR1, throw)
main()
"""


def test_an_uncaught_exception_ends_the_worker() -> None:
    from quire.server.worker.protocol import Open
    from quire.server.worker.supervisor import Watch, WorkerSupervisor

    async def test() -> None:
        engine = WorkerSupervisor(
            Open(None, {"threads": 1, "n_ctx": 256}), Watch(check_s=0.05), (sys.executable, "-c", THROWING)
        )
        await engine.start()
        try:
            before = engine.process_id
            worker = engine._worker
            assert before is not None
            assert worker is not None
            sent_s, end_s = 0.0, time.monotonic() + 120
            while engine.process_id == before or engine.state is not EngineState.READY:
                assert time.monotonic() < end_s
                # Send it again: Python handles a signal that arrived just before a read only after that read returns.
                if worker.process.returncode is None and time.monotonic() > sent_s + 1:
                    os.kill(before, signal.SIGUSR1)
                    sent_s = time.monotonic()
                await asyncio.sleep(0.01)
            assert worker.process.returncode == 1
            assert engine.n_restarts == 1
        finally:
            await engine.stop()

    asyncio.run(test())


def test_a_prelaunched_worker_receives_its_model() -> None:
    from quire.server.worker.launch import launch
    from quire.server.worker.protocol import Open
    from quire.server.worker.supervisor import WorkerSupervisor

    async def test() -> None:
        launched = launch()
        engine = WorkerSupervisor(Open(None, {"threads": 1, "n_ctx": 256}), launched=launched)
        await engine.start()
        try:
            # Threads inherit the priority, including those that compute.
            assert os.getpriority(os.PRIO_PROCESS, launched.process.pid) > os.getpriority(os.PRIO_PROCESS, 0)
            assert (engine.process_id, engine.info.n_ctx) == (launched.process.pid, 256)
        finally:
            await engine.stop()
        assert launched.process.returncode == 0

    asyncio.run(test())
