"""vLLM's routes for training loops.

Oracle: a model opened with the same weights.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from one_call import call
from quire.engine import LLM
from quire.safetensors import SafetensorsFolder
from quire.server.worker.model_worker import ModelWorker
from quire.server.worker.protocol import Answer, Ask, Open
from served import served, wait_until
from tiny_checkpoints import write_checkpoint, write_safetensors

BODY = {"prompt": [1 + i % 50 for i in range(40)], "max_tokens": 8, "temperature": 0}


def token_ids(folder: Path) -> str:
    with LLM(folder, threads=1, kv_dtype="f32") as llm:
        (result,) = llm.generate([BODY["prompt"]], max_tokens=8, temperature=0)  # type: ignore[list-item]
    return result.text


def made(client: httpx.Client, url: str, status: int = 200, **body: Any) -> httpx.Response:
    answer = client.post(url, json=body) if body else client.post(url)
    assert answer.status_code == status, (url, answer.text)
    return answer


def said(client: httpx.Client) -> str:
    return str(made(client, "/v1/completions", **BODY).json()["choices"][0]["text"])


def test_the_routes_are_off_by_default() -> None:
    for method, path in (("POST", "/pause"), ("POST", "/sleep"), ("GET", "/is_paused"), ("POST", "/wake_up")):
        assert call(method, path).status_code == 403


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    for name in ("a", "b"):
        write_checkpoint(folder / name, "llama")
    old = SafetensorsFolder(folder / "b")
    tensors = {name: old.array(name) + np.float32(0.05 * (".1.mlp" in name)) for name in list(old)}
    write_safetensors(folder / "b" / "model.safetensors", tensors)
    return folder


def test_pause_sleep_and_new_weights(weights: Path, tmp_path: Path) -> None:
    expected = [token_ids(weights / name) for name in ("a", "b")]
    assert expected[0] != expected[1]
    arguments = [str(weights / "a"), "--training-routes", "--weights-dir", str(weights)]
    with served(tmp_path, arguments) as server, server.client() as client:
        assert said(client) == expected[0]
        assert made(client, "/pause?mode=wait").json() == {"status": "paused"}
        assert client.get("/is_paused").json() == {"is_paused": True}
        answers: list[str] = []
        waiting = threading.Thread(target=lambda: answers.append(said(client)))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert made(client, "/resume").json() == {"status": "resumed"}
        waiting.join(120)
        assert answers == [expected[0]]
        made(client, "/sleep?level=2")
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert made(client, "/v1/completions", 503, **BODY).json()["error"]["code"] == "model_sleeping"
        made(client, "/wake_up?tags=weights")
        made(client, "/update_weights", path="b")
        made(client, "/wake_up?tags=kv_cache")
        assert client.get("/is_sleeping").json() == {"is_sleeping": False}
        assert said(client) == expected[1]
        for bad in ("../a", "/etc", "missing", ".", "b/../../x"):
            made(client, "/update_weights", 404, path=bad)
        (weights / "bad.gguf").write_bytes(b"not a model")
        answer = made(client, "/update_weights", 400, path="bad.gguf").json()
        assert (answer["error"]["code"], answer["error"]["param"]) == ("weights_not_loaded", "path")
        assert said(client) == expected[1]
        made(client, "/pause", mode="wait", clear_cache=False)
        assert client.get("/is_paused").json() == {"is_paused": True}
        made(client, "/resume", model="a")
        for path, body in (("/pause", {"mode": "x"}), ("/pause?mode=keep", {"mode": "wait"}), ("/sleep", {"level": 3}),
                           ("/sleep", {"tags": ["weights"]}), ("/wake_up", {"tags": "x"}),
                           ("/pause", {"mode": "keep", "wait_for_inflight_requests": True}),
                           ("/reset_prefix_cache", {"reset_running_requests": True}), ("/resume", {"model": 1})):  # fmt: skip
            assert (name := made(client, path, 400, **body).json()["error"]["param"]) in body, (path, name)
        made(client, "/resume", 404, model="other")
        assert client.get("/is_paused").json() == {"is_paused": False}
        answer = client.post("/pause", content=b"[1]", headers={"content-type": "application/json"})
        assert answer.status_code == 400
        made(client, "/pause?mode=x", 400)
        made(client, "/sleep?mode=keep", 400)
        for route in ("/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache"):
            assert made(client, f"{route}?model=other", 404).json()["error"]["code"] == "model_not_found"
        made(client, "/update_weights", 404, path="a", model="other")
        assert client.get("/is_paused").json() == {"is_paused": False}
        made(client, "/wake_up?tags=x", 400)
        made(client, "/reset_prefix_cache")
        made(client, "/update_weights", path="a")
        assert said(client) == expected[0]
        assert client.get("/health").status_code == 200


def test_the_state_is_told_while_a_pause_waits() -> None:
    told = queue.SimpleQueue[Any]()
    worker = ModelWorker(Open(None, {"threads": 1}), lambda messages: [told.put(each) for each in messages])
    done = threading.Event()
    try:
        worker._controlling.submit("", 0, done.wait)  # as a pause for requests in flight
        worker.handle(Ask(7, "control", {"verb": "state", "values": {}}))
        assert told.get(timeout=60) == Answer(7, {"is_paused": False, "is_sleeping": False, "asleep": []})
    finally:
        done.set()
        worker.close()


def begun(client: httpx.Client) -> tuple[threading.Thread, list[str]]:
    """Begin a long answer and wait for its first token; return how it ends."""
    lines: list[str] = []
    began = threading.Event()

    def read() -> None:
        body = {"prompt": "Once", "max_tokens": 30_000, "ignore_eos": True, "temperature": 0, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                began.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(60)
    return thread, lines


def test_sleep_and_resume_do_not_wait_for_requests_in_flight(tmp_path: Path) -> None:
    with served(tmp_path, ["--training-routes", "--n-ctx", "32768"]) as server, server.client() as client:
        thread, lines = begun(client)
        answers: list[httpx.Response] = []
        pausing = threading.Thread(target=lambda: answers.append(client.post("/pause?mode=wait")))
        pausing.start()
        while not client.get("/is_paused").json()["is_paused"]:
            pausing.join(0.02)
        made(client, "/resume")
        pausing.join(60)
        assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (409, "pause_ended")
        assert thread.is_alive()
        made(client, "/sleep")
        thread.join(60)
        assert "model_sleeping" in "".join(lines[-3:])
        made(client, "/wake_up")
        thread, lines = begun(client)
        made(client, "/pause")
        thread.join(60)
        assert "request_aborted" in "".join(lines[-3:])


def test_a_model_whose_worker_dies_stays_paused_and_asleep(tmp_path: Path) -> None:
    with served(tmp_path, ["--training-routes"]) as server, server.client() as client:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        if not children.exists():
            pytest.skip("this system does not tell a process' children")

        def kill() -> None:
            before = children.read_text()
            os.kill(int(before), signal.SIGKILL)
            while children.read_text() in (before, "") or client.get("/health").status_code != 200:
                assert server.process.poll() is None
                time.sleep(0.02)

        made(client, "/pause?mode=wait")
        kill()
        assert client.get("/is_paused").json() == {"is_paused": True}
        made(client, "/sleep")
        made(client, "/wake_up?tags=weights")
        kill()
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert made(client, "/v1/completions", 503, **BODY).json()["error"]["code"] == "model_sleeping"
        made(client, "/wake_up?tags=kv_cache")
        assert client.get("/is_sleeping").json() == {"is_sleeping": False}
        assert client.get("/is_paused").json() == {"is_paused": True}
        os.kill(int(children.read_text()), signal.SIGKILL)  # the new worker is told once it is there
        made(client, "/resume")
        assert said(client)


def test_a_full_queue_does_not_lock_the_routes(tmp_path: Path) -> None:
    arguments = ["--training-routes", "--max-sequences", "1", "--max-queue", "1"]
    with served(tmp_path, arguments) as server, server.client() as client:
        made(client, "/pause", mode="keep")
        answers: list[str] = []
        waiting = [threading.Thread(target=lambda: answers.append(said(client))) for _ in range(2)]
        for thread in waiting:
            thread.start()
        wait_until(lambda: client.get("/v1/status").json()["models"][0]["requests"] == 2)
        assert client.post("/v1/completions", json=BODY).status_code == 429
        made(client, "/resume", model="tiny-chat")
        for thread in waiting:
            thread.join(60)
        assert len(answers) == 2
