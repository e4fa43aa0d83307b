"""Models that appear, disappear and change while a server runs, and who may unload them.

Oracles: the files that the test writes and deletes; the thread and the number of scans; the documented answers of
Ollama and of this server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from one_call import post
from quire.engine.loading.loader import packaged_model
from quire.errors import LoadError
from quire.server.app import build_app
from quire.server.service.catalog import Catalog
from quire.server.service.library import Library
from quire.server.service.model_files import find_models, size_of
from quire.server.service.service import Service
from quire.server.settings import Settings
from served import Served, served

LIMIT_S = 120.0
BODY = {"prompt": "Once", "max_tokens": 2}


class Shelf:
    """A model source that counts scans and records their threads."""

    def __init__(self) -> None:
        self.models = {"a": 1}
        self.n_looks = 0
        self.threads: set[int] = set()
        self.changed_ns = 1
        self.error: Exception | None = None
        self.seconds = 0.0

    def look(self) -> dict[str, int]:
        self.n_looks += 1
        self.threads.add(threading.get_ident())
        found = dict(self.models)
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return found


def test_scans_are_shared_and_run_off_the_loop() -> None:
    async def test() -> None:
        shelf = Shelf()
        catalog = Catalog(shelf.look)
        shelf.threads.clear()
        shelf.seconds = 0.02
        found = await asyncio.gather(*(catalog.renew() for _ in range(8)))
        assert shelf.n_looks == 2
        assert threading.get_ident() not in shelf.threads
        assert found == [{"a": 1}] * 8
        # A scan requested during another one starts after it.
        first = asyncio.ensure_future(catalog.renew(force=True))
        await asyncio.sleep(0.01)
        shelf.models["b"] = 2
        assert await catalog.renew(force=True) == {"a": 1, "b": 2}
        await first

    asyncio.run(test())


def test_no_scan_runs_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.server.service.catalog._FRESH_S", LIMIT_S)

    async def test() -> None:
        shelf = Shelf()
        catalog = Catalog(shelf.look, lambda: shelf.changed_ns)
        for _ in range(5):
            await catalog.renew()
        assert shelf.n_looks == 2
        shelf.changed_ns = time.time_ns() + 10**12
        await catalog.renew()
        assert shelf.n_looks == 3
        await catalog.renew()  # such a recent change may hide another one
        assert shelf.n_looks == 4

    asyncio.run(test())


def test_a_failed_scan_keeps_the_known_models(capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        shelf = Shelf()
        catalog = Catalog(shelf.look)
        shelf.error = LoadError("[registry] models.toml is broken")
        for _ in range(3):
            assert await catalog.renew(force=True) == {"a": 1}
        shelf.error, shelf.models = None, {"b": 2}
        assert await catalog.renew(force=True) == {"b": 2}

    asyncio.run(test())
    assert capsys.readouterr().err.count("models.toml is broken") == 1


def test_files_are_found_and_measured(tmp_path: Path) -> None:
    for name, size in (
        ("one.gguf", 10),
        ("two-00001-of-00003.gguf", 20),
        ("two-00002-of-00003.gguf", 30),
        ("x.txt", 1),
    ):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    (tmp_path / "folder" / "w.safetensors").write_bytes(bytes(7))
    (tmp_path / "far-00001-of-99999.gguf").write_bytes(bytes(3))
    found = find_models(tmp_path)
    assert {name: size_of(path) for name, path in found.items()} == {"one": 10, "two": 50, "folder": 7, "far": 3}


# Permission to unload a model

KEYS = ("the-first-secret", "the-second-secret")
FIRST, SECOND = ({"authorization": f"Bearer {key}"} for key in KEYS)


class Shop:
    """A server with models ``a`` (loaded from the start) and ``b``, and requests with keys."""

    def __init__(self, **options: Any) -> None:
        def make(name: str, share: int, n_ctx: int | None) -> FakeEngine:
            return FakeEngine()

        self.library = Library("a", lambda: {"a": 1, "b": 1}, make, 100)
        self.library.open_from_start("a")
        self.service = Service(Settings(access_log=False, **options), self.library)

    def ask(self, *requests: tuple[str, dict[str, Any], dict[str, str]]) -> list[httpx.Response]:
        async def run() -> list[httpx.Response]:
            transport = httpx.ASGITransport(build_app(self.service))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
                answers = [await client.post(path, json=body, headers=key) for path, body, key in requests]
                await asyncio.sleep(0.02)
                return answers

        return asyncio.run(run())


def complete(name: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {**BODY, "model": name}


@pytest.mark.parametrize("action", ["unload", "reload"])
def test_a_key_unloads_only_models_it_loaded(action: str) -> None:
    shop = Shop(api_keys=KEYS)
    path = f"/v1/models/{action}"
    opened, refused, own, of_server = shop.ask(
        (*complete("b"), FIRST),
        (path, {"model": "b"}, SECOND),
        (path, {"model": "b"}, FIRST),
        (path, {"model": "a"}, FIRST),
    )
    assert opened.status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_allowed")
    assert own.status_code == 200
    assert of_server.status_code == 403
    assert sorted(shop.library.engines()) == (["a"] if action == "unload" else ["a", "b"])


@pytest.mark.parametrize("options", [{}, {"api_keys": KEYS, "allow_changes": True}], ids=["no keys", "allowed"])
def test_without_keys_anybody_may_unload(options: dict[str, Any]) -> None:
    shop = Shop(**options)
    for name in ("a", "b"):
        opened, closed = shop.ask((*complete(name), FIRST), ("/v1/models/unload", {"model": name}, SECOND))
        assert (opened.status_code, closed.status_code) == (200, 200)
    assert shop.library.engines() == {}


def test_keep_alive_has_no_effect_on_models_of_other_keys() -> None:
    shop = Shop(api_keys=KEYS)
    question = {"model": "b", "prompt": "x", "stream": False}
    zero = {**question, "keep_alive": 0}
    _, kept = shop.ask(("/api/generate", question, FIRST), ("/api/generate", zero, SECOND))
    assert kept.status_code == 200
    assert "keep_alive" in kept.headers["x-quire-ignored"]
    assert "b" in shop.library.engines()
    (refused,) = shop.ask(("/api/generate", {"model": "b", "keep_alive": 0, "stream": False}, SECOND))
    assert refused.status_code == 403
    (closed,) = shop.ask(("/api/generate", zero, FIRST))
    assert "x-quire-ignored" not in closed.headers
    assert "b" not in shop.library.engines()


# Files that disappear or change under a server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    home = tmp_path_factory.mktemp("server")
    (home / "models").mkdir()
    with served(home, ["--models-dir", str(home / "models"), "--ctx-size", "128", "--strict"]) as running:
        yield running, home / "models"


def ask(client: httpx.Client, name: str) -> httpx.Response:
    return client.post("/v1/completions", json={**BODY, "model": name})


def test_new_files_are_found_and_deleted_ones_disappear(server: tuple[Served, Path]) -> None:
    running, folder = server
    with running.client() as client:
        assert ask(client, "late").status_code == 404
        (folder / "late.gguf").write_bytes(packaged_model().read_bytes())
        assert ask(client, "late").status_code == 200
        assert client.post("/v1/models/unload", json={"model": "late"}).status_code == 200
        (folder / "late.gguf").unlink()
        for _ in range(2):
            gone = ask(client, "late")
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")


def end_worker(process: int) -> None:
    (child,) = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system has no /proc")
def test_a_truncated_model_file_is_an_error(server: tuple[Served, Path]) -> None:
    running, folder = server
    file = folder / "open.gguf"
    whole = packaged_model().read_bytes()
    file.write_bytes(whole)
    with running.client() as client:
        assert ask(client, "open").status_code == 200
        file.unlink()
        file.write_bytes(whole[:5000])
        end_worker(running.process.pid)
        end = time.monotonic() + LIMIT_S
        while (answer := ask(client, "open")).status_code in (200, 503):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_not_loadable")
        assert client.get("/health").status_code == 200
        file.unlink()
        gone = ask(client, "open")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
        file.write_bytes(whole)
        assert ask(client, "open").status_code == 200


def test_a_broken_default_model_is_unhealthy_until_it_loads_again() -> None:
    class Broken(FakeEngine):
        is_broken = True

        async def start(self) -> None:
            if Broken.is_broken:
                raise LoadError("[test] the file is cut")

    library = Library("a", lambda: {"a": 1}, lambda *_: Broken(), 100)
    service = Service(Settings(access_log=False), library)

    async def test() -> None:
        transport = httpx.ASGITransport(build_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            broken = await client.post("/v1/completions", json=BODY)
            assert broken.status_code == 500
            health = await client.get("/health")
            assert (health.status_code, health.json()["models"]) == (503, {"a": "failed"})
            Broken.is_broken = False
            assert (await client.post("/v1/completions", json=BODY)).status_code == 200
            assert (await client.get("/health")).status_code == 200

    asyncio.run(test())


def test_the_budget_error_is_the_same_each_time() -> None:
    library = Library("a", lambda: {"a": 500}, lambda *_: FakeEngine(), 100)
    answers = [post("/v1/completions", {**BODY, "model": "a"}, library=library) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {500}
    assert {answer.json()["error"]["code"] for answer in answers} == {"model_too_large"}
    assert len({answer.json()["error"]["message"] for answer in answers}) == 1
