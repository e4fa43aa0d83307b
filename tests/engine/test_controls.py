"""Pause, sleep and new weights of an open model.

Oracle: a model opened with the same weights from the start.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from quire.engine import LLM, AsyncLLM
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.safetensors import SafetensorsFolder
from quire.system import process_memory
from tiny_checkpoints import write_checkpoint, write_safetensors

PROMPT = [1 + i % 50 for i in range(70)]
SIZES = {"threads": 1, "n_ctx": 256, "kv_dtype": "f32"}


def answer(llm: LLM) -> tuple[list[int], list[float]]:
    (result,) = llm.generate([PROMPT], max_tokens=8, temperature=0, logprobs=0)
    assert result.logprobs is not None
    return result.token_ids, [token.logprob for token in result.logprobs]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two checkpoints that differ in one layer."""
    made = [tmp_path_factory.mktemp(name) for name in ("before", "after")]
    for folder in made:
        write_checkpoint(folder, "llama")
    old = SafetensorsFolder(made[1])
    tensors = {name: np.array(old.array(name)) for name in old}
    tensors |= {name: value + np.float32(0.05) for name, value in tensors.items() if ".1.mlp" in name}
    write_safetensors(made[1] / "model.safetensors", tensors)
    return made


@pytest.fixture
def llm(folders: list[Path]) -> Iterator[LLM]:
    with LLM(folders[0], **SIZES) as model:  # type: ignore[arg-type]
        yield model


@pytest.fixture(scope="module")
def expected(folders: list[Path]) -> list[tuple[list[int], list[float]]]:
    found = []
    for folder in folders:
        with LLM(folder, **SIZES) as model:  # type: ignore[arg-type]
            found.append(answer(model))
    assert found[0] != found[1]
    return found


def test_new_weights_replace_the_old_and_all_that_was_cached(
    llm: LLM, folders: list[Path], expected: list[tuple[list[int], list[float]]]
) -> None:
    new = SafetensorsFolder(folders[1])
    assert answer(llm) == expected[0]
    session = llm.session(PROMPT)
    assert session.pin() == 64
    llm.update_weights({name: new.array(name) for name in new if ".1.mlp" in name})
    assert answer(llm) == expected[1]
    assert llm.stats().n_pins == 0
    llm.update_weights(folders[0])
    assert answer(llm) == expected[0]
    session.close()  # its pin was dropped: another one's is not


def test_weights_that_do_not_fit_change_nothing(
    llm: LLM, folders: list[Path], expected: list[tuple[list[int], list[float]]], tmp_path: Path
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(RequestError, match="nothing"):
        llm.update_weights({"model.nothing.weight": np.zeros(1, np.float32)})
    with pytest.raises(RequestError, match=r"\(2, 2\)"):
        llm.update_weights([(name, np.zeros((2, 2), np.float32))])
    with pytest.raises(UnsupportedError, match="int8"):
        llm.update_weights({name: np.zeros((96, 64), np.int8)})
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError):
        llm.update_weights(tmp_path)
    with pytest.raises(RequestError, match="qwen3"):
        llm.update_weights(packaged())
    assert answer(llm) == expected[0]


def packaged() -> Path:
    from quire.engine.loading.loader import packaged_model

    return packaged_model()


def test_sleep_frees_memory_until_wake_up(
    llm: LLM, folders: list[Path], expected: list[tuple[list[int], list[float]]]
) -> None:
    with LLM(threads=1, n_ctx=2048, load="copy") as large:
        (before,) = large.generate([PROMPT], max_tokens=4, temperature=0)
        awake = process_memory()[1]
        large.sleep()
        assert awake - process_memory()[1] > 1_500_000  # the weights
        large.wake_up()
        (after,) = large.generate([PROMPT], max_tokens=4, temperature=0)
        assert (after.token_ids, after.n_cached_tokens) == (before.token_ids, 0)
    shared = AsyncLLM.sharing(llm)
    llm.sleep(level=2)
    assert shared.is_sleeping
    with pytest.raises(RequestError, match="wake_up"):
        answer(llm)
    with pytest.raises(RequestError, match="wake_up"):
        llm.load_adapter("style.gguf")
    llm.wake_up(tags="weights")
    llm.update_weights(folders[1])
    assert llm.is_sleeping
    asyncio.run(shared.wake_up(tags=["kv_cache"]))
    assert not llm.is_sleeping
    assert answer(llm) == expected[1]
    with pytest.raises(RequestError, match="level 7"):
        llm.sleep(level=7)


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_pause_holds_requests_until_resume(llm: LLM, mode: str, expected: list[tuple[list[int], list[float]]]) -> None:
    running = llm.stream(PROMPT, max_tokens=150, temperature=0, ignore_eos=True)
    tokens = list(next(running).token_ids)
    rest = threading.Thread(target=lambda: tokens.extend(t for piece in running for t in piece.token_ids))
    rest.start()
    llm.pause(mode)  # type: ignore[arg-type]
    assert llm.is_paused
    n_steps = llm.stats().n_steps
    answers: list[tuple[list[int], list[float]]] = []
    waiting = threading.Thread(target=lambda: answers.append(answer(llm)))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert llm.stats().n_steps == n_steps
    if mode == "keep":
        assert rest.is_alive() or len(tokens) == 150
    else:
        rest.join(60)
        assert not rest.is_alive()
    llm.resume()
    waiting.join()
    rest.join()
    assert answers == [expected[0]]
    assert (len(tokens) == 150) or mode == "abort"


def endless(llm: LLM) -> tuple[threading.Thread, list[str]]:
    """Begin an answer that only the context ends, and wait for its first token; return how it ends."""
    ended: list[str] = []
    running = llm.stream([1], max_tokens=100_000, temperature=0, ignore_eos=True)
    next(running)

    def read() -> None:
        try:
            ended.extend(piece.finish_reason or "" for piece in running)
        except RequestError as error:
            ended.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    return thread, ended


@pytest.fixture
def slow(folders: list[Path]) -> Iterator[LLM]:
    """A model whose answers take long enough to be interrupted."""

    def processor(token_ids: object, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> object:
        pace.wait(0.02)
        return logits

    pace = threading.Event()
    with LLM(folders[0], **{**SIZES, "n_ctx": 4096}) as model:  # type: ignore[arg-type]
        stream = model.stream
        model.stream = lambda *a, **k: stream(*a, logits_processors=[processor], **k)  # type: ignore[method-assign]
        yield model
        pace.set()


def test_resume_ends_a_pause_that_waits(slow: LLM) -> None:
    thread, ended = endless(slow)
    refused: list[RequestError] = []

    def pause() -> None:
        try:
            slow.pause("wait")
        except RequestError as error:
            refused.append(error)

    pausing = threading.Thread(target=pause)
    pausing.start()
    while not slow.is_paused:
        pausing.join(0.01)
    slow.resume()
    pausing.join(60)
    assert not pausing.is_alive()
    assert "resume" in str(refused[0])
    assert not slow.is_paused
    assert thread.is_alive()  # it goes on
    slow.pause("abort")
    thread.join(60)
    assert ended[-1] == "cancelled"


def test_sleep_tells_requests_in_flight_why_they_end(slow: LLM) -> None:
    thread, ended = endless(slow)
    slow.sleep()
    thread.join(60)
    assert "put to sleep" in ended[-1]


def test_sleep_can_wait_for_requests_in_flight(llm: LLM, expected: list[tuple[list[int], list[float]]]) -> None:
    running = llm.stream(PROMPT, max_tokens=100, temperature=0, ignore_eos=True)
    tokens = list(next(running).token_ids)
    rest = threading.Thread(target=lambda: tokens.extend(t for piece in running for t in piece.token_ids))
    rest.start()
    llm.sleep(mode="wait")
    rest.join(60)
    assert len(tokens) == 100
    assert (llm.is_sleeping, llm.is_paused) == (True, False)
    llm.wake_up()
    assert answer(llm) == expected[0]
    with pytest.raises(RequestError, match="mode 'never'"):
        llm.sleep(mode="never")  # type: ignore[arg-type]
