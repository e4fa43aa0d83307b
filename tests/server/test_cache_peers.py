"""Blocks of the cache from one server to another, and peers that fail in all ways.

Oracle: the answer without peers, and the counts of cached tokens.
"""

from __future__ import annotations

import asyncio
import gc
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from quire.errors import LoadError, RequestError
from quire.routing.front import Front
from quire.server.routes.cache_blocks import BlocksBody
from quire.server.settings import Settings, read_peer_key
from quire.server.worker import peers as peers_module
from quire.server.worker.model_worker import ModelWorker
from quire.server.worker.peers import Peers
from quire.server.worker.protocol import Ask, Open
from served import Served, served, wait_until

KEY = "a-key-of-peers"
PROMPT = [400 + i * 7 % 900 for i in range(300)]


def answer(server: Served, prompt: Sequence[int] = PROMPT, **more: Any) -> tuple[str, int]:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **more}
    with server.client() as client:
        found = client.post("/v1/completions", json=body, headers={"authorization": "Bearer of-a-caller"}).json()
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def metrics(server: Served) -> str:
    with server.client() as client:
        return client.get("/metrics", headers={"authorization": "Bearer of-a-caller"}).text


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A server with the blocks of PROMPT on disk."""
    folder = tmp_path_factory.mktemp("owner")
    (folder / "keys").write_text("of-a-caller\n")
    (folder / "peer").write_text(KEY + "\n")
    with served(folder, options(folder, "cache")) as running:
        answer(running)
        wait_until(lambda: len(list((folder / "cache").rglob("*.kv"))) >= len(PROMPT) // 32)
        yield running, folder


def options(folder: Path, cache: str, *more: str) -> list[str]:
    files = ["--api-key-file", str(folder / "keys"), "--cache-peer-key-file", str(folder / "peer")]
    return [*files, "--cache-disk", str(folder / cache), *more]


def test_a_server_reads_what_its_peer_computed(owner: tuple[Served, Path], tmp_path: Path) -> None:
    there, folder = owner
    with served(tmp_path, options(folder, "other", "--cache-peers", f"http://127.0.0.1:9,{there.url}")) as here:
        text, n_cached = answer(here)
        assert (text, n_cached) == (answer(there)[0], len(PROMPT) // 32 * 32)
        assert answer(here, cache_salt="another")[1] == 0  # its blocks have other names
        wait_until(lambda: f'quire_peer_tokens_total{{model="tiny-chat"}} {len(PROMPT) // 32 * 32}.0' in metrics(here))
        assert "127.0.0.1:9" in here.log  # the peer that is not there costs nothing but a line


def test_only_peers_read_blocks(owner: tuple[Served, Path]) -> None:
    there, folder = owner
    entry = next((folder / "cache").rglob("*.kv"))
    body = {"identity": entry.parent.parent.name, "entries": [entry.stem, "00" * 32 + "-0"]}
    with there.client() as client:
        for key in ("of-a-caller", "-", KEY + "x"):
            refused = client.post("/v1/cache/blocks", json=body, headers={"authorization": f"Bearer {key}"})
            assert refused.status_code == 401
        head = {"authorization": f"Bearer {KEY}"}
        assert client.get("/v1/models", headers=head).status_code == 401  # the peers' key is no caller's
        body["entries"] *= 2  # each is sent once
        assert client.post("/v1/cache/blocks", json=body, headers=head).content == entry.read_bytes()
        held = client.post("/v1/cache/blocks", json={**body, "held_only": True}, headers=head)
        assert held.json() == {"held": [entry.stem]}
        for bad in ({"identity": "../" * 10 + "00"}, {"entries": ["../../keys"]}, {"entries": [entry.stem + "/../x"]}):
            assert client.post("/v1/cache/blocks", json={**body, **bad}, headers=head).status_code == 400


def test_peers_need_a_folder_and_a_key() -> None:
    with pytest.raises(RequestError, match="--cache-disk"):
        Settings(cache_peer_key=KEY)
    with pytest.raises(RequestError, match="--cache-peer-key-file"):
        Settings(cache_peers=("http://host:1",), cache_disk="cache")
    with pytest.raises(RequestError, match="API key"):
        Settings(cache_peer_key=KEY, cache_disk="cache", api_keys=("of-a-caller", KEY))


def test_peers_share_one_key(tmp_path: Path) -> None:
    (tmp_path / "peer").write_text(f"{KEY}\n")
    assert read_peer_key(tmp_path / "peer") == KEY
    (tmp_path / "peer").write_text(f"{KEY}\nanother-key\n")
    with pytest.raises(RequestError, match="2 keys"):
        read_peer_key(tmp_path / "peer")


def test_a_peer_that_refuses_says_why(owner: tuple[Served, Path], caplog: pytest.LogCaptureFixture) -> None:
    there, _ = owner
    assert Peers([there.url], KEY + "x", FakeEngine()).fetch(object()) == 0  # type: ignore[arg-type]
    assert "401: missing or invalid key of a peer" in caplog.text


class FakeEngine:
    """An engine whose prompt lacks two blocks of 64 tokens."""

    def __init__(self, computed: float = 0.0) -> None:
        self.kept: list[bytes] = []
        self.computed = computed

    def find_missing(self, request: object, held: Sequence[str] | None = None) -> tuple[int, list[str]]:
        return (128, ["a", "b"]) if held is None else (64 * len(held), list(held))

    def check_header(self, header: bytes) -> None:
        if int.from_bytes(header[24:32], "little") > 1 << 20:
            raise LoadError("[cache-peers] a block is damaged")

    def keep_record(self, record: bytes) -> bool:
        if b"damaged" in record:
            raise LoadError("[cache-peers] a block is damaged")
        self.kept.append(record)
        return True

    def cache_identity(self) -> str:
        return "00" * 16

    def compute_tokens_per_s(self) -> float:
        return self.computed


def record(contents: bytes) -> bytes:
    return bytes(24) + len(contents).to_bytes(8, "little") + bytes(96) + contents


@contextmanager
def peer(contents: bytes, held: bytes = b'{"held": ["a", "b"]}', wait: threading.Event | None = None) -> Iterator[str]:
    """Run a server that answers the list with ``held`` and then ``contents``, once ``wait`` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found = held if b'"held_only": true' in body else contents
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                if wait is not None and found is contents:
                    self.wfile.write(found[:10])
                    self.wfile.flush()
                    wait.wait(60)
                self.wfile.write(found)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        if wait is not None:
            wait.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("contents", "held", "n_kept"),
    [
        (record(b"one") + record(b"two"), b'{"held": ["a", "b"]}', 2),
        (record(b"one"), b'{"held": ["a", "b"]}', 1),  # evicted meanwhile
        (record(b"damaged") + record(b"two"), b'{"held": ["a", "b"]}', 0),
        (record(b"one") + record(b"two") + record(b"more"), b'{"held": ["a", "b"]}', 2),
        (b"\xff" * 500, b'{"held": ["a", "b"]}', 0),
        (b"", b'{"held": ["a", "b"]}', 0),
        (record(b"one"), b'{"held": {"a": 1}}', 0),
        (record(b"one"), b'["a"]', 0),
        (record(b"one"), b"\x00", 0),
        (record(b"one"), b'{"held": []}', 0),
    ],
)
def test_a_peer_that_sends_something_else_is_a_miss(contents: bytes, held: bytes, n_kept: int) -> None:
    engine = FakeEngine()
    with peer(contents, held) as url:
        found = Peers([url], KEY, engine).fetch(object())  # type: ignore[arg-type]
    gc.collect()  # warns of sockets that were left open
    assert (found, len(engine.kept)) == (128 if n_kept == 2 else 0, n_kept)


def test_a_peer_that_always_has_more_is_asked_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "_ASK_S", 0.1)
    names, n = [str(i) for i in range(1000)], 0

    def held(self: Peers, url: str, names: Sequence[str]) -> Sequence[str]:
        nonlocal n
        n += 1
        time.sleep(0.1)
        return names[:n]

    monkeypatch.setattr(Peers, "_held", held)
    assert Peers(["http://127.0.0.1:9"], KEY, FakeEngine())._held_now("", names) == ["0"]  # type: ignore[arg-type]


def test_a_slow_peer_is_given_up_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "_READ_S", 0.2)
    engine, go_on = FakeEngine(), threading.Event()
    with peer(record(b"one"), wait=threading.Event()) as url:
        peers = Peers([url], KEY, engine)  # type: ignore[arg-type]
        assert peers.fetch(object()) == 0  # type: ignore[arg-type]
        assert peers._ready() == []
        peers.before(object(), "", nullcontext(), go_on.set)  # type: ignore[arg-type]
        assert go_on.wait(60)
        peers.close()
    assert engine.kept == []


def test_a_name_that_is_not_found_in_time_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup cannot be interrupted; it is not started again while it hangs."""
    monkeypatch.setattr(peers_module, "_CONNECT_S", 0.1)
    found, asked = threading.Event(), []
    look_up = socket.getaddrinfo

    def hangs(host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        assert found.wait(60)
        return look_up("127.0.0.1", port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    with peer(record(b"one") + record(b"two")) as url:
        peers = Peers([url.replace("127.0.0.1", "peer.invalid")], KEY, FakeEngine())  # type: ignore[arg-type]
        for _ in range(3):
            assert peers.fetch(object()) == 0  # type: ignore[arg-type]
            peers._failed_s.clear()
        assert (asked, peers.n_failures) == (["peer.invalid"], 3)
        found.set()
        monkeypatch.setattr(peers_module, "_CONNECT_S", 60.0)
        assert peers.fetch(object()) == 128  # type: ignore[arg-type]
        peers.close()


def test_a_long_prompt_asks_for_no_more_than_a_peer_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Peers, "_held", lambda self, url, names: asked.append(len(names)))
    engine = FakeEngine()
    monkeypatch.setattr(engine, "find_missing", lambda request, held=None: (10**6, ["a"] * 30_000))
    Peers(["http://127.0.0.1:9"], KEY, engine).fetch(object())  # type: ignore[arg-type]
    (schema,) = msgspec.json.schema(BlocksBody)["$defs"].values()
    assert asked == [schema["properties"]["entries"]["maxItems"]]


def test_waiting_for_the_disk_keeps_no_request_waiting() -> None:
    told, done = queue.SimpleQueue[Any](), threading.Event()
    worker = ModelWorker(Open(None, {"threads": 1}), lambda messages: [told.put(each) for each in messages])
    try:
        worker._questions.add({"await_written": lambda: done.wait(60)})
        for i in range(8):
            worker.handle(Ask(i, "await_written", {}))
        worker.handle(Ask(8, "detokenize", {"ids": []}))
        assert told.get(timeout=60).id == 8
    finally:
        done.set()
        worker.close()


def test_nothing_is_read_where_computing_is_faster() -> None:
    engine = FakeEngine(computed=1e9)
    with peer(record(b"one") + record(b"two")) as url:
        peers = Peers([url], KEY, engine)  # type: ignore[arg-type]
        assert peers.fetch(object()) == 128  # type: ignore[arg-type]
        assert [peers.fetch(object()) for _ in range(32)] == [0] * 31 + [128]  # type: ignore[arg-type]


def test_one_server_reads_a_prompt_and_another_answers(owner: tuple[Served, Path], tmp_path: Path) -> None:
    there, folder = owner
    prompt = PROMPT[::-1] * 3
    with served(tmp_path, options(folder, "third", "--cache-peers", there.url)) as here:
        counts, text, n_cached = asyncio.run(through_a_front(there.url, here.url, prompt))
        assert counts["prefilled"] == 1
        assert (text, n_cached) == (answer(there, prompt)[0], len(prompt) // 32 * 32)


async def through_a_front(prefill: str, to: str, prompt: Sequence[int]) -> tuple[Counter[str], str, int]:
    front = Front([to], prefill=[prefill])
    await front.start()
    try:
        while not all(each.is_ready for each in (*front.replicas, *front.prefill.replicas)):
            await asyncio.sleep(0.01)
        transport = httpx.ASGITransport(front)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
            reply = await client.post("/v1/completions", json=body, headers={"authorization": "Bearer of-a-caller"})
            found = reply.json()
    finally:
        await front.stop()
    return front.counts, found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]
