"""Batches when something goes wrong: files that are not ours, a full disk, a worker that crashes, races."""

from __future__ import annotations

import asyncio
import errno
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from quire.cli.main import main
from quire.errors import RequestError
from quire.server.failures import ApiError
from quire.server.listener.forms import _FormReader
from quire.server.service import batch_runner, batches
from quire.server.service.background import BackgroundResponses
from quire.server.service.batch_lines import read_lines
from quire.server.service.batch_runner import Answer
from quire.server.service.batch_store import BatchStore, BatchWish
from quire.server.service.batches import Batches
from quire.server.service.caller import Caller
from quire.server.service.response_store import ResponseStore
from quire.system import try_lock

pytestmark = pytest.mark.python_only

URL = "/v1/completions"
LINE = b'{"custom_id":"a","url":"/v1/completions","body":{"prompt":"x"}}'
WISH = BatchWish("", URL, "24h", None)
ME = Caller()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(LINE)
    return path


def test_the_command_never_cuts_a_file_that_is_not_its_own(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "thesis.txt"
    other.write_text("one line without an end")
    assert main(["batch", str(source), str(source)]) == 2
    assert main(["batch", str(source), str(other)]) == 1
    assert (source.read_bytes(), other.read_text()) == (LINE, "one line without an end")


def test_two_commands_do_not_write_to_the_same_file(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "out").open("ab") as file:
        if try_lock(file) is None:
            pytest.skip("no locks here")
        assert main(["batch", str(source), str(tmp_path / "out")]) == 1
    assert "another command" in capsys.readouterr().err


def test_half_a_surrogate_pair_is_refused() -> None:
    for line in (LINE.replace(b'"x"', rb'"\ud800"'), LINE.replace(b'"a"', rb'"\ud800"')):
        with pytest.raises(RequestError, match="line 1"):
            list(read_lines([line]))


def refusal(code: str) -> Answer:
    return Answer(503, json.dumps({"error": {"code": code, "message": code}}).encode())


def test_a_request_that_crashes_the_worker_is_answered_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "_RETRY_S", 0)
    codes = ["worker_lost"] * 3

    async def post(path: str, body: bytes, caller: Caller, in_batch: bool) -> Answer:
        return refusal("worker_lost") if b"bad" in body else refusal(codes.pop()) if codes else Answer(200, b"{}")

    async def test() -> None:
        lines = list(read_lines([LINE, LINE.replace(b'"a"', b'"b"').replace(b'"x"', b'"bad"')]))
        found = {line.custom_id: status async for line, status, _ in batch_runner.answer_lines(lines, post, ME, 2)}
        assert found == {"a": 200, "b": 503}

    asyncio.run(test())


def test_a_batch_that_has_ended_cannot_be_cancelled(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    batch = store.add_batch(ME, WISH, 1)
    store.add_answer(batch, "a", 200, b"{}\n")
    done = store.finish(batch, "completed")
    with pytest.raises(ApiError, match="completed"):
        store.cancel(ME, batch.id)
    assert store.batch(ME, batch.id) == done
    store.close()


def test_answers_are_kept_when_the_caller_has_no_room_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BatchStore(tmp_path)
    batch = store.add_batch(ME, WISH, 1)
    store.add_answer(batch, "a", 200, b"{}\n")
    monkeypatch.setattr("quire.server.service.batch_store.MOST_FILES", 0)
    with pytest.raises(ApiError, match="delete some"):
        store.add_file(ME, "x", "batch", b"")
    output = store.finish(batch, "completed").output
    assert output is not None
    assert store.content(ME, output) == b"{}\n"
    (tmp_path / "files" / output).unlink()
    with pytest.raises(ApiError, match="was deleted"):
        store.content(ME, output)
    store.close()


class FullDisk:
    """In place of ``os.fsync``: fails ``n_left`` times."""

    n_left = 0

    def __call__(self, descriptor: int) -> None:
        if self.n_left:
            self.n_left -= 1
            raise OSError(errno.ENOSPC, "no space left on device")


def test_a_full_disk_stops_a_batch_only_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_DISK_RETRY_S", 0.01)
    add_answer, sync, fails = BatchStore.add_answer, FullDisk(), [True, True]

    def added(self: BatchStore, *args: Any) -> None:
        if fails:
            fails.pop()
            raise sqlite3.OperationalError("database or disk is full")
        add_answer(self, *args)

    monkeypatch.setattr(BatchStore, "add_answer", added)
    monkeypatch.setattr("quire.server.service.batch_store.os.fsync", sync)

    async def post(path: str, body: bytes, caller: Caller, in_batch: bool) -> Answer:
        return Answer(200, b"{}")

    async def test() -> None:
        works = Batches(tmp_path, post, lambda: 1)
        await works.start()
        file = await works.call(works.store.add_file, ME, "in", "batch", LINE)
        sync.n_left = 2  # the output file fails, too
        batch = await works.add(ME, BatchWish(file.id, URL, "24h", None))
        while (found := await works.call(works.store.batch, ME, batch.id)).status == "in_progress":
            await asyncio.sleep(0.01)
        assert (found.status, found.n_done) == ("completed", 1)
        assert len(list((tmp_path / "files").iterdir())) == 2
        sync.n_left = 1
        with pytest.raises(ApiError) as caught:
            await works.call(works.store.add_file, ME, "in", "batch", LINE)
        assert caught.value.status == 507
        await works.stop()

    asyncio.run(asyncio.wait_for(test(), 120))


def test_a_response_in_the_background_never_stays_in_progress() -> None:
    async def test() -> None:
        kept, asked = ResponseStore(), asyncio.Event()

        async def post(path: str, body: bytes, caller: Caller, in_batch: bool) -> Answer:
            asked.set()
            if body == b"slow":
                await asyncio.Future()
            return Answer(200, b"{}" if body == b"broken" else b'{"id": "never stored"}')

        works = BackgroundResponses(lambda: post, kept)
        for body in (b"broken", b"large", b"slow"):
            response = {"id": body.decode(), "created_at": 1, "background": True, "status": "in_progress", "output": []}
            works.start(ME, response, body)
        slow = works._tasks[ME.name, "slow"]
        await asked.wait()
        while len(works._tasks) > 1:
            await asyncio.sleep(0)
        assert [kept.get(ME, id_).response["status"] for id_ in ("broken", "large")] == ["failed"] * 2
        works.remove(ME, "slow")
        await asyncio.wait({slow})
        assert slow.cancelled()
        assert not works._n_bytes

    asyncio.run(asyncio.wait_for(test(), 120))


def test_a_field_of_a_form_is_a_text_or_a_list() -> None:
    for first, second in ((b"a", b"a[]"), (b"a[]", b"a"), (b"file", b"file[]")):
        reader = _FormReader(b"B")
        parts = [b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\nx\r\n' % name for name in (first, second)]
        with pytest.raises(ApiError, match="given twice"):
            reader.feed(b"".join(parts) + b"--B--")
