"""What a server imports before it is ready, as imports are most of that time and much of the memory at rest.

Oracle: ``sys.modules`` of fresh processes.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

MODEL_CODE = ("numpy", "jinja2", "llguidance", "quire._native", "quire._tokenizer", "quire.engine", "quire.tokenizer")
WEB_CODE = ("asyncio", "ssl", "starlette", "uvicorn", "uvloop", "httptools", "prometheus_client", "click", "numpy")
WORKER = """
from quire.server.host import Host
from quire.server.protocol import Open
import quire.server.worker
host = Host(Open(None, {"threads": 1}), lambda messages: None)
host.info(), host.beat()
"""


def modules(program: str, unwanted: tuple[str, ...]) -> list[str]:
    """Which of these a program imports."""
    code = f"{program}\nimport sys\nprint(*[name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        # The process is started by this before anything else is imported.
        ("import quire.server.launch", ("asyncio", "msgspec", *WEB_CODE[1:], *MODEL_CODE)),
        ("import quire.cli.serve, quire.server.listener, quire.server.service, quire.server.supervisor", MODEL_CODE),
        (WORKER, WEB_CODE),
    ],
    ids=["launch", "listener", "worker with its model"],
)
def test_a_process_imports_only_what_it_needs(program: str, unwanted: tuple[str, ...]) -> None:
    assert modules(program, unwanted) == []


def test_a_worker_that_was_started_before_is_told_its_model() -> None:
    from quire.server.launch import launch
    from quire.server.protocol import Open
    from quire.server.supervisor import WorkerEngine

    async def test() -> None:
        launched = launch()
        engine = WorkerEngine(Open(None, {"threads": 1, "n_ctx": 256}), launched=launched)
        await engine.start()
        try:
            assert (engine.process_id, engine.info.n_ctx) == (launched.process.pid, 256)
        finally:
            await engine.stop()
        assert launched.process.returncode == 0

    asyncio.run(test())
