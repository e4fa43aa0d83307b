"""One model in several processes: the answers of one process, clear errors, nothing left behind."""

from __future__ import annotations

import collections
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import LLM
from quire.errors import DeviceError, LoadError, RequestError, UnsupportedError
from tiny_checkpoints import write_checkpoint

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
PROMPTS = ["Once upon a time", "The capital of France is", "One, two, three, " * 30]


def open_llm(n_split: int, n_stages: int, model: Path | None = None, **options: Any) -> LLM:
    return LLM(model, tensor_parallel_size=n_split, pipeline_parallel_size=n_stages, n_ctx=512, threads=1, **options)


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, temperature=0, max_tokens=24)]


def children() -> list[int]:
    """The processes that this one started for models and that still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            command = entry.with_name("cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if int(parent) == os.getpid() and state != "Z" and b"quire.engine.loading.follower" in command:
            found.append(int(entry.parent.name))
    return sorted(found)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    with LLM(n_ctx=512, threads=1) as llm:
        return answers(llm)


@pytest.mark.parametrize(("n_split", "n_stages"), [(2, 1), (1, 2), (2, 2)])
def test_answers_are_those_of_one_process(expected: list[list[int]], n_split: int, n_stages: int) -> None:
    with open_llm(n_split, n_stages) as llm:
        assert answers(llm) == expected
        assert answers(llm) == expected  # from the prefix cache
        logits = llm.logits([5, 6, 7])
        embedding = llm.embed(["Once upon"])
    with LLM(n_ctx=512, threads=1) as llm:
        assert np.abs(logits - llm.logits([5, 6, 7])).max() < 0.05 * np.abs(logits).max()
        assert np.abs(embedding - llm.embed(["Once upon"])).max() < 0.02


def test_a_checkpoint_folder_is_split(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", "qwen3moe")
    options: dict[str, Any] = {"kv_dtype": "f32"}
    with open_llm(1, 1, tmp_path / "model", **options) as llm:
        expected = llm.logits([1, 2, 3, 4])
    with open_llm(2, 1, tmp_path / "model", **options) as llm:
        assert np.abs(llm.logits([1, 2, 3, 4]) - expected).max() < 1e-2 * np.abs(expected).max()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("n_split", "n_stages"), [(2, 1), (1, 2)])
def test_a_killed_process_fails_requests_with_its_name(n_split: int, n_stages: int) -> None:
    before = children()
    with open_llm(n_split, n_stages) as llm:
        (process,) = set(children()) - set(before)
        stream = iter(llm.stream("Once", temperature=1, max_tokens=400, ignore_eos=True))
        next(stream)
        os.kill(process, signal.SIGKILL)
        with pytest.raises(DeviceError, match="rank 1 of 2 ended: SIGKILL"):
            collections.deque(stream, maxlen=0)
        with pytest.raises(DeviceError, match="rank 1 of 2"):
            llm.generate("Once", max_tokens=2)


def has_ended(process: int) -> bool:
    """Wait until a process has ended."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_end_with_the_model_and_with_their_parent() -> None:
    before = children()
    llm = open_llm(2, 1)
    (process,) = set(children()) - set(before)
    llm.close()
    assert has_ended(process)
    program = (
        "import os, sys, quire; from pathlib import Path; llm = quire.LLM(tensor_parallel_size=2, n_ctx=256, threads=1);"
        "print(*[p.parent.name for p in Path('/proc').glob('[0-9]*/stat')"
        " if p.read_text().rpartition(')')[2].split()[1] == str(os.getpid())]); sys.stdout.flush(); os._exit(0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split()
    assert all(has_ended(int(left)) for left in ended.stdout.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernels": "stock"}, "kernels"),
        ({"cache_disk": "x"}, "cache_disk"),
        ({"lora_modules": [("a", "b")]}, "lora_modules"),
        ({"speculation": "mtp"}, "speculation"),
        ({"packed_cache": "x"}, "packed_cache"),
        ({"n_gpu_layers": 3}, "n_gpu_layers 3"),
        ({"device": "cuda"}, "device cuda"),
        ({"device": "gpu"}, "device gpu"),
    ],
)
def test_options_without_support_are_refused_by_name(
    options: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        open_llm(2, 1, **options)
    assert caplog.messages == []  # said once


def test_a_gpu_that_is_not_used_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("quire.engine.loading.loader.device_at_hand", lambda config: "CUDA0")
    with pytest.raises(UnsupportedError, match="over 5 processes"):
        open_llm(5, 1)
    assert "CUDA0 is not used" in caplog.text


def test_models_and_numbers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    before = children()
    with pytest.raises(UnsupportedError, match="over 5 processes"):
        open_llm(5, 1)
    with pytest.raises(RequestError, match="2 processors for 3 processes"):
        open_llm(1, 3, cpu_mask=3)
    with pytest.raises(RequestError, match="tensor_parallel_size"):
        open_llm(0, 1)
    with pytest.raises(LoadError, match=r"absent\.gguf"):
        open_llm(2, 1, tmp_path / "absent.gguf")
    write_checkpoint(tmp_path / "bert", "bert-rank")
    with pytest.raises(UnsupportedError, match="encoders run in one process"):
        open_llm(1, 2, tmp_path / "bert")
    assert sys.platform != "linux" or set(children()) <= set(before)
