"""Models that are unloaded and loaded again while clients use them.

Oracles: every answer equals the undisturbed server's or is 503 with Retry-After; the system's list of processes.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from quire.engine.loading.loader import packaged_model
from served import Served, served

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {"content": "a fox"}),
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}),
    ("/v1/embeddings", {"input": "a fox"}),
    ("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/api/show", {}),
]
N_CYCLES = 4


def plain(path: str, answer: Any) -> Any:
    """Return an answer without its id and date."""
    if path == "/v1/completions":
        return answer["choices"][0]["text"]
    if path == "/v1/chat/completions":
        return answer["choices"][0]["message"]
    return answer


class Clients:
    """Threads that send requests until told to stop, and record what goes wrong."""

    def __init__(self, server: Served, expected: dict[str, Any]) -> None:
        self._server = server
        self._expected = expected
        self._stop = threading.Event()
        self.wrong: list[Any] = []
        self.n_answers = self.n_refused = 0
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(8)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _ask(self, number: int) -> None:
        with self._server.client() as client:
            while not self._stop.is_set():
                path, body = ASKED[number % len(ASKED)]
                response = client.post(path, json={**body, "model": "one"})
                if response.status_code == 503 and int(response.headers["retry-after"]) >= 1:
                    self.n_refused += 1
                elif response.status_code != 200 or plain(path, response.json()) != self._expected[path]:
                    self.wrong.append((path, response.status_code, response.text))
                self.n_answers += 1
                number += 1


def test_answers_are_correct_or_503(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(packaged_model(), folder / "one.gguf")
    with served(tmp_path, ["--models-dir", str(folder)]) as server, server.client() as client:
        expected = {}
        for path, body in ASKED:
            response = client.post(path, json={**body, "model": "one"})
            assert response.status_code == 200, response.text
            expected[path] = plain(path, response.json())
        n_closed = 0
        with Clients(server, expected) as clients:
            for _ in range(N_CYCLES):
                n_closed += closed(client)
                assert client.get("/health").status_code == 200
        assert clients.wrong == []
        assert n_closed == N_CYCLES
        assert clients.n_answers > N_CYCLES
        rows = client.get("/v1/models/list").json()["models"]
        assert [row["model"] for row in rows] == ["one"]
        workers = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        if not workers.exists():
            pytest.skip("this system does not tell a process' children")
        assert len(workers.read_text().split()) <= 1


def closed(client: httpx.Client) -> bool:
    """Try to unload the model several times; others keep it busy (409) most of the time."""
    for _ in range(10_000):
        response = client.post("/v1/models/unload", json={"model": "one"})
        if response.status_code == 200:
            return True
        assert response.status_code in (404, 409), response.text
    return False


def test_the_only_model_is_loaded_again(tmp_path: Path) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    with served(tmp_path) as server, server.client() as client:
        expected = client.post("/v1/completions", json=body).json()["choices"]
        (row,) = client.get("/v1/models/list").json()["models"]
        shown = (row["file_bytes"], row["state"], row["requests"])
        assert shown == (packaged_model().stat().st_size, "ready", 0)
        for action, state in (("reload", "ready"), ("unload", "closed"), ("load", "ready"), ("unload", "closed")):
            response = client.post(f"/v1/models/{action}", json={"model": "tiny-chat"})
            assert (response.status_code, response.json()) == (200, {"model": "tiny-chat", "state": state})
            if state == "ready":
                assert client.post("/v1/completions", json=body).json()["choices"] == expected
        # A request that needs an unloaded model loads it.
        assert client.post("/v1/completions", json=body).json()["choices"] == expected
