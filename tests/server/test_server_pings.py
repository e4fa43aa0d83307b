"""Silent streams carry pings: from the first second on, in each API's format, and never after the end."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from one_call import post
from quire.server.listener.pings import Pings
from quire.server.worker.engine_client import Stream
from quire.server.worker.protocol import CallDelta, Delta, Finished, FromEngine, Started, Work

SAID = [{"role": "user", "content": "x"}]
COMMENT = ": ping"
EVENT = 'event: ping\ndata: {"type":"ping"}'
STREAMS = [
    ("/v1/chat/completions", {"messages": SAID}, COMMENT),
    ("/v1/completions", {"prompt": "x"}, COMMENT),
    ("/v1/responses", {"input": "x"}, COMMENT),
    ("/completion", {"prompt": "x"}, COMMENT),
    ("/v1/generate", {"prompt": "x"}, COMMENT),
    ("/v1/messages", {"model": "fake", "messages": SAID, "max_tokens": 9}, EVENT),
]


class SlowEngine(FakeEngine):
    """An engine that sends one token after ``first_s`` and ends ``rest_s`` later.

    With ``call``, the second token belongs to an incomplete tool call, which shows nothing.
    """

    def __init__(self, first_s: float, rest_s: float = 0.0, hidden: int = 0) -> None:
        super().__init__()
        self.first_s, self.rest_s, self.hidden = first_s, rest_s, hidden

    def submit(self, work: Work) -> Stream:
        made, stream = self.open(work)
        self.asked.append(made)
        self.dispatch([Started(made.id, 3)])
        loop = asyncio.get_running_loop()

        def later(after_s: float, *messages: FromEngine) -> None:
            loop.call_later(after_s, self.dispatch, messages)

        later(self.first_s, Delta(made.id, 0, "a", [1]))
        for i in range(self.hidden):  # tokens of a call, which is only shown when complete
            later(self.first_s + self.rest_s * (i + 1) / (self.hidden + 1), Delta(made.id, 0, "", [2]))
        calls = [CallDelta(0, "c", "f", "{}")] if self.hidden else []
        end = Finished(made.id, 0, "stop", None, 3, 0, 2, 0.0, 0.001, 0.002)
        later(self.first_s + self.rest_s, Delta(made.id, 0, "b", [3], "", calls), end)
        return stream


def blocks_of(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return response.text.strip().split("\n\n")


@pytest.mark.parametrize(("path", "body", "ping"), STREAMS)
def test_a_silent_stream_carries_pings_until_the_first_token(path: str, body: dict[str, Any], ping: str) -> None:
    engine, started = SlowEngine(0.55), time.monotonic()
    blocks = blocks_of(post(path, {**body, "stream": True}, engine=engine, options={"ping_s": 0.1}))
    n_most = (time.monotonic() - started) / 0.1
    at = [i for i, block in enumerate(blocks) if block == ping]
    first = next(i for i, block in enumerate(blocks) if '"a"' in block)
    assert 1 <= len(at) <= n_most
    assert all(i < first for i in at)


def test_the_first_ping_comes_after_a_second_at_most() -> None:
    body = {"messages": SAID, "stream": True}
    blocks = blocks_of(post("/v1/chat/completions", body, engine=SlowEngine(1.3), options={"ping_s": 60}))
    assert blocks.count(COMMENT) == 1


def test_invisible_tokens_count_as_silence() -> None:
    """Tokens of a long tool call arrive one by one, but the client only sees the complete call."""
    body = {"model": "fake", "messages": SAID, "max_tokens": 9, "stream": True}
    started = time.monotonic()
    blocks = blocks_of(post("/v1/messages", body, engine=SlowEngine(0.0, 0.5, hidden=20), options={"ping_s": 0.1}))
    first = next(i for i, block in enumerate(blocks) if '"a"' in block)
    assert 1 <= blocks[first:].count(EVENT) <= (time.monotonic() - started) / 0.1
    assert json.loads(blocks[-1].partition("data: ")[2]) == {"type": "message_stop"}


def test_no_ping_follows_a_last_piece_sent_at_the_same_moment() -> None:
    sent: list[bytes] = []

    async def send(piece: bytes) -> None:
        sent.append(piece)

    async def stream() -> None:
        pings = Pings(send, b"ping", 0.01)
        time.sleep(0.02)  # the timer is due
        for _ in range(2):  # it fires and makes the ping's task, which has not run yet
            await asyncio.sleep(0)
        pings.carrying()
        await send(b"end")
        pings.carried()
        await pings.finish()

    asyncio.run(stream())
    assert sent == [b"end"]


@pytest.mark.parametrize(("asked", "own", "n"), [(-1, 0.1, 0), (0, 0.1, 0), (0.1, -1, 1), (None, -1, 0)])
def test_a_request_may_set_the_ping_interval(asked: float | None, own: float, n: int) -> None:
    body = {"prompt": "x", "stream": True, "sse_ping_interval": asked}
    blocks = blocks_of(post("/completion", body, engine=SlowEngine(0.35), options={"ping_s": own}))
    assert min(blocks.count(COMMENT), 1) == n


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_lines_of_json_have_no_pings(path: str) -> None:
    body = {"model": "fake", "messages": SAID} if path == "/api/chat" else {"model": "fake", "prompt": "x"}
    response = post(path, body, engine=SlowEngine(0.35), options={"ping_s": 0.1})
    assert all(json.loads(line) for line in response.text.splitlines())


def test_whole_answers_have_no_pings() -> None:
    response = post("/v1/chat/completions", {"messages": SAID}, engine=SlowEngine(0.35), options={"ping_s": 0.1})
    assert response.json()["choices"][0]["message"]["content"] == "ab"
