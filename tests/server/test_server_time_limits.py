"""Requests that wait or run too long.

Oracles: the code and format of each API's errors, written down; the decoder's count of blocks.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from one_call import post
from quire.errors import RequestError
from quire.server.settings import Settings
from quire.server.worker.engine_client import Stream
from quire.server.worker.protocol import Admitted, Delta, FromEngine, Started, Work
from served import served, wait_until

CHAT = {"messages": [{"role": "user", "content": "x"}]}
GENERATE = {"prompt": "x"}
# The first limit is long enough for a busy machine to submit a request.
ALL = {"queue_timeout_s": 0.6, "first_token_timeout_s": 0.8, "request_timeout_s": 1.0}


class StuckEngine(FakeEngine):
    """An engine that gets stuck at a stage: ``waiting``, ``running`` or ``answering``."""

    def __init__(self, how_far: str) -> None:
        super().__init__()
        self.how_far = how_far

    def submit(self, work: Work) -> Stream:
        made, stream = self.open(work)
        messages: list[FromEngine] = [Started(made.id, 3)]
        if self.how_far != "waiting":
            messages.append(Admitted(made.id))
        if self.how_far == "answering":
            messages.append(Delta(made.id, 0, "part", [1]))
        asyncio.get_running_loop().call_soon(self.dispatch, messages)
        return stream


@pytest.mark.parametrize(
    ("how_far", "status", "code"),
    [("waiting", 503, "queue_timeout"), ("running", 504, "first_token_timeout"), ("answering", 504, "timeout")],
)
@pytest.mark.parametrize("asked", [False, True])
def test_each_time_limit_applies_in_turn(how_far: str, status: int, code: str, asked: bool) -> None:
    """The server's limits, or the request's own; each passes before the next one."""
    engine = StuckEngine(how_far)
    body, options = ({**CHAT, **ALL}, {}) if asked else (CHAT, ALL)
    response = post("/v1/chat/completions", body, engine=engine, options=options)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert ("retry-after" in response.headers) == (status == 503)
    assert engine.cancelled == [1]
    assert engine.n_active == 0


def test_a_request_cannot_extend_the_servers_limits() -> None:
    body = {**CHAT, "queue_timeout_s": 3600, "first_token_timeout_s": 3600, "request_timeout_s": 3600}
    response = post("/v1/chat/completions", body, engine=StuckEngine("answering"), options={"request_timeout_s": 0.1})
    assert response.json()["error"]["code"] == "timeout"


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/chat/completions", CHAT, {"error": {"code": "timeout", "type": "timeout_error"}}),
        ("/v1/completions", GENERATE, {"error": {"code": "timeout", "type": "timeout_error"}}),
        ("/v1/generate", GENERATE, {"done": True, "error": {"code": "timeout"}}),
        ("/completion", GENERATE, {"error": {"code": 504, "type": "timeout_error"}}),
        ("/v1/responses", {"input": "x"}, {"type": "error", "code": "timeout"}),
        (
            "/v1/messages", {**CHAT, "model": "fake", "max_tokens": 9},
            {"type": "error", "error": {"type": "timeout_error"}},
        ),
        ("/api/chat", {**CHAT, "model": "fake"}, {"error": "time limit"}),
    ],
)  # fmt: skip
def test_a_stream_ends_with_the_error_of_its_dialect(path: str, body: dict[str, Any], last: dict[str, Any]) -> None:
    engine = StuckEngine("answering")
    response = post(path, {**body, "stream": True}, engine=engine, options={"request_timeout_s": 0.5})
    assert response.status_code == 200
    (line,) = [line for line in response.text.splitlines() if line][-1:]
    event = json.loads(line.removeprefix("data: "))
    for name, value in last.items():
        if not isinstance(value, str):
            assert (event[name] if value is True else {key: event[name][key] for key in value}) == value
        else:
            assert value in event[name]
    assert engine.cancelled == [1]


def test_time_limits_are_validated() -> None:
    for name in ALL:
        with pytest.raises(RequestError, match=name):
            Settings(**{name: 0})
        response = post("/v1/chat/completions", {**CHAT, name: 0})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_timed_out_requests_leave_the_queue_and_free_blocks(tmp_path: Path) -> None:
    # With a batch of one, the second request waits for the first, which has eight answers to write one after the other.
    with served(tmp_path, ["--max-sequences", "1"]) as server, server.client() as client:
        long = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}
        began, over = threading.Event(), threading.Event()

        def read() -> None:
            with client.stream("POST", "/v1/completions", json={**long, "n": 8, "stream": True}) as answer:
                for _ in answer.iter_lines():
                    began.set()
                    if over.is_set():
                        return

        first = threading.Thread(target=read)
        first.start()
        assert began.wait(120)
        second = client.post("/v1/completions", json={**long, "queue_timeout_s": 0.2})
        over.set()
        first.join()
        assert (second.status_code, second.json()["error"]["code"]) == (503, "queue_timeout")
        stopped = client.post("/v1/completions", json={**long, "n": 8, "request_timeout_s": 1.0})
        assert stopped.json()["error"]["code"] == "timeout"
        idle = {"waiting": 0, "running": 0}
        wait_until(lambda: state(client)["cache"]["used"] == 0 and state(client)["queue"] == idle)
        # The queue's limit does not affect a request that runs in time.
        answer = client.post("/v1/completions", json={**long, "max_tokens": 300, "queue_timeout_s": 60}).json()
        assert answer["usage"]["completion_tokens"] == 300


def state(client: httpx.Client) -> Any:
    return client.get("/v1/status").json()["models"][0]
