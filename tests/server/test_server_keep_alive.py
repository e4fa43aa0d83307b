"""Models that are unloaded when idle, and presets on a server.

Oracles: Ollama's documented formats of ``keep_alive``; the library's list of loaded models.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from quire.cli.main import main
from quire.hub.registry import Preset, Registry
from quire.server.keep_alive import FOREVER, seconds_of
from quire.server.service.library import Library
from quire.server.worker.protocol import Ask
from served import served


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0.0), ("0", 0.0), ("0s", 0.0), (300, 300.0), ("300", 300.0), ("5m", 300.0), ("1h30m", 5400.0), ("1.5s", 1.5),
        ("100ms", 0.1), (-1, FOREVER), ("-1", FOREVER), ("-5m", FOREVER), (2.5, 2.5), (" 10s ", 10.0),
    ],
)  # fmt: skip
def test_durations(given: float | str, expected: float) -> None:
    assert seconds_of(given) == pytest.approx(expected)


@pytest.mark.parametrize("given", ["", "soon", "5 m", "m", "5x", "1h-3m", "nan"])
def test_invalid_durations(given: str) -> None:
    with pytest.raises(ValueError, match="seconds or a duration"):
        seconds_of(given)


def run(keep_s: float, test: Callable[[Library], Awaitable[None]]) -> None:
    async def with_library() -> None:
        library = Library("a", lambda: {"a": 1, "b": 1}, lambda *_: FakeEngine(), 100, keep_s=keep_s)
        await library.start()
        await test(library)
        await library.stop()

    asyncio.run(with_library())


async def use(library: Library, name: str, keep_s: float | None = None) -> None:
    async with library.pinned(name):
        library.keep(name, keep_s)


async def until_closed(library: Library, name: str) -> None:
    end_s = time.monotonic() + 120
    while name in library.engines():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.005)


def test_an_idle_model_is_unloaded_and_loaded_again() -> None:
    async def test(library: Library) -> None:
        await use(library, "a")
        assert library.stays_s("a") is not None
        await until_closed(library, "a")
        assert library.stays_s("a") is None
        await use(library, "a")
        assert list(library.engines()) == ["a"]

    run(0.02, test)


def test_a_request_sets_its_models_keep_alive() -> None:
    async def test(library: Library) -> None:
        await use(library, "a", FOREVER)
        await use(library, "b", 0)
        await until_closed(library, "b")
        assert (list(library.engines()), library.stays_s("a")) == (["a"], None)
        await use(library, "a", 0.0)
        await until_closed(library, "a")

    run(300.0, test)


def test_a_model_in_use_is_not_unloaded() -> None:
    async def test(library: Library) -> None:
        async with library.pinned("a"):
            await use(library, "a", 0)
            await asyncio.sleep(0.05)
            assert list(library.engines()) == ["a"]
        await until_closed(library, "a")

    run(FOREVER, test)


def test_a_question_while_closing_does_not_keep_a_model() -> None:
    """A question between the decision to unload and its execution must not cancel it for good."""

    async def test(library: Library) -> None:
        await use(library, "a", 0)
        engine = library.engines()["a"]
        assert isinstance(engine, FakeEngine)
        engine.answers = [None]
        asyncio.get_running_loop().call_later(0, engine.submit, Ask(0, "describe", {}))
        await until_closed(library, "a")

    run(300.0, test)


def test_models_stay_loaded_by_default() -> None:
    async def test(library: Library) -> None:
        await use(library, "a")
        await asyncio.sleep(0.05)
        assert (list(library.engines()), library.stays_s("a")) == (["a"], None)

    run(FOREVER, test)


def test_a_preset_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import quire

    model = Path(quire.__file__).parent / "data" / "tiny-chat-q8_0.gguf"
    monkeypatch.setenv("QUIRE_MODELS", str(tmp_path / "models.toml"))
    options = {"ctx-size": 320, "max-sequences": 3}
    Registry().add("me", Preset(str(model), "Be kind.", options, {"temperature": 0.0, "max_tokens": 3}, "5m"))
    messages = [{"role": "user", "content": "Who are you?"}]
    with served(tmp_path, ["me"]) as server, server.client() as client:
        answer = client.post("/v1/chat/completions", json={"model": "me", "messages": messages}).json()
        assert answer["usage"]["completion_tokens"] == 3
        prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
        assert "Be kind." in prompt
        own = [{"role": "system", "content": "Be brief."}, *messages]
        assert "Be kind." not in client.post("/apply-template", json={"messages": own}).json()["prompt"]
        (model_status,) = client.get("/v1/status").json()["models"]
        assert model_status["n_ctx"] == 320
        (open_model,) = client.get("/api/ps").json()["models"]
        assert not open_model["expires_at"].startswith("2318")
        gone = client.post("/api/generate", json={"model": "me", "keep_alive": 0, "stream": False}).json()
        assert gone["done_reason"] == "unload"
        end_s = time.monotonic() + 120
        while client.get("/api/ps").json()["models"]:
            assert time.monotonic() < end_s
            time.sleep(0.2)  # asking about a model counts as using it
        assert client.get("/v1/health").json() == {"status": "healthy", "version": quire.__version__}
        props = client.get("/props").json()
        assert (props["is_sleeping"], props["default_generation_settings"]["n_ctx"]) == (True, 320)
        assert client.get("/api/ps").json()["models"] == []  # the question has not loaded it again
        assert (
            client.post("/v1/chat/completions", json={"messages": messages}).json()["usage"]["completion_tokens"] == 3
        )
        # Commands that query a server.
        assert main(["ps", "--server", server.url, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["models"]
        assert (row["model"], row["state"]) == ("tiny-chat-q8_0", "ready")
        assert main(["stop", "tiny-chat-q8_0", "--server", server.url]) == 0
        assert main(["ps", "--server", server.url.removeprefix("http://")]) == 0
        assert "tiny-chat" not in capsys.readouterr().out
        assert main(["stop", "tiny-chat-q8_0", "--server", server.url]) == 1
        assert "is not loaded" in capsys.readouterr().err
    assert main(["ps", "--server", server.url]) == 1
    assert "no server at http://" in capsys.readouterr().err
