"""Unread answers are paused: checks the messages to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fake_engine import FakeEngine
from quire.server.worker.engine_client import Stream
from quire.server.worker.protocol import Delta, Failed, Finished, Generate, Logprob, Started

END = Finished(1, 0, "stop", None, 3, 0, 9, 0.0, 0.001, 0.002)


def run(case: Callable[[FakeEngine, Stream], Awaitable[None]]) -> FakeEngine:
    async def opened() -> None:
        engine.dispatch([Started(1, 3)])
        await stream.start()
        await case(engine, stream)

    engine = FakeEngine([None])
    _, stream = engine.open(Generate(0, "x", {}))
    asyncio.run(opened())
    return engine


def test_an_unread_answer_is_paused_once_and_resumed() -> None:
    async def case(engine: FakeEngine, stream: Stream) -> None:
        for _ in range(3):
            engine.dispatch([Delta(1, 0, "x" * 30_000, [1, 2])])
        assert engine.pauses == [(1, True)]
        assert (stream.n_unread_bytes > 90_000, stream.n_unread_tokens) == (True, 6)
        engine.dispatch([Delta(1, 0, "y", [3])])
        assert len(await stream.batch() or ()) == 4
        assert engine.pauses == [(1, True), (1, False)]
        assert stream.n_unread_bytes == 0

    run(case)


def test_a_waiting_reader_gets_any_amount() -> None:
    async def case(engine: FakeEngine, stream: Stream) -> None:
        reading = asyncio.ensure_future(stream.batch())
        await asyncio.sleep(0)
        engine.dispatch([Delta(1, 0, "x" * 50_000, [1])] * 9)
        assert len(await reading or ()) == 9

    assert run(case).pauses == []


def test_logprobs_count_like_text() -> None:
    logprob = Logprob(1, b"a", -0.5, [(1, b"a", -0.5)] * 20)

    async def case(engine: FakeEngine, stream: Stream) -> None:
        engine.dispatch([Delta(1, 0, "a", [1], logprobs=[logprob])] * 200)
        assert engine.pauses == [(1, True)]

    run(case)


def test_a_finished_answer_is_not_paused() -> None:
    async def case(engine: FakeEngine, stream: Stream) -> None:
        engine.dispatch([Delta(1, 0, "x" * 60_000, [1]), END])
        assert len(await stream.batch() or ()) == 2
        engine.dispatch([Failed(1, "Lost", "x")])
        stream.close()

    engine = run(case)
    assert (engine.pauses, engine.cancelled) == ([], [])
