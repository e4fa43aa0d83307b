"""``/v1/files`` and ``/v1/batches``, over restarts, and ``quire batch``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from quire.errors import RequestError
from quire.server.service.batch_lines import read_lines
from served import environment, served, wait_until

URL = "/v1/chat/completions"


def line(custom_id: str, text: str = "Tell me a story about a fox", **body: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": text}], "max_tokens": 6, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": asked}


def jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def answers_of(content: bytes) -> dict[str, dict[str, Any]]:
    """Return the responses by custom_id, each of which occurs once."""
    found = [json.loads(each) for each in content.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each["response"] for each in found}


def upload(client: httpx.Client, content: bytes) -> str:
    sent = client.post("/v1/files", files={"file": ("dir/in.jsonl", content)}, data={"purpose": "batch"})
    assert sent.status_code == 200, sent.text
    assert sent.json()["filename"] == "in.jsonl"
    return str(sent.json()["id"])


def ended(client: httpx.Client, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.update(client.get(f"/v1/batches/{id_}").json())
        return found["status"] not in ("in_progress", "cancelling")

    wait_until(has_ended, 600)
    return found


def start(client: httpx.Client, lines: list[dict[str, Any]]) -> str:
    body = {"input_file_id": upload(client, jsonl(lines)), "endpoint": URL, "completion_window": "24h"}
    made = client.post("/v1/batches", json={**body, "metadata": {"a": "b"}})
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("first-key-0123456789\nsecond-key-0123456789\n")
    return path


@pytest.fixture(scope="module")
def clients(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[httpx.Client]]:
    folder = tmp_path_factory.mktemp("server")
    with served(folder, ["--state-dir", str(folder / "state"), "--api-key-file", str(keys)]) as server:
        found = [server.client(headers={"authorization": f"Bearer {key}"}) for key in keys.read_text().split()]
        with found[0], found[1]:
            yield found


def test_a_batch_is_answered_like_its_requests(clients: list[httpx.Client]) -> None:
    client = clients[0]
    lines = [line(f"r{i}", f"Tell me about {i}") for i in range(5)] + [line("wrong", messages=[])]
    batch = ended(client, start(client, lines))
    assert (batch["status"], batch["metadata"]) == ("completed", {"a": "b"})
    assert batch["request_counts"] == {"total": 6, "completed": 5, "failed": 1}
    answers = answers_of(client.get(f"/v1/files/{batch['output_file_id']}/content").content)
    for each in lines[:5]:
        alone = client.post(URL, json=each["body"]).json()
        assert answers[each["custom_id"]]["status_code"] == 200
        assert answers[each["custom_id"]]["body"]["choices"] == alone["choices"]
    errors = answers_of(client.get(f"/v1/files/{batch['error_file_id']}/content").content)
    assert errors["wrong"]["status_code"] == 400
    assert errors["wrong"]["body"]["error"]["param"] == "messages"


def test_callers_see_only_what_is_theirs(clients: list[httpx.Client]) -> None:
    first, second = clients
    file = upload(first, jsonl([line("a")]))
    assert second.get(f"/v1/files/{file}").status_code == 404
    assert second.get(f"/v1/files/{file}/content").status_code == 404
    assert second.delete(f"/v1/files/{file}").status_code == 404
    assert second.post("/v1/batches", json={"input_file_id": file, "endpoint": URL}).status_code == 404
    assert second.get("/v1/files").json()["data"] == []
    assert first.delete(f"/v1/files/{file}").json()["deleted"] is True
    assert first.get(f"/v1/files/{file}").status_code == 404


def test_a_batch_can_be_cancelled_and_keeps_its_answers(clients: list[httpx.Client]) -> None:
    client = clients[0]
    id_ = start(client, [line(f"r{i}", max_tokens=400, ignore_eos=True) for i in range(200)])
    assert client.post(f"/v1/batches/{id_}/cancel").json()["status"] == "cancelling"
    batch = ended(client, id_)
    assert batch["status"] == "cancelled"
    assert batch["cancelled_at"] is not None
    assert client.post(f"/v1/batches/{id_}/cancel").status_code == 409


def test_a_response_in_the_background_is_that_of_a_client_who_waits(clients: list[httpx.Client]) -> None:
    client, other = clients
    body = {"input": "What is the capital of France?", "temperature": 0, "max_output_tokens": 20}
    begun = client.post("/v1/responses", json={**body, "background": True, "metadata": {"a": "b"}}).json()
    assert (begun["status"], begun["output"], begun["background"]) == ("in_progress", [], True)
    path = f"/v1/responses/{begun['id']}"
    assert other.get(path).status_code == 404
    assert other.post(f"{path}/cancel").status_code == 404
    while (found := client.get(path).json())["status"] == "in_progress":
        time.sleep(0.02)
    waited = client.post("/v1/responses", json=body).json()
    assert (found["status"], found["metadata"], found["id"]) == ("completed", {"a": "b"}, begun["id"])
    assert [item["content"] for item in found["output"]] == [item["content"] for item in waited["output"]]
    usage = client.post(
        "/v1/responses", json={"input": "Go on.", "previous_response_id": begun["id"], "max_output_tokens": 1}
    )
    after = client.post(
        "/v1/responses", json={"input": "Go on.", "previous_response_id": waited["id"], "max_output_tokens": 1}
    )
    assert usage.json()["usage"]["input_tokens"] == after.json()["usage"]["input_tokens"]


def test_a_response_in_the_background_can_fail_and_be_cancelled(clients: list[httpx.Client]) -> None:
    client = clients[0]
    begun = client.post("/v1/responses", json={"input": "x " * 5000, "background": True}).json()
    path = f"/v1/responses/{begun['id']}"
    while (found := client.get(path).json())["status"] == "in_progress":
        time.sleep(0.02)
    assert (found["status"], found["error"]["code"]) == ("failed", "context_length_exceeded")
    assert client.post("/v1/responses", json={"input": "x", "previous_response_id": begun["id"]}).status_code == 400
    long = {"input": "Tell me a story", "background": True, "ignore_eos": True, "max_output_tokens": 1900}
    begun = client.post("/v1/responses", json=long).json()
    path = f"/v1/responses/{begun['id']}"
    assert client.post(f"{path}/cancel").json()["status"] == "cancelled"
    assert client.get(path).json()["status"] == "cancelled"
    for more, named in (({"stream": True}, "stream"), ({"store": False}, "store")):
        refused = client.post("/v1/responses", json={"input": "x", "background": True, **more})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, named)


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[" * 100_000, jsonl([line("a"), line("a")]), b"\xff\xfe"])
def test_a_file_that_is_no_batch_is_refused(clients: list[httpx.Client], content: bytes) -> None:
    file = upload(clients[0], content)
    refused = clients[0].post("/v1/batches", json={"input_file_id": file, "endpoint": URL})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input_file_id"


def test_a_batch_survives_kill_and_answers_each_line_once(tmp_path: Path) -> None:
    arguments = ["--state-dir", str(tmp_path / "state")]
    lines = [line(f"r{i}", f"Tell me about {i}", max_tokens=40, ignore_eos=True) for i in range(120)]
    with served(tmp_path, arguments) as server, server.client() as client:
        id_ = start(client, lines)
        while client.get(f"/v1/batches/{id_}").json()["request_counts"]["completed"] < 5:
            time.sleep(0.01)
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    with served(tmp_path, arguments) as server, server.client() as client:
        batch = ended(client, id_)
        assert batch["request_counts"] == {"total": 120, "completed": 120, "failed": 0}
        answers = answers_of(client.get(f"/v1/files/{batch['output_file_id']}/content").content)
        assert set(answers) == {each["custom_id"] for each in lines}


def test_a_server_without_a_folder_refuses(tmp_path: Path) -> None:
    with served(tmp_path) as server, server.client() as client:
        for path in ("/v1/files", "/v1/batches"):
            assert client.get(path).status_code == 501


def quire_batch(source: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "quire", "batch", str(source), str(out), "--threads", "1"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, env=environment())


def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl([line(f"r{i}", f"Tell me about {i}") for i in range(150)]))
    first = quire_batch(source, out)
    while not out.exists() or out.read_bytes().count(b"\n") < 5:
        time.sleep(0.01)
    first.kill()
    first.communicate()
    with out.open("ab") as file:
        file.write(b'{"id":"batch_req_0", "resp')  # as if it had been cut in the middle of a line
    second = quire_batch(source, out)
    _, said = second.communicate()
    assert second.returncode == 0, said
    answers = answers_of(out.read_bytes())
    assert set(answers) == {f"r{i}" for i in range(150)}
    assert all(answer["status_code"] == 200 for answer in answers.values())


def test_answers_of_another_batch_are_not_touched(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl([line("a")]))
    out.write_bytes(b'{"custom_id": "z"}\n')
    process = quire_batch(source, out)
    _, said = process.communicate()
    assert process.returncode == 1
    assert b"'z'" in said
    assert out.read_bytes() == b'{"custom_id": "z"}\n'


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"custom_id": 3}, "custom_id"), ({"custom_id": ""}, "custom_id"), ({"method": "GET"}, "method"),
        ({"url": "/v1/models/unload"}, "url"), ({"body": []}, "body"), ({"body": {"stream": True}}, "stream"),
    ],
)  # fmt: skip
def test_lines_that_are_no_requests_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=rf"line 2: .*{named}"):
        list(read_lines([b"\n", json.dumps({**line("a"), **change}).encode()]))
