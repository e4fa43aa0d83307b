"""Streams that outlive their connection.  Oracle: what the first connection was sent before it was lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from quire.server.failures import ApiError
from quire.server.service import stream_buffers
from quire.server.service.caller import Caller
from quire.server.service.stream_buffers import StreamBuffers
from served import Served, wait_until

ID = "a-stream-of-the-test"
BODY = {
    "messages": [{"role": "user", "content": "Tell a story"}],
    "stream": True,
    "max_tokens": 300,
    "ignore_eos": True,
}


def events_of(response: httpx.Response, n: int | None = None) -> list[Any]:
    found = []
    for line in response.iter_lines():
        if line.startswith("data: {"):
            found.append(json.loads(line[6:]))
        if n is not None and len(found) >= n:
            break
    return found


def stream(client: httpx.Client, path: str, body: dict[str, Any], **options: Any) -> Any:
    return client.stream("POST", path, json=body, **options)


def test_a_lost_stream_is_read_again_from_its_start(server: Served) -> None:
    with server.client() as client:
        with stream(client, "/v1/chat/completions", BODY, headers={"x-quire-stream-id": ID}) as first:
            before = events_of(first, 5)
        with stream(client, "/v1/streams/resume", {"id": ID}) as again:
            after = events_of(again)
        assert after[:5] == before
        assert after[-1]["choices"][0]["finish_reason"] == "length"
        # The id is taken, and an unknown or malformed one is an error.
        taken = client.post("/v1/chat/completions", json=BODY, headers={"x-quire-stream-id": ID})
        assert (taken.status_code, taken.json()["error"]["code"]) == (409, "stream_exists")
        assert client.post("/v1/chat/completions", json=BODY, headers={"x-quire-stream-id": "short"}).status_code == 400
        assert client.post("/v1/streams/resume", json={"id": "another-stream-of-the-test"}).status_code == 404


def test_a_lost_stream_is_cancelled(server: Served) -> None:
    id_ = ID + "-2"
    with server.client() as client:
        body = {**BODY, "max_tokens": 1900}
        with stream(client, "/v1/chat/completions", body, headers={"x-quire-stream-id": id_}) as first:
            events_of(first, 2)
        assert client.post("/v1/streams/cancel", json={"id": id_}).json() == {"success": True}
        with stream(client, "/v1/streams/resume", {"id": id_}) as again:
            assert events_of(again)[-1]["error"]["code"] == "stream_cancelled"
        wait_until(lambda: client.get("/v1/status").json()["models"][0]["queue"]["running"] == 0)


def test_a_stream_cannot_resume_itself(server: Served) -> None:
    with server.client() as client:
        id_ = "itself-0123456789"
        found = client.post("/v1/streams/resume", json={"id": id_}, headers={"x-quire-stream-id": id_})
        assert "stream_not_found" in found.text


async def _read(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


def test_buffers_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_buffers, "_MOST_BYTES", 10)
    monkeypatch.setattr(stream_buffers, "_CHECK_S", 0.001)
    now = 0.0

    async def run() -> None:
        nonlocal now
        buffers, caller, other = StreamBuffers(lambda: now), Caller("a"), Caller("b")
        one, two = (buffers.open(caller, name) for name in (b"stream-number-one", b"stream-number-two"))
        assert one is not None
        assert two is not None
        jobs = [asyncio.ensure_future(asyncio.sleep(60)) for _ in range(2)]
        one.follow(jobs[0])
        two.follow(jobs[1])
        one.add(b"12345")
        two.add(b"123456")  # one byte too many: not kept, and its space is free again
        assert buffers.n_bytes == 5
        with pytest.raises(ApiError, match="too long"):
            await _read(two.read())
        with pytest.raises(ApiError):
            buffers.get(other, "stream-number-one")  # another caller's
        # A job that nobody reads ends after a minute; somebody who reads keeps it.
        leaving = asyncio.ensure_future(one.outlive(jobs[0]))
        reading = asyncio.ensure_future(_read(one.read()))
        await asyncio.sleep(0.01)
        now = 100.0
        await asyncio.sleep(0.01)
        assert not leaving.done()
        reading.cancel()
        await asyncio.sleep(0.01)
        assert not leaving.done()
        now = 161.0
        await asyncio.wait_for(leaving, 60)
        one.cancel()
        await asyncio.sleep(0)
        now = 300.0
        with pytest.raises(ApiError):
            buffers.get(caller, "stream-number-one")
        assert buffers.n_bytes == 0
        jobs[1].cancel()

    asyncio.run(run())
