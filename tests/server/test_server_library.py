"""Several models: loaded on first use, evicted by least recent use, never while in use."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import quire
from fake_engine import INFO, FakeEngine
from one_call import call, post
from quire.engine.loading.loader import packaged_model
from quire.errors import CapacityError, LoadError
from quire.server.failures import ApiError
from quire.server.service.library import Library
from quire.server.service.model_files import find_models, size_of
from quire.server.worker.engine_client import EngineState, OpeningLost
from quire.server.worker.memory_share import check_share, committed_bytes, with_share_of_model
from quire.server.worker.protocol import Beat
from quire.system import process_memory
from served import served


class SlowEngine(FakeEngine):
    """An engine that takes a moment to load; one named ``bad`` fails."""

    def __init__(self, name: str, share: int = 0, n_ctx: int | None = None) -> None:
        super().__init__()
        self.info = INFO if n_ctx is None else msgspec.structs.replace(INFO, n_ctx=n_ctx)
        self.name = name
        self.share = share
        self.state = EngineState.LOADING
        self.stopped = False

    async def start(self) -> None:
        await asyncio.sleep(0.01)
        if self.name == "bad":
            raise LoadError("[test] not a model file")
        if (self.name == "hungry" and self.share < 90) or self.info.n_ctx > 1000:
            raise CapacityError("[test] the cache does not fit")
        if self.name == "lost":
            raise OpeningLost("[test] the worker exited")
        self.state = EngineState.READY

    async def stop(self) -> None:
        self.stopped = True


NAMES = ("a", "b", "c", "bad", "lost", "large")


class Shop:
    """Return a library of models ``a b c bad lost`` of 40 bytes each and a ``large`` one, and the engines it made."""

    def __init__(self, budget: int, default: str | None = "a", names: Sequence[str] = NAMES) -> None:
        self.made: list[SlowEngine] = []
        self.shares: list[int] = []
        sizes = {name: 101 if name == "large" else 40 for name in names}
        self.library = Library(default, lambda: sizes, self._make, budget)

    def _make(self, name: str, share: int, n_ctx: int | None) -> SlowEngine:
        self.shares.append(share)
        self.made.append(SlowEngine(name, share, n_ctx))
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


def test_the_least_recently_used_model_is_evicted() -> None:
    async def test(shop: Shop) -> None:
        for name in ("a", "b", "a", "c"):
            await shop.use(name)
        assert shop.open == ["a", "c"]
        assert [engine.name for engine in shop.made if engine.stopped] == ["b"]

    run(test)


def test_concurrent_calls_load_a_model_once() -> None:
    async def test(shop: Shop) -> None:
        await asyncio.gather(*(shop.use("a") for _ in range(20)))
        assert [engine.name for engine in shop.made] == ["a"]

    run(test)


def test_models_with_requests_are_not_evicted() -> None:
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


def test_growing_the_context_waits_for_other_requests() -> None:
    async def test(shop: Shop) -> None:
        async def ask(n_ctx: int) -> int:
            async with shop.library.pinned("a"):
                await shop.library.grow("a", n_ctx)
                return shop.library.engines()["a"].info.n_ctx

        async with shop.library.pinned("a") as held:
            asked = [asyncio.ensure_future(ask(512)) for _ in range(3)]
            await asyncio.sleep(0.1)
            assert not any(each.done() for each in asked)
            assert shop.library.engines()["a"] is held
        assert await asyncio.gather(*asked) == [512, 512, 512]
        assert [engine.info.n_ctx for engine in shop.made] == [INFO.n_ctx, 512]
        assert shop.made[0].stopped
        # A context that does not fit leaves the model as it was.
        with pytest.raises(ApiError, match="2000 tokens") as refused:
            await ask(2000)
        assert refused.value.status == 400
        assert await ask(1) == 512
        assert len(shop.open) == 1

    run(test)


def test_a_failed_load_leaves_nothing_behind() -> None:
    async def test(shop: Shop) -> None:
        for _ in range(2):
            with pytest.raises(ApiError, match="not a model file") as refused:
                await shop.use("bad")
            assert (refused.value.status, refused.value.code) == (500, "model_not_loadable")
            assert refused.value.retry_after_s is None
        with pytest.raises(ApiError, match="exited") as refused:
            await shop.use("lost")
        assert (refused.value.status, refused.value.retry_after_s) == (503, 5)
        with pytest.raises(ApiError, match=r"at least 101 bytes .* 100 for models") as refused:
            await shop.use("large")
        assert (refused.value.status, refused.value.retry_after_s) == (500, None)
        assert shop.open == []
        with pytest.raises(ApiError) as refused:
            await shop.use("none")
        assert refused.value.status == 404

    run(test)


def test_a_cancelled_caller_does_not_stop_the_loading() -> None:
    async def test(shop: Shop) -> None:
        first = asyncio.ensure_future(shop.use("a"))
        second = asyncio.ensure_future(shop.use("a"))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert [engine.name for engine in shop.made] == ["a"]

    run(test)


def beat_of(rss_bytes: int) -> Beat:
    return Beat(*[0] * 13, rss_bytes, rss_bytes)


def test_models_share_the_remaining_memory_equally() -> None:
    async def test(shop: Shop) -> None:
        for name in ("a", "b"):
            await shop.use(name)
        # 100 minus 40 each for a and b leaves 10 each; then 50 are left for b, next to which nothing else fits.
        assert shop.shares == [50, 50]

    run(test)
    shop = Shop(1000, names=["a", "large"])
    asyncio.run(shop.use("a"))
    assert shop.shares == [40 + (1000 - 40 - 101) // 2]


def test_loaded_models_count_by_their_measured_memory() -> None:
    shop = Shop(200)
    asyncio.run(shop.use("a"))
    shop.made[0].beat, shop.made[0].info = beat_of(30), msgspec.structs.replace(INFO, memory_bytes=165)
    asyncio.run(shop.use("b"))
    assert shop.open == ["b"]
    shop.made[1].beat, shop.made[1].info = beat_of(30), msgspec.structs.replace(INFO, memory_bytes=60)
    asyncio.run(shop.use("c"))
    assert shop.open == ["b", "c"]
    shop.made[1].beat = beat_of(170)  # more than it announced
    asyncio.run(shop.use("a"))
    assert shop.open == ["c", "a"]


def test_a_share_that_is_too_small_grows_to_all_free_memory() -> None:
    shop = Shop(100, names=["a", "hungry"])
    asyncio.run(shop.use("a"))
    asyncio.run(shop.use("hungry"))
    assert shop.open == ["hungry"]
    assert shop.shares[-1] == 100

    async def busy(shop: Shop) -> None:
        async with shop.library.pinned("a"):
            with pytest.raises(ApiError) as refused:
                await shop.use("hungry")
            assert (refused.value.status, refused.value.code) == (503, "no_room_for_model")
            assert refused.value.retry_after_s == 5

    asyncio.run(busy(Shop(100, names=["a", "hungry"])))
    with pytest.raises(ApiError) as refused:
        asyncio.run(Shop(80, names=["hungry"]).use("hungry"))
    assert (refused.value.status, refused.value.retry_after_s) == (500, None)


def test_the_workers_own_memory_counts() -> None:
    own = process_memory()[0]
    if not own:
        pytest.skip("this system does not tell what a process takes")
    assert with_share_of_model({"n_ctx": 5}) == {"n_ctx": 5}
    given = with_share_of_model({"memory_bytes": own + 200_000_000})["memory_bytes"]
    assert 100_000_000 < given < 180_000_000
    with pytest.raises(CapacityError, match="too small for a worker"):
        with_share_of_model({"memory_bytes": own})
    committed = committed_bytes(1000, 50_000_000)
    assert committed > own + 100_000_000
    check_share(committed, None)
    check_share(committed, int(committed / 1.04))
    with pytest.raises(CapacityError, match="more than its share"):
        check_share(committed, int(committed / 1.06))


def held_bytes(pid: int) -> int:
    """Memory of a process and its children, counting shared memory once."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    own = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    children = [pid for file in Path(f"/proc/{pid}/task").glob("*/children") for pid in file.read_text().split()]
    return own + sum(held_bytes(int(child)) for child in children)


@pytest.mark.slow  # the sanitizers' own memory would count
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc")
def test_models_with_full_caches_stay_within_the_budget(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("one", "two", "three"):
        shutil.copy(packaged_model(), folder / f"{name}.gguf")
    budget = 300_000_000
    with (
        served(tmp_path, ["--models-dir", str(folder), "--memory-budget", str(budget)]) as server,
        server.client() as client,
    ):
        most_open = 0
        for number, name in enumerate(("one", "two", "three")):
            # Use more tokens than the cache holds, and a form, which starts another process.
            prompts = [[5 + i, 6 + number] + [7 + i % 40] * 398 for i in range(20)]
            body: dict[str, Any] = {"model": name, "max_tokens": 1, "prompt": prompts}
            assert client.post("/v1/completions", json=body).status_code == 200
            formed = {"model": name, "max_tokens": 4, "prompt": "x", "structured_outputs": {"regex": "[ab]{2}"}}
            assert client.post("/v1/completions", json=formed).status_code == 200
            assert held_bytes(server.process.pid) <= 1.05 * budget, name
            rows = client.get("/v1/models/list").json()["models"]
            most_open = max(most_open, sum(row["state"] == "ready" for row in rows))
        assert most_open == 2


BODY = {"prompt": "x", "max_tokens": 2}


def answered(shop: Shop, **fields: str) -> tuple[int, str]:
    """Return the status of a completion, and its model name or error code."""
    response = post("/v1/completions", {**BODY, **fields}, library=shop.library, options={"strict": False})
    answer = response.json()
    return response.status_code, answer["model"] if response.status_code == 200 else answer["error"]["code"]


def test_the_model_for_requests_without_a_name() -> None:
    assert answered(Shop(200)) == (200, "a")
    assert answered(Shop(200, default=None)) == (400, "missing_model")
    assert answered(Shop(200, default=None, names=["b"])) == (200, "b")
    shop = Shop(200, default=None)
    asyncio.run(shop.use("c"))
    asyncio.run(shop.use("b"))
    assert answered(shop) == (200, "b")
    assert answered(shop, model="c") == (200, "c")
    assert answered(shop) == (200, "c")
    assert [engine.name for engine in shop.made] == ["c", "b"]


def test_a_call_keeps_its_model() -> None:
    shop = Shop(200, default=None)
    for name in ("a", "b"):
        asyncio.run(shop.use(name))

    def submit(self: SlowEngine, work: Any) -> Any:
        shop.library._slots["a"].used_s += 1000.0  # as if another call had used it
        return FakeEngine.submit(self, work)

    shop.made[1].submit = submit.__get__(shop.made[1])  # type: ignore[method-assign]
    response = post("/v1/completions", {**BODY, "prompt": ["x", "y"]}, library=shop.library)
    assert response.json()["model"] == "b"
    assert [len(engine.asked) for engine in shop.made] == [0, 2]


def test_unknown_names_get_the_only_model_unless_strict() -> None:
    for path, body in (
        ("/v1/completions", BODY),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        ("/api/generate", {"prompt": "x"}),
    ):
        assert post(path, {**body, "model": "gpt-4"}).status_code == 200
        strict = post(path, {**body, "model": "gpt-4"}, options={"strict": True})
        assert strict.status_code == 404, path
    assert post("/v1/completions", {**BODY, "model": "gpt-4"}).json()["model"] == "gpt-4"
    assert answered(Shop(200), model="gpt-4") == (404, "model_not_found")
    # A question about a model is answered by that model.
    assert call("GET", "/v1/models/gpt-4").status_code == 404
    assert post("/api/show", {"model": "gpt-4"}).status_code == 404
    assert post("/v1/models/unload", {"model": "gpt-4"}).status_code == 404
    assert post("/v1/models/load", {"model": "gpt-4"}).status_code == 404


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
    # Room for a single model: a model uses more memory than its file.
    budget = "210000000"
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
        assert client.get("/version").json() == {"version": quire.__version__}  # before any model is loaded
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
        (folder / "broken.gguf").write_bytes(b"GGUF" + bytes(1000))
        broken = complete("broken")
        assert (broken.status_code, broken.json()["error"]["code"]) == (500, "model_not_loadable")
        assert "retry-after" not in broken.headers
