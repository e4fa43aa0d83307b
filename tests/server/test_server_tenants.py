"""Callers with their own keys share nothing that one of them could observe.

Oracle: the figures of the same requests from a caller that sent nothing before.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Served, served, wait_until

LONG = "The secret of the first caller is written in many words. " * 20
CHAT = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", CHAT, "usage/prompt_tokens_details/cached_tokens"),
    ("/v1/completions", {"prompt": LONG, "max_tokens": 1}, "usage/prompt_tokens_details/cached_tokens"),
    ("/v1/responses", {"input": LONG, "max_output_tokens": 1}, "usage/input_tokens_details/cached_tokens"),
    ("/v1/messages", {**CHAT, "model": "tiny-chat"}, "usage/cache_read_input_tokens"),
    (
        "/v1/generate",
        {"prompt": LONG, "stream": False, "sampling_params": {"max_tokens": 1}},
        "usage/prompt_tokens_details/cached_tokens",
    ),
    ("/completion", {"prompt": LONG, "n_predict": 1}, "tokens_cached"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("server")
    keys = folder / "keys"
    keys.write_text("first-key-0123456789\nsecond-key-012345678\n")
    with served(folder, ["--api-key-file", str(keys), "--max-sequences", "4"]) as running:
        yield running


@pytest.fixture
def first(server: Served) -> Iterator[httpx.Client]:
    with server.client(headers={"authorization": "Bearer first-key-0123456789"}) as made:
        yield made


@pytest.fixture
def second(server: Served) -> Iterator[httpx.Client]:
    with server.client(headers={"x-api-key": "second-key-012345678"}) as made:
        yield made


def n_cached(client: httpx.Client, path: str, body: dict[str, Any], figure: str) -> int:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    value: Any = response.json()
    for name in figure.split("/"):
        value = value[name]
    assert isinstance(value, int)
    return value


def numbered(body: dict[str, Any], number: int) -> dict[str, Any]:
    """Give the body a unique text, so that no other case's text is in the cache."""
    if "messages" in body:
        return {**body, "messages": [{"role": "user", "content": f"{number}. {LONG}"}]}
    name = "prompt" if "prompt" in body else "input"
    return {**body, name: f"{number}. {LONG}"}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[path for path, _, _ in CASES])
def test_cached_prompts_are_shared_only_within_a_caller(first: httpx.Client, second: httpx.Client, number: int) -> None:
    path, body, figure = CASES[number]
    body = numbered(body, number)
    counts = [n_cached(client, path, body, figure) for client in (first, first, second, first, second)]
    assert [counts[0], counts[2]] == [0, 0]
    assert counts[1] == counts[3] == counts[4] >= 128


def test_a_salt_separates_users_of_one_caller(first: httpx.Client, second: httpx.Client) -> None:
    path, body, figure = CASES[0]
    body = numbered(body, 100)
    assert n_cached(first, path, {**body, "cache_salt": "a"}, figure) == 0
    assert n_cached(first, path, {**body, "cache_salt": "b"}, figure) == 0
    assert n_cached(first, path, body, figure) == 0
    assert n_cached(second, path, {**body, "cache_salt": "a"}, figure) == 0
    assert n_cached(first, path, {**body, "cache_salt": "a"}, figure) >= 128


def test_stored_responses_belong_to_their_caller(first: httpx.Client, second: httpx.Client) -> None:
    id_ = first.post("/v1/responses", json={"input": "A secret.", "max_output_tokens": 4}).json()["id"]
    assert second.get(f"/v1/responses/{id_}").status_code == 404
    assert second.delete(f"/v1/responses/{id_}").status_code == 404
    body = {"input": "Which?", "previous_response_id": id_, "max_output_tokens": 4}
    assert second.post("/v1/responses", json=body).status_code == 404
    assert first.post("/v1/responses", json=body).status_code == 200


def figure(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_a_busy_priority_key_does_not_starve_others(first: httpx.Client, second: httpx.Client) -> None:
    """The first key's answers are as long and as many as possible; the other key's requests still finish."""
    long = {"prompt": "Once", "max_tokens": 700, "ignore_eos": True, "priority": 100}
    alone = first.post("/v1/completions", json={**long, "seed": 1}).json()["choices"][0]["text"]
    for _ in range(10):  # figures come late: in a round that is seen late, a place may be free by itself
        with ThreadPoolExecutor(8) as threads:
            holding = [threads.submit(first.post, "/v1/completions", json={**long, "seed": 1}) for _ in range(8)]
            wait_until(lambda: figure(second, "quire_running{") == 4)
            answer = second.post("/v1/completions", json={"prompt": "Twice", "max_tokens": 2})
            assert answer.status_code == 200
            assert not all(held.done() for held in holding)
            texts = [held.result().json()["choices"][0]["text"] for held in holding]
        assert texts == [alone] * 8
        wait_until(lambda: figure(second, "quire_running{") == 0)  # figures of the end of the round
        if figure(second, "quire_preemptions_total{") >= 1:
            return
    raise AssertionError("no request was preempted")


def test_an_unread_answer_gives_up_its_place(server: Served, first: httpx.Client) -> None:
    body = {"prompt": "Once", "max_tokens": 700, "ignore_eos": True, "seed": 1, "logprobs": 20}
    alone = first.post("/v1/completions", json=body).json()["choices"][0]["text"]
    head = {"authorization": "Bearer first-key-0123456789"}
    # The system's own buffers may hold megabytes of unread data.
    small = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)])
    with (
        server.client(headers=head, transport=small) as client,
        client.stream("POST", "/v1/completions", json={**body, "stream": True}) as unread,
    ):
        wait_until(lambda: figure(first, "quire_paused{") == 1)
        wait_until(lambda: figure(first, "quire_running{") == 0)
        # It continues where it stopped.
        events = [line[6:] for line in unread.iter_lines() if line.startswith("data: {")]
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == alone
    wait_until(lambda: figure(first, "quire_paused{") == 0)


def test_tokens_of_an_abandoned_answer_are_counted(first: httpx.Client) -> None:
    names = ("quire_generated_tokens_total", "quire_prompt_tokens_total", 'quire_finished_total{reason="cancelled"}')
    before = [figure(first, name) for name in names]
    body = {"prompt": "Once upon", "max_tokens": 700, "ignore_eos": True, "stream": True, "logprobs": 20}
    n_seen = 0
    with first.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            n_seen += line.startswith("data: {")
            if n_seen == 20:
                break
    wait_until(lambda: figure(first, names[2]) == before[2] + 1)
    generated, prompt = (figure(first, name) - at for name, at in zip(names[:2], before[:2], strict=True))
    assert 20 <= generated < 700
    assert 1 <= prompt < 10


def test_equal_request_ids_do_not_collide(first: httpx.Client, second: httpx.Client) -> None:
    header = {"x-request-id": "the-same"}
    answers = []
    for client, word in ((first, "one"), (second, "two")):
        body = {"prompt": word, "max_tokens": 1, "echo": True}
        response = client.post("/v1/completions", json=body, headers=header)
        assert response.headers["x-request-id"] == "the-same"
        answers.append(response.json()["choices"][0]["text"])
    assert [answer[:3] for answer in answers] == ["one", "two"]


def test_long_texts_of_one_caller_do_not_block_others(first: httpx.Client, second: httpx.Client) -> None:
    """As many as the first caller can have in flight: to be counted, and as chats for the template."""
    long = "some words of a text " * 100_000
    over = threading.Event()
    taken: list[int] = []

    def starve(path: str, body: dict[str, Any]) -> None:
        while not over.is_set():
            taken.append(first.post(path, json=body).status_code)

    works = [("/tokenize", {"content": long}), ("/apply-template", {"messages": [{"role": "user", "content": long}]})]
    threads = [threading.Thread(target=starve, args=work) for work in works * 2]
    for thread in threads:
        thread.start()
    try:
        answers = [second.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2}) for _ in range(20)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert [answer.status_code for answer in answers] == [200] * 20
    # The first caller's requests were worked on meanwhile; only it is told to retry later.
    assert 200 in taken
    assert set(taken) <= {200, 429}
