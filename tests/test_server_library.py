"""Several models: opened when asked for, closed by least recent use, never under a request."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from quire.engine.loader import packaged_model
from quire.errors import LoadError
from quire.server.engine import EngineState
from quire.server.failures import ApiError
from quire.server.library import Library, find_models, size_of
from served import served


class SlowEngine(FakeEngine):
    """Takes a moment to open; one named ``bad`` does not."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.state = EngineState.LOADING
        self.stopped = False

    async def start(self) -> None:
        await asyncio.sleep(0.01)
        if self.name == "bad":
            raise LoadError("[test] the file must be a model but is not")
        self.state = EngineState.READY

    async def stop(self) -> None:
        self.stopped = True


class Shop:
    """A library of models ``a b c bad`` of 40 bytes each, and the engines it made."""

    def __init__(self, budget: int) -> None:
        self.made: list[SlowEngine] = []
        self.library = Library("a", lambda: dict.fromkeys(["a", "b", "c", "bad"], 40), self._make, budget)

    def _make(self, name: str) -> SlowEngine:
        self.made.append(SlowEngine(name))
        return self.made[-1]

    @property
    def open(self) -> list[str]:
        return list(self.library.engines())

    async def use(self, name: str) -> None:
        async with self.library.pinned(name) as engine:
            assert engine.state is EngineState.READY


def run(test: Callable[[Shop], Awaitable[None]], budget: int = 100) -> None:
    async def with_shop() -> None:
        await test(Shop(budget))

    asyncio.run(with_shop())


def test_the_least_recently_used_goes() -> None:
    async def test(shop: Shop) -> None:
        for name in ("a", "b", "a", "c"):
            await shop.use(name)
        assert shop.open == ["a", "c"]
        assert [engine.name for engine in shop.made if engine.stopped] == ["b"]

    run(test)


def test_many_calls_open_a_model_once() -> None:
    async def test(shop: Shop) -> None:
        await asyncio.gather(*(shop.use("a") for _ in range(20)))
        assert [engine.name for engine in shop.made] == ["a"]

    run(test)


def test_nothing_goes_under_a_request() -> None:
    async def test(shop: Shop) -> None:
        async with shop.library.pinned("a"), shop.library.pinned("b"):
            with pytest.raises(ApiError) as refused:
                await shop.use("c")
            assert (refused.value.status, refused.value.code) == (503, "no_room_for_model")
            with pytest.raises(ApiError) as refused:
                await shop.library.close("a")
            assert (refused.value.status, refused.value.code) == (409, "model_busy")
        await shop.use("c")
        assert "c" in shop.open

    run(test)


def test_one_that_does_not_open_leaves_nothing() -> None:
    async def test(shop: Shop) -> None:
        for _ in range(2):
            with pytest.raises(ApiError, match="must be a model") as refused:
                await shop.use("bad")
            assert refused.value.status == 503
        assert shop.open == []
        with pytest.raises(ApiError) as refused:
            await shop.use("none")
        assert refused.value.status == 404

    run(test)


def test_a_caller_that_leaves_does_not_stop_the_opening_for_others() -> None:
    async def test(shop: Shop) -> None:
        first = asyncio.ensure_future(shop.use("a"))
        second = asyncio.ensure_future(shop.use("a"))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert [engine.name for engine in shop.made] == ["a"]

    run(test)


def test_files_by_name(tmp_path: Path) -> None:
    for name in ("x.gguf", "y-00001-of-00002.gguf", "y-00002-of-00002.gguf", "notes.txt"):
        (tmp_path / name).write_bytes(b"1234")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    outside = tmp_path.parent / "outside.gguf"
    outside.write_bytes(b"")
    (tmp_path / "link.gguf").symlink_to(outside)
    found = find_models(tmp_path)
    assert {name: path.name for name, path in found.items()} == {
        "x": "x.gguf", "y": "y-00001-of-00002.gguf", "folder": "folder",
    }  # fmt: skip
    assert (size_of(found["x"]), size_of(found["y"])) == (4, 8)


def test_models_of_a_folder_over_http(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("one", "two"):
        shutil.copy(packaged_model(), folder / f"{name}.gguf")
    # Room for one: a model takes more than its file.
    budget = str(packaged_model().stat().st_size + 30_000_000)
    with (
        served(tmp_path, ["--models-dir", str(folder), "--memory-budget", budget]) as server,
        server.client() as client,
    ):

        def states() -> dict[str, str]:
            return {row["model"]: row["state"] for row in client.get("/v1/models/list").json()["models"]}

        def complete(model: str) -> Any:
            return client.post(
                "/v1/completions", json={"prompt": "Once", "max_tokens": 4, "temperature": 0, "model": model}
            )

        assert states() == {"one": "closed", "two": "closed"}
        assert client.get("/health").status_code == 200
        first = complete("one").json()["choices"][0]["text"]
        assert states() == {"one": "ready", "two": "closed"}
        answers: list[Any] = []
        threads = [threading.Thread(target=lambda: answers.append(complete("two"))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {answer.json()["choices"][0]["text"] for answer in answers} == {first}
        assert states() == {"one": "closed", "two": "ready"}
        assert client.post("/v1/models/unload", json={"model": "two"}).json()["state"] == "closed"
        assert client.post("/v1/models/unload", json={"model": "two"}).status_code == 404
        assert client.post("/v1/models/load", json={"model": "one"}).json()["state"] == "ready"
        assert client.post("/v1/models/reload", json={"model": "one"}).json()["state"] == "ready"
        assert [row["model"] for row in client.get("/v1/models/active").json()["models"]] == ["one"]
        for name in ("../models/one", "/etc/passwd", "one.gguf", "two\x00"):
            assert complete(name).status_code == 404
