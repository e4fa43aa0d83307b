"""The worker process: if it crashes or hangs, its requests receive an error and it is restarted.

Oracles: the same request to an undisturbed worker; the system's list of processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from quire.errors import LoadError
from quire.server.failures import ApiError
from quire.server.worker.awake_clock import AwakeClock
from quire.server.worker.engine_client import EngineState
from quire.server.worker.protocol import Ask, Delta, Generate, Open, Work
from quire.server.worker.supervisor import Watch, WorkerSupervisor
from quire.server.worker.worker_channel import time_apart

SCRIPT = (sys.executable, str(Path(__file__).resolve().parents[1] / "support" / "crashing_worker.py"))
CONFIG = {"threads": 1, "n_ctx": 256, "kv_dtype": "f32"}
QUICK = Watch(silent_s=1.2, hung_s=1.8, check_s=0.05)
PATIENT = Watch(silent_s=60, hung_s=60, check_s=0.05)  # for workers that never hang, however slow the machine is
GREEDY = {"temperature": 0.0, "max_tokens": 16}
LONG = Generate(0, "Once upon a time", {"max_tokens": 200, "ignore_eos": True})


@pytest.fixture(autouse=True)
def same_quire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the worker import the same quire as this process, regardless of the working folder."""
    import quire

    assert quire.__file__ is not None
    monkeypatch.setenv("PYTHONPATH", str(Path(quire.__file__).resolve().parent.parent))


@asynccontextmanager
async def running(config: dict[str, object] | None = None, watch: Watch = PATIENT) -> AsyncIterator[WorkerSupervisor]:
    engine = WorkerSupervisor(Open(None, config or CONFIG), watch, SCRIPT)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


def run(test: Callable[[WorkerSupervisor], Awaitable[None]], watch: Watch = PATIENT) -> None:
    async def with_engine() -> None:
        async with running(watch=watch) as engine:
            await test(engine)

    asyncio.run(with_engine())


async def text_of(engine: WorkerSupervisor, work: Work) -> str:
    """Return the answer to a request.  ApiError if it fails."""
    texts = []
    with engine.submit(work) as stream:
        await stream.start()
        while (batch := await stream.batch()) is not None:
            texts += [event.content for event in batch if isinstance(event, Delta)]
    return "".join(texts)


async def code_of(engine: WorkerSupervisor, work: Work) -> str:
    try:
        await text_of(engine, work)
    except ApiError as error:
        return error.code
    return "answered"


async def until(holds: Callable[[], bool], limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def until_ready(engine: WorkerSupervisor, before: int | None) -> None:
    await until(lambda: engine.state is EngineState.READY and engine.process_id != before)


STORY = Generate(0, "Once upon a time", GREEDY)


@pytest.mark.parametrize("prompt", ["abort", "kill", "stop", "mute"])
def test_a_worker_that_crashes_or_hangs_is_restarted(prompt: str) -> None:
    async def test(engine: WorkerSupervisor) -> None:
        expected = await text_of(engine, STORY)
        before = engine.process_id
        other = asyncio.ensure_future(code_of(engine, LONG))
        await asyncio.sleep(0.05)
        ended = asyncio.ensure_future(code_of(engine, Generate(0, prompt, {"max_tokens": 200, "ignore_eos": True})))
        if prompt == "mute":
            assert await ended == "answered"
            await until(lambda: engine.state is not EngineState.READY)
        else:
            assert await asyncio.wait_for(ended, 120) == "worker_lost"
            assert await asyncio.wait_for(other, 120) in ("worker_lost", "answered")
        with pytest.raises(ApiError) as refused:
            engine.submit(STORY)
        assert refused.value.status == 503
        assert refused.value.retry_after_s is not None
        await until_ready(engine, before)
        assert await text_of(engine, STORY) == expected
        assert engine.n_restarts == 1
        assert before is not None
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)

    run(test, QUICK if prompt in ("stop", "mute") else PATIENT)


def test_a_request_that_crashed_the_worker_twice_is_rejected() -> None:
    poison = Generate(0, "abort", GREEDY)

    async def test(engine: WorkerSupervisor) -> None:
        for _ in range(2):
            before = engine.process_id
            assert await code_of(engine, poison) == "worker_lost"
            await until_ready(engine, before)
        assert await code_of(engine, poison) == "poison_request"
        assert await code_of(engine, STORY) == "answered"
        assert engine.n_restarts == 2

    run(test)


def test_a_worker_killed_from_outside_implicates_no_request() -> None:
    async def test(engine: WorkerSupervisor) -> None:
        for _ in range(2):
            before = engine.process_id
            assert before is not None
            under_way = asyncio.ensure_future(code_of(engine, LONG))
            await until(lambda: engine.n_active == 1)
            os.kill(before, signal.SIGKILL)
            assert await under_way == "worker_lost"
            await until_ready(engine, before)
        assert await code_of(engine, LONG) == "answered"

    run(test)


def test_an_exception_fails_only_its_request() -> None:
    async def test(engine: WorkerSupervisor) -> None:
        before = engine.process_id
        other = asyncio.ensure_future(code_of(engine, LONG))
        assert await code_of(engine, Generate(0, "throw", {})) == "internal_error"
        assert await other == "answered"
        assert engine.process_id == before

    run(test)


def test_cancellations_free_blocks() -> None:
    async def test(engine: WorkerSupervisor) -> None:
        for delay_s in (0.0, 0.001, 0.01, 0.05):
            streams = [engine.submit(Generate(0, f"{i} of many", LONG.params)) for i in range(8)]
            await asyncio.sleep(delay_s)
            for stream in streams:
                stream.close()
        beat = lambda: engine.beat  # noqa: E731
        await until(
            lambda: (now := beat()) is not None and now.n_requests == 0 and now.n_free_blocks == now.n_usable_blocks
        )
        assert engine.n_active == 0

    run(test)


def test_questions_are_answered() -> None:
    async def test(engine: WorkerSupervisor) -> None:
        values = {"text": "a fox", "add_special": False, "parse_special": False, "pieces": True}
        with engine.submit(Ask(0, "tokenize", values)) as stream:
            answer = await stream.answer()
        assert "".join(token["piece"] for token in answer["tokens"]) == "a fox"
        bad = Ask(0, "detokenize", {"tokens": [10**6], "pieces": False})
        with engine.submit(bad) as stream, pytest.raises(ApiError, match="token id"):
            await stream.answer()

    run(test)


def test_a_model_that_does_not_load() -> None:
    async def test() -> None:
        async with running({**CONFIG, "n_ctx": 77}):
            pytest.fail("it must not start")

    with pytest.raises(LoadError, match="does not load"):
        asyncio.run(test())


def test_a_bug_in_the_worker_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        async with running({**CONFIG, "n_ctx": 78}):
            pytest.fail("it must not start")

    with pytest.raises(LoadError, match="exited"):
        asyncio.run(test())
    assert "RuntimeError: a bug in the worker" in capfd.readouterr().err


def test_a_worker_exits_with_its_listener() -> None:
    async def test() -> int:
        engine = WorkerSupervisor(Open(None, CONFIG), QUICK, SCRIPT)
        await engine.start()
        assert engine.process_id is not None
        # As if the listener had been killed: its end of the socket is closed, and nothing else happens.
        assert engine._worker is not None
        assert engine._worker.channel is not None
        assert engine._supervising is not None
        engine._supervising.cancel()
        engine._worker.channel.close()
        await asyncio.to_thread(engine._worker.process.wait, 120)
        return engine._worker.process.returncode

    assert asyncio.run(test()) == 0


def test_frames_are_further_apart_with_more_streams() -> None:
    def apart_s(n_streams: int) -> float:
        return time_apart([Delta(id=i % n_streams, choice=0, content="a", token_ids=[1]) for i in range(200)])

    assert time_apart([]) == apart_s(1) == apart_s(10) == pytest.approx(0.012)
    assert apart_s(32) == pytest.approx(0.0384)
    assert apart_s(200) == pytest.approx(0.05)


def test_a_stalled_listener_does_not_kill_its_worker() -> None:
    """Blocked by one long callback, or by many with pauses in which the watch runs."""

    async def test(engine: WorkerSupervisor) -> None:
        before = engine.process_id
        expected = await text_of(engine, STORY)
        for held_s in (4.2, 0.4, 0.4, 0.4):
            time.sleep(held_s)  # block the event loop
            assert engine.state is EngineState.READY
            await asyncio.sleep(0)
            assert engine.state is EngineState.READY
        await asyncio.sleep(0.5)
        assert (engine.state, engine.process_id, engine.n_restarts) == (EngineState.READY, before, 0)
        assert await text_of(engine, STORY) == expected

    run(test, Watch(silent_s=2.5, hung_s=4.0, check_s=0.05))


def test_stalled_time_does_not_count() -> None:
    true_s = 0.0
    clock = AwakeClock(0.5, lambda: true_s)
    began_s = clock.now()
    for _ in range(10):
        true_s += 0.25
        clock.tick()
    assert clock.now() - began_s == 2.5
    true_s += 60.0
    assert clock.now() - began_s == 3.0
    clock.tick()
    true_s += 0.25
    assert clock.now() - began_s == 3.25
