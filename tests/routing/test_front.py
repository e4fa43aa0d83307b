"""The front of several servers: streams, failures and refusals, with small servers in place of models."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from quire.cli.main import main
from quire.routing import prefill as prefilling
from quire.routing import replicas as watching
from quire.routing.front import Front
from quire.routing.prefix_index import PrefixIndex
from quire.routing.serve import Protocol
from uvicorn.server import ServerState

pytestmark = pytest.mark.python_only

Handler = Callable[[str, asyncio.StreamWriter], Awaitable[None]]
LONG = "river house tree cat " * 100
EVENTS = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Stub:
    """An HTTP server whose handler answers everything but ``/health``."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.health = 200
        self.is_silent = False
        self.asked: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.forwarded = asyncio.Event()  # part of an answer has been passed on

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        """Close everything, as a killed process does."""
        self._server.close()
        for writer in self.writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = (await reader.readexactly(int(fields.get("content-length", 0)))).decode()
                if self.is_silent:
                    await asyncio.sleep(60)
                if head.startswith("GET /health"):
                    writer.write(f"HTTP/1.1 {self.health} X\r\ncontent-length: 0\r\n\r\n".encode())
                else:
                    self.asked.append(head + body)
                    await self._handler(body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def ok(body: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")


async def hang(body: str, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def stop(body: str, writer: asyncio.StreamWriter) -> None:
    said = b'{"error": {"code": "shutting_down"}}'
    writer.write(f"HTTP/1.1 503 X\r\ncontent-length: {len(said)}\r\n\r\n".encode() + said)


def chunk(text: str) -> bytes:
    return f"{len(text):x}\r\n{text}\r\n".encode()


async def begin(body: str, writer: asyncio.StreamWriter) -> None:
    """Stream one event, then nothing."""
    writer.write(EVENTS.encode() + chunk("data: 1\n\n"))
    await asyncio.sleep(60)


@asynccontextmanager
async def routed(*handlers: Handler, **options: Any) -> AsyncIterator[tuple[list[Stub], Front, httpx.AsyncClient]]:
    stubs = [Stub(handler) for handler in handlers]
    front = Front([await stub.start() for stub in stubs], **options)
    await front.start()
    while not all(replica.is_ready for replica in front.replicas):
        await asyncio.sleep(0.01)

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            await send(message)
            if message.get("body"):
                stubs[0].forwarded.set()

        await front(scope, receive, sent)

    transport = httpx.ASGITransport(watched)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield stubs, front, client
    finally:
        await front.stop()
        for stub in stubs:
            await stub.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


async def ask(client: httpx.AsyncClient, text: str = LONG, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions?a=b", json={"messages": [{"role": "user", "content": text}], **more})


def test_requests_arrive_as_they_were_sent_and_conversations_stay() -> None:
    async def test() -> None:
        async with routed(ok, ok) as (stubs, front, client):
            headers = {"authorization": "Bearer x", "origin": "http://localhost"}
            sent = await client.post("/v1/chat/completions?a=b", json={"prompt": LONG}, headers=headers)
            assert (sent.status_code, sent.json()) == (200, {})
            (asked,) = stubs[0].asked + stubs[1].asked
            assert asked.startswith("POST /v1/chat/completions?a=b HTTP/1.1\r\n")
            assert json.loads(asked.partition("\r\n\r\n")[2]) == {"prompt": LONG}
            assert "authorization: Bearer x" in asked
            assert "origin:" not in asked  # the front's own page
            for _ in range(6):
                await client.post("/v1/completions", json={"prompt": LONG + "x"}, headers={"authorization": "Bearer x"})
            assert {len(stub.asked) for stub in stubs} == {0, 7}
            assert front.counts["matched"] == 6 * (len(LONG) // 256)
            foreign = await client.get("/v1/models", headers={"origin": "http://evil.example"})
            assert foreign.status_code == 200
            assert any("origin: http://evil.example" in each for stub in stubs for each in stub.asked)

    run(test)


@pytest.mark.parametrize("first", [stop, hang])
def test_another_server_answers_for_one_that_fails_before_it_answers(first: Handler) -> None:
    async def test() -> None:
        async with routed(first, ok) as (stubs, front, client):
            front.replicas[1].n_active = 3  # so that the first one is asked
            asking = asyncio.create_task(ask(client))
            while not stubs[0].asked:
                await asyncio.sleep(0.01)
            if first is hang:
                await stubs[0].stop()
            assert (await asking).status_code == 200
            assert len(stubs[1].asked) == 1
            assert front.counts["retried"] == 1

    run(test)


def test_a_stream_that_breaks_ends_with_an_error() -> None:
    async def test() -> None:
        async with routed(begin) as (stubs, front, client):
            asking = asyncio.create_task(ask(client, stream=True))
            await stubs[0].forwarded.wait()
            await stubs[0].stop()
            lines = [line for line in (await asking).text.splitlines() if line]
            assert lines[0] == "data: 1"
            assert json.loads(lines[1].removeprefix("data: "))["error"]["code"] == "replica_lost"
            assert front.counts["broken"] == 1

    run(test)


def test_a_server_that_no_longer_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "EVERY_S", 0.02)
    monkeypatch.setattr(watching, "_TIMEOUT_S", 0.5)

    async def test() -> None:
        async with routed(begin) as (stubs, _, client):
            asking = asyncio.create_task(ask(client, stream=True))
            await stubs[0].forwarded.wait()
            stubs[0].is_silent = True
            assert "replica_lost" in (await asking).text

    run(test)


def test_a_client_that_goes_away_ends_the_request() -> None:
    async def test() -> None:
        ended = asyncio.Event()

        async def endless(body: str, writer: asyncio.StreamWriter) -> None:
            writer.write(EVENTS.encode())
            try:
                while True:
                    writer.write(chunk("data: 1\n\n"))
                    await writer.drain()
                    await asyncio.sleep(0.01)
            finally:
                ended.set()

        async with routed(endless) as (_, front, _):
            parts = [{"type": "http.request", "body": b"{}"}]
            gone = asyncio.Event()

            async def receive() -> Any:
                if parts:
                    return parts.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                gone.set()

            scope = {
                "type": "http",
                "method": "POST",
                "path": "/x",
                "query_string": b"",
                "headers": [(b"host", b"localhost")],
            }
            await front(scope, receive, send)
            await ended.wait()
            assert front.replicas[0].n_active == 0

    run(test)


def test_refusals() -> None:
    async def test() -> None:
        async with routed(ok) as (stubs, front, client):
            for host in ("evil.example", "", "127.0.0.1.evil.example"):
                refused = await client.get("/v1/models", headers={"host": host})
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed")
            assert "quire_route_ready" in (await client.get("/metrics")).text
            stubs[0].health = 503
            while front.replicas[0].is_ready:
                await asyncio.sleep(0.01)
            front.replicas[0].lost.set()
            assert stubs[0].asked == []

    run(test)


def test_without_a_server_the_answer_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.routing.front._WAIT_S", 0.2)

    async def test() -> None:
        front = Front(["http://127.0.0.1:9"])
        await front.start()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://localhost") as client:
            refused = await ask(client)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replica")
        await front.stop()

    run(test)


def scope_of(path: str, method: str = "POST", headers: Any = ()) -> dict[str, Any]:
    return {
        "type": "http", "method": method, "path": path, "query_string": b"",
        "headers": [(b"host", b"localhost"), *headers],
    }  # fmt: skip


async def raw(front: Front, scope: dict[str, Any], *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Call the application with messages of a client that stays; return what it sends."""
    left, sent = list(messages), []

    async def receive() -> Any:
        return left.pop(0) if left else await asyncio.Future()

    async def send(message: Any) -> None:
        sent.append(message)

    await front(scope, receive, send)
    return sent


def test_what_may_have_acted_is_not_sent_again_and_nothing_is_sent_to_all() -> None:
    async def drop(body: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"garbage\r\n\r\n")
        writer.close()

    async def test() -> None:
        async with routed(drop, drop, drop) as (stubs, _, client):
            for path, most in (("/v1/batches", 1), ("/v1/responses", 1), ("/v1/chat/completions", 2)):
                for stub in stubs:
                    stub.asked.clear()
                lost = await client.post(path, json={})
                assert (lost.status_code, lost.json()["error"]["code"]) == (502, "replica_lost")
                assert sum(len(stub.asked) for stub in stubs) == most

    run(test)


def test_only_whole_requests_and_no_foreign_headers_arrive() -> None:
    async def empty(body: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 X\r\nconnection: x-b\r\nx-b: 1\r\ncontent-length: 3\r\n")
        writer.write(b"content-encoding: gzip\r\n\r\nabc")

    async def test() -> None:
        async with routed(empty) as (stubs, front, _):
            part = {"type": "http.request", "body": b"{}", "more_body": True}
            assert await raw(front, scope_of("/v1/files"), part, {"type": "http.disconnect"}) == []
            for path in ("*", "http://evil.example/", "@evil.example/", "/v1/../metrics"):
                (start, _) = await raw(front, scope_of(path), {"type": "http.request"})
                assert start["status"] == 400
            for header in ((b"a b", b"1"), (b"host", b"evil.example")):
                (start, _) = await raw(front, scope_of("/x", headers=[header]), {"type": "http.request"})
                assert (start["status"], front.replicas[0].is_ready) == (400, True)
            assert stubs[0].asked == []
            assert front._bodies._n_held == 0
            named = [(b"connection", b"X-Secret, close"), (b"x-secret", b"1"), (b"transfer-encoding", b"chunked")]
            start, *pieces = await raw(front, scope_of("/x", headers=named), {"type": "http.request", "body": b"{}"})
            (asked,) = stubs[0].asked
            assert not any(name in asked.lower() for name in ("x-secret", "chunked", "accept-encoding", "user-agent"))
            assert asked.lower().count("content-length: 2") == 1
            assert (start["status"], b"x-b" in dict(start["headers"])) == (503, False)
            assert b"".join(piece["body"] for piece in pieces) == b"abc"  # as it was sent

    run(test)


def test_heads_have_limits_and_old_clients_get_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get(port: int, head: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        try:
            return (await reader.read(1000)).decode()
        finally:
            writer.close()

    async def test() -> None:
        async with routed(ok) as (_, front, _):
            config = uvicorn.Config(front, lifespan="off", ws="none", log_config=None)
            config.load()
            state = ServerState()
            server = await asyncio.get_running_loop().create_server(
                lambda: Protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
            )
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setattr("quire.routing.serve._HEAD_S", 0.1)
            assert await get(port, "GET /x HTTP/1.1\r\nhost: localhost\r\n") == ""  # closed after a while
            monkeypatch.undo()
            answer = await get(port, "GET /x HTTP/1.0\r\nhost: localhost\r\n\r\n")
            assert "content-length: 2\r\n" in answer
            assert "chunked" not in answer
            assert " 400 " in await get(port, "GET /x HTTP/1.1\r\nhost: localhost\r\na: " + "b" * 70_000)
            server.close()
            while state.connections:
                await asyncio.sleep(0.01)

    run(test)


@pytest.mark.parametrize("url", ["http://user:secret@host", "http://host/base", "http://host:x", "http://", "host:80"])
def test_urls_with_more_than_a_host_are_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "--to", url]) == 2
    assert "secret" not in capsys.readouterr().err


def test_serving_on_ray_says_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "ray.serve"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it was not installed
    for name in [name for name in sys.modules if name.startswith("quire.ray.")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["serve", "--ray", "local"]) == 1
    assert 'pip install "quire-llm[ray]"' in capsys.readouterr().err
    assert main(["serve", "--ray", "local", "--host", "0.0.0.0"]) == 1
    assert "--api-key-file" in capsys.readouterr().err
    assert main(["serve", "--ray-arg", "replicas=2"]) == 2
    assert "--ray" in capsys.readouterr().err


def test_a_request_that_comes_back_is_refused() -> None:
    async def test() -> None:
        async with routed(ok) as (stubs, _, client):
            await client.get("/v1/models", headers={"x-quire-front": "another"})
            lines = stubs[0].asked[0].split("\r\n")
            passed = [line.partition(": ")[2] for line in lines if line.startswith("x-quire-front: ")]
            assert passed[0] == "another"
            headers = [("x-quire-front", each) for each in passed]
            refused = await client.get("/v1/models", headers=headers)
            assert (refused.status_code, len(stubs[0].asked)) == (508, 1)
            assert "--to" in refused.json()["error"]["message"]

    run(test)


def test_long_prompts_are_read_by_servers_for_prefill() -> None:
    async def test() -> None:
        prefill = Stub(ok)
        async with routed(ok, prefill=[await prefill.start()]) as (stubs, front, client):
            while not front.prefill.replicas[0].is_ready:
                await asyncio.sleep(0.01)
            more = {"max_completion_tokens": 50, "stream": True, "temperature": 0, "n": 2}
            assert (await ask(client, LONG, **more)).status_code == 200
            (asked,) = (json.loads(each.partition("\r\n\r\n")[2]) for each in prefill.asked)
            message = [{"role": "user", "content": LONG}]
            assert asked == {"messages": message, "temperature": 0, "max_tokens": 1, "stream": False}
            assert json.loads(stubs[0].asked[0].partition("\r\n\r\n")[2]) == {"messages": message, **more}
            await ask(client, "short")
            await ask(client, LONG)  # known
            await client.post("/v1/embeddings", json={"input": LONG * 2})
            assert (len(prefill.asked), front.counts["prefilled"]) == (1, 1)
            await prefill.stop()
            assert (await ask(client, "another " + LONG)).status_code == 200  # computed by the other server alone
            assert front.counts["prefilled"] == 1

    run(test)


def test_a_prefill_server_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its health is good all the time.  Who waits for it meanwhile goes on, too."""
    monkeypatch.setattr(prefilling, "_LEAST_S", 0.3)
    monkeypatch.setattr(prefilling, "_BLOCK_S", 0.0)

    async def test() -> None:
        prefill = Stub(hang)
        async with routed(ok, prefill=[await prefill.start()]) as (stubs, front, client):
            while not front.prefill.replicas[0].is_ready:
                await asyncio.sleep(0.01)
            answers = await asyncio.gather(*(ask(client, f"{i} {LONG}") for i in range(3)))
            n_asked = len(prefill.asked)
            answers.append(await ask(client, "later " + LONG))
            assert front.prefill.replicas[0].is_ready
            assert [each.status_code for each in answers] == [200] * 4
            assert (len(prefill.asked), len(stubs[0].asked), front.counts["prefilled"]) == (n_asked, 4, 0)
            monkeypatch.setattr(prefilling, "REST_S", 0.0)
            front.prefill._rests.clear()  # a while later
            await ask(client, "much later " + LONG)
            assert len(prefill.asked) == n_asked + 1
            await prefill.stop()

    run(test)


def test_a_prompt_is_looked_up_once_for_each_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    matches = PrefixIndex.matches
    monkeypatch.setattr(PrefixIndex, "matches", lambda self, hashes: looks.append(1) or matches(self, hashes))

    async def test() -> None:
        prefill = Stub(ok)
        async with routed(ok, prefill=[await prefill.start()]) as (_, front, client):
            while not front.prefill.replicas[0].is_ready:
                await asyncio.sleep(0.01)
            await ask(client, LONG)
            # The router looked for a server that answers and for one that prefills.
            assert (len(looks), front.counts["prefilled"]) == (2, 1)
            await ask(client, LONG)
            assert (len(looks), front.counts["matched"]) == (3, len(LONG) // 256)
            await prefill.stop()

    run(test)
