"""Failing drivers, on a device that fails on request (tests/native/counting_device.cpp).

Oracles: the same requests on the CPU; the system's list of processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import quire
from counting_device import CountingDevice, compiled_device, counting_device
from quire import LLM, CapacityError, SamplingParams
from quire.server.failures import ApiError
from quire.server.worker.engine_client import EngineState
from quire.server.worker.protocol import Delta, Generate, Open
from quire.server.worker.supervisor import Watch, WorkerSupervisor

pytestmark = pytest.mark.python_only
OPTIONS = {"device": "Counting0", "threads": 1, "n_ctx": 256, "kv_dtype": "f32", "max_step_tokens": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the device's module; subprocesses find it and import the same quire as this process."""
    made = tmp_path_factory.mktemp("counting")
    compiled_device(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIRE_MODULE_PATH", str(made))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(quire.__file__).parent.parent), *sys.path]))
        patch.setenv("COUNTING_FAULT", str(made / "fault"))
        yield made


PROGRAM = """
import json, os, sys
from pathlib import Path
from quire import LLM, DeviceError, SamplingParams

options = json.loads(sys.argv[1])
greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
prompts = ["Once upon a time", "The bird said"]
with LLM(**options) as llm:
    llm.generate("The", max_tokens=2)
    Path(os.environ["COUNTING_FAULT"]).write_text(sys.argv[2])
    told = []
    for _ in range(2):
        try:
            llm.generate(prompts, greedy)
        except DeviceError as error:
            told.append(str(error))
try:
    LLM(**options)
except DeviceError as error:
    told.append(str(error))
with LLM(**{**options, "device": "cpu"}) as llm:
    llm.generate(prompts, greedy)
print(json.dumps(told))
"""


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("fail 3", "GGML status: error"),
        ("throw 3", "the driver says: device lost"),
        ("abort 3", "the driver says: illegal access"),
        ("upload 3", "the driver says: no transfer"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_lost_device_fails_its_requests_and_the_process_continues(fault: str, reason: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(OPTIONS), fault],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told) == 3  # the running requests, later ones, and another model on the device
    for text in told:
        assert text.startswith("[device] lost Counting0")
        assert reason in text
        assert "quire devices --check" in text


@pytest.fixture(scope="module")
def counting() -> CountingDevice:
    return counting_device()


def test_running_out_of_device_memory_fails_only_one_request(counting: CountingDevice) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    with LLM(**{**OPTIONS, "device": "cpu"}) as on_cpu:  # type: ignore[arg-type]
        expected = on_cpu.generate("Once upon a time", params)[0].choices[0].token_ids
    for n in (1, 3):
        counting.arm("allocation", n)
        with pytest.raises(CapacityError, match=r"Counting0|device memory"):
            LLM(**OPTIONS)  # type: ignore[arg-type]
    with LLM(**OPTIONS) as llm:  # type: ignore[arg-type]
        counting.arm("exhaust", 3)
        with pytest.raises(CapacityError, match=r"Counting0.* memory"):
            llm.generate("Once upon a time", params)
        assert llm.generate("Once upon a time", params)[0].choices[0].token_ids == expected


STORY = Generate(0, "Once upon a time", {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True})
WATCH = Watch(hung_step_s=2.0, check_s=0.05)


async def text_of(engine: WorkerSupervisor) -> str:
    texts = []
    with engine.submit(STORY) as stream:
        await stream.start()
        while (batch := await stream.batch()) is not None:
            texts += [event.content for event in batch if isinstance(event, Delta)]
    return "".join(texts)


async def lost(engine: WorkerSupervisor, code: str) -> str:
    """Run a request whose device fails, wait for the new worker, and return the request's error message."""
    before, begin_s = engine.process_id, time.monotonic()
    with pytest.raises(ApiError) as told:
        await text_of(engine)
    assert (told.value.status, told.value.code) == (503, code)
    assert told.value.retry_after_s is not None
    assert before is not None
    while engine.process_id == before or engine.state is not EngineState.READY:
        assert time.monotonic() - begin_s < 60
        await asyncio.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    return told.value.message


def test_a_server_restarts_the_worker(folder: Path) -> None:
    fault = folder / "fault"

    async def test() -> None:
        engine = WorkerSupervisor(Open(None, OPTIONS), WATCH)
        try:
            await engine.start()
            expected = await text_of(engine)
            fault.write_text("hang 4")
            assert "hung" in await lost(engine, "worker_lost")
            assert await text_of(engine) == expected
            fault.write_text("abort 4")
            assert "the driver says: illegal access" in await lost(engine, "device_lost")
            assert engine.n_restarts == 2
            # The same request was running both times.
            with pytest.raises(ApiError, match="two worker crashes"):
                await text_of(engine)
        finally:
            await engine.stop()

    asyncio.run(test())


def test_a_worker_that_keeps_losing_its_device_is_not_restarted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fault = folder / "fault"

    async def test() -> None:
        engine = WorkerSupervisor(Open(None, OPTIONS), replace(WATCH, device_losses=2))
        try:
            await engine.start()
            fault.write_text("abort 4")
            await lost(engine, "device_lost")
            fault.write_text("abort 4")
            with pytest.raises(ApiError, match="illegal access"):
                await text_of(engine)
            while engine.state is not EngineState.STOPPED:
                await asyncio.sleep(0.01)
            with pytest.raises(ApiError, match="2 times within 60 s") as told:
                await text_of(engine)
            assert told.value.status == 503
            assert engine.n_restarts == 1
        finally:
            await engine.stop()

    asyncio.run(test())
    assert "2 times within 60 s" in capfd.readouterr().err
