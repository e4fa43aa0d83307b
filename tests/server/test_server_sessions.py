"""``/v1/sessions``, and requests that continue them.

Oracle: the same requests with the whole history, without a session.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import quire
from one_call import call, post
from quire.files.histories import decode, encode
from quire.gguf import GGUFReader
from quire.server.routes.session_turns import pinned
from quire.server.service.caller import Caller
from quire.server.service.session_store import SessionStore
from quire.server.worker.protocol import Ask
from served import served, wait_until
from tiny_adapters import write_gguf_adapter

SYSTEM = {"role": "system", "content": "You are a helpful fox. " * 20}
GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, saved: Path) -> Iterator[list[httpx.Client]]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "keys").write_text("first-key-0123456789\nsecond-key-0123456789\n")
    arguments = ["--api-key-file", str(folder / "keys"), "--slot-save-path", str(saved)]
    arguments += ["--lora-modules", f"fox={write_random_adapter(folder / 'fox.gguf')}"]
    with served(folder, arguments) as server:
        found = [server.client(headers={"x-api-key": f"{name}-key-0123456789"}) for name in ("first", "second")]
        with found[0], found[1]:
            yield found


def write_random_adapter(path: Path) -> Path:
    """Write an adapter for the packaged model that changes its answers."""
    (model,) = Path(quire.__file__).parent.glob("data/tiny-chat*.gguf")
    reader, rng, tensors = GGUFReader(model), np.random.default_rng(3), {}
    for info in reader.tensors:
        if info.name.endswith("ffn_down.weight"):
            n_out, n_in = info.shape
            tensors[f"{info.name}.lora_a"] = (0.3 * rng.standard_normal((4, n_in))).astype(np.float32)
            tensors[f"{info.name}.lora_b"] = (0.3 * rng.standard_normal((n_out, 4))).astype(np.float32)
    return write_gguf_adapter(path, tensors, {"general.architecture": reader.metadata.text("general.architecture")})


def made(client: httpx.Client, path: str, body: Any = None, status: int = 200) -> Any:
    answer = client.post(path, json={} if body is None else body)
    assert answer.status_code == status, answer.text
    return answer.json()


def said(client: httpx.Client, *, stream: bool = False, **body: Any) -> str:
    if not stream:
        return str(made(client, "/v1/chat/completions", {**GREEDY, **body})["choices"][0]["message"]["content"])
    text = client.post("/v1/chat/completions", json={**GREEDY, **body, "stream": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def pins(client: httpx.Client) -> dict[str, int]:
    found: dict[str, int] = client.get("/v1/status").json()["models"][0]["pins"]
    return found


def test_turns_equal_requests_with_the_whole_history(clients: list[httpx.Client]) -> None:
    client = clients[0]
    session = made(client, "/v1/sessions", {"messages": [SYSTEM], "metadata": {"a": "b"}})
    id_ = session["id"]
    assert (session["object"], session["turns"], session["metadata"]) == ("session", 0, {"a": "b"})
    first = said(client, session=id_, messages=[SYSTEM, *user("Hello")], stream=True)
    history = [SYSTEM, *user("Hello"), {"role": "assistant", "content": first}]
    assert client.get(f"/v1/sessions/{id_}").json()["messages"] == history
    fork = made(client, f"/v1/sessions/{id_}/fork")
    assert (fork["forked_from"], fork["turns"]) == (id_, 1)
    asked = {"messages": user("Why?"), "model": "tiny-chat", **GREEDY}
    second = made(client, "/v1/messages", {**asked, "session": id_})["content"][0]["text"]
    assert second == said(client, messages=[*history, *user("Why?")], cache_salt="x")
    headers = {"x-quire-session": fork["id"]}
    forked = client.post("/v1/chat/completions", json=asked, headers=headers).json()
    assert forked["choices"][0]["message"]["content"] == second
    assert forked["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    listed = [each["id"] for each in client.get("/v1/sessions").json()["data"]]
    assert listed[:2] == [fork["id"], id_]
    assert client.delete(f"/v1/sessions/{id_}").json() == {"id": id_, "object": "session", "deleted": True}
    made(client, "/v1/chat/completions", {**asked, "session": id_}, 404)


@pytest.mark.parametrize(
    "message", [{"content": "x"}, {"role": 5}, {"role": "two words"}, {"role": "user", "content": 5}]
)
def test_a_session_does_not_begin_with_a_wrong_message(message: dict[str, Any]) -> None:
    answer = post("/v1/sessions", {"messages": [SYSTEM, message]})
    assert (answer.status_code, "messages[1]" in answer.text) == (400, True)


def test_sessions_keep_their_adapter(clients: list[httpx.Client]) -> None:
    """Turns, forks, pins and restored sessions use it; a turn equals a request with the whole history and the adapter."""
    client, history = clients[0], [SYSTEM, *user("Hello")]
    session = made(client, "/v1/sessions", {"model": "fox", "messages": [SYSTEM]})["id"]
    first = said(client, session=session, messages=user("Hello"))
    assert first == said(client, model="fox", messages=history, cache_salt="y")
    assert first != said(client, messages=history)
    history += [{"role": "assistant", "content": first}, *user("Why?")]
    expected = said(client, model="fox", messages=history, cache_salt="y")
    made(client, f"/v1/sessions/{session}/pin")
    fork = made(client, f"/v1/sessions/{session}/fork")["id"]
    made(client, f"/v1/sessions/{session}/save", {"filename": "with-adapter"})
    other = made(client, "/v1/sessions", {})["id"]
    made(client, f"/v1/sessions/{other}/restore", {"filename": "with-adapter"})
    for each in (fork, other, session):
        assert said(client, session=each, messages=user("Why?")) == expected
    for each in (fork, other, session):
        assert client.delete(f"/v1/sessions/{each}").status_code == 200


def test_raw_prompts_continue(clients: list[httpx.Client]) -> None:
    id_ = made(clients[0], "/v1/sessions", {"prompt": "Once upon"})["id"]
    turn = made(clients[0], "/v1/completions", {"prompt": " a time", "session": id_, **GREEDY})["choices"][0]["text"]
    whole = made(clients[0], "/v1/completions", {"prompt": "Once upon a time", **GREEDY})["choices"][0]["text"]
    assert turn == whole
    assert clients[0].get(f"/v1/sessions/{id_}").json()["prompt"] == f"Once upon a time{whole}"
    made(clients[0], "/v1/completions", {"prompt": ["a", "b"], "session": id_}, 400)
    made(clients[0], "/v1/chat/completions", {"messages": user("a"), "session": id_}, 400)


def test_keys_see_only_their_own_sessions(clients: list[httpx.Client]) -> None:
    id_ = made(clients[0], "/v1/sessions", {"messages": [SYSTEM]})["id"]
    assert id_ not in [each["id"] for each in clients[1].get("/v1/sessions").json()["data"]]
    assert clients[1].get(f"/v1/sessions/{id_}").status_code == 404
    assert clients[1].delete(f"/v1/sessions/{id_}").status_code == 404
    for path in ("fork", "pin", "unpin", "save"):
        made(clients[1], f"/v1/sessions/{id_}/{path}", {"filename": "x"}, 404)
    made(clients[1], "/v1/chat/completions", {"messages": user("a"), "session": id_}, 404)


def test_pins_cover_later_turns(clients: list[httpx.Client]) -> None:
    id_ = made(clients[0], "/v1/sessions", {"messages": [SYSTEM]})["id"]
    pinned = made(clients[0], f"/v1/sessions/{id_}/pin")
    assert pinned["pinned"]
    assert pinned["pinned_tokens"] >= 96
    wait_until(lambda: pins(clients[0])["count"] == 1)
    shown = pins(clients[0])
    assert 0 < shown["bytes"] <= shown["most_bytes"]
    line = next(line for line in clients[0].get("/metrics").text.split("\n") if line.startswith("quire_pinned_bytes{"))
    assert float(line.split()[1]) == shown["bytes"]
    said(clients[0], session=id_, messages=user("Tell me more about foxes. " * 8))
    assert clients[0].get(f"/v1/sessions/{id_}").json()["pinned_tokens"] > pinned["pinned_tokens"]
    assert made(clients[0], f"/v1/sessions/{id_}/unpin")["pinned"] is False
    wait_until(lambda: pins(clients[0])["bytes"] == 0)


def test_a_session_that_is_deleted_while_it_is_pinned_leaves_no_pin() -> None:
    store, caller, asked = SessionStore(), Caller("key"), []
    session = store.add(caller, "model", text="Once upon a time", metadata={})

    class Context:
        async def ask(self, engine: Any, work: Ask) -> Any:
            asked.append(work.verb)
            if work.verb == "pin":
                store.remove(caller, session.id)
            return {"n_tokens": 32}

    asyncio.run(pinned(Context(), None, session))  # type: ignore[arg-type]
    assert asked == ["pin", "unpin"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"n": 2, "messages": user("a")}, "n"),
        ({"messages": [{"role": "system", "content": "Another."}, *user("a")]}, "messages"),
    ],
)
def test_what_does_not_fit_a_session_is_refused(clients: list[httpx.Client], body: Any, field: str) -> None:
    id_ = made(clients[0], "/v1/sessions", {"messages": [SYSTEM]})["id"]
    assert made(clients[0], "/v1/chat/completions", {**body, "session": id_}, 400)["error"]["param"] == field


def test_refusals_name_the_field_and_the_query() -> None:
    error = post("/v1/sessions", {"metadata": {"k" * 65: "x"}}).json()["error"]
    assert error["param"] == "metadata"
    assert "a key of metadata" in error["message"]
    query = "&".join(f"a{i}=1" for i in range(17))
    for method, path in (("GET", "/v1/conversations/x/items"), ("POST", "/pause"), ("GET", "/slots")):
        answer = call(method, f"{path}?{query}")
        assert (answer.status_code, "16" in answer.text) == (400, True)


def test_full_contexts_drop_turns_only_when_asked(clients: list[httpx.Client]) -> None:
    long = [turn for i in range(40) for turn in user(f"{i} fox " * 30)]
    refused = made(clients[0], "/v1/sessions", {"messages": [SYSTEM, *long]})["id"]
    made(clients[0], "/v1/chat/completions", {"messages": user("a"), "session": refused, **GREEDY}, 400)
    id_ = made(clients[0], "/v1/sessions", {"messages": [SYSTEM, *long], "truncation": "auto"})["id"]
    body = {"messages": user("a"), "session": id_, **GREEDY}
    answer = clients[0].post("/v1/chat/completions", json=body)
    assert "oldest messages" in answer.headers["x-quire-ignored"]


def test_saved_sessions_continue_and_files_stay_in_their_folder(clients: list[httpx.Client], tmp_path: Path) -> None:
    client, other = clients
    id_ = made(client, "/v1/sessions", {"messages": [SYSTEM]})["id"]
    said(client, session=id_, messages=user("Hello"))
    saved = made(client, f"/v1/sessions/{id_}/save", {"filename": "fox.session"})
    assert saved["bytes"] > 100
    again = made(client, "/v1/sessions")["id"]
    restored = made(client, f"/v1/sessions/{again}/restore", {"filename": "fox.session"})
    assert restored["tokens"] > 100
    histories = [client.get(f"/v1/sessions/{each}").json()["messages"] for each in (id_, again)]
    assert histories[0] == histories[1]
    theirs = made(other, "/v1/sessions")["id"]
    made(other, f"/v1/sessions/{theirs}/restore", {"filename": "fox.session"}, 404)
    outside = tmp_path / "outside"
    outside.write_text("x")
    bad = ["../x", "a/b", "..", ".hidden", str(outside), "a\\b", "C:x", "nul.txt", "x" * 200, "a\x00", "a\uff0e", "x."]
    for name in bad:
        for path in (f"/v1/sessions/{id_}/save", f"/v1/sessions/{id_}/restore", "/slots/0?action=save"):
            made(client, path, {"filename": name}, 400)


FORGED_OPTIONS: list[dict[str, Any]] = [
    {"tools": "abc"}, {"tools": [5]}, {"tools": [{"type": "function"}]}, {"parallel_tool_calls": 5}, {"unknown": 1},
    {"chat_template": "{{ 1 }}"}, {"max_prompt_tokens": 5}, {"tool_format": "absent"}, {"template_values": [1]},
    {"keep_tokens": "x"}, {"tools": [{"type": "function", "function": {"name": 5}}]},
]  # fmt: skip


def test_files_with_forged_options_change_nothing(clients: list[httpx.Client], saved: Path) -> None:
    client = clients[0]
    id_ = made(client, "/v1/sessions", {"messages": [SYSTEM]})["id"]
    made(client, f"/v1/sessions/{id_}/save", {"filename": "true.session"})
    (whole,) = saved.rglob("true.session")
    history = decode(whole.read_bytes(), "x")
    bad_messages = [[{"role": 5, "content": "x"}], [{"role": "user", "content": 5}]]
    forged = [{"options": options} for options in FORGED_OPTIONS] + [{"messages": each} for each in bad_messages]
    for values in [*forged, {"text": "Once"}]:
        whole.write_bytes(encode({**history, **values}))
        error = made(client, f"/v1/sessions/{id_}/restore", {"filename": "true.session"}, 400)["error"]
        assert (error["param"], error["code"]) in (("filename", "unusable_file"), ("filename", "other_file")), values
    assert client.get(f"/v1/sessions/{id_}").json()["messages"] == [SYSTEM]
    assert said(client, session=id_, messages=user("Hello"))


def test_slots_are_saved_restored_and_erased(clients: list[httpx.Client]) -> None:
    """The replies have llama.cpp's fields."""
    client, other = clients
    body = {"prompt": "Tell me about foxes. " * 12, "n_predict": 4, "temperature": 0, "id_slot": 1}
    answer = client.post("/completion", json={**body, "return_tokens": True})
    assert "x-quire-ignored" not in answer.headers
    saved = made(client, "/slots/1?action=save", {"filename": "slot1.bin"})
    assert sorted(saved) == ["filename", "id_slot", "n_saved", "n_written", "timings"]
    n_prompt = answer.json()["tokens_evaluated"]
    assert saved["n_saved"] == n_prompt + len(answer.json()["tokens"])
    assert made(client, "/slots/1?action=erase") == {"id_slot": 1, "n_erased": saved["n_saved"]}
    assert client.post("/slots/1?action=erase").json()["n_erased"] == 0
    made(other, "/slots/1?action=restore", {"filename": "slot1.bin"}, 404)
    restored = made(client, "/slots/1?action=restore", {"filename": "slot1.bin"})
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    chat = {"messages": user("Hello"), "id_slot": 1, **GREEDY}
    usage = made(client, "/v1/chat/completions", chat)["usage"]
    assert made(client, "/slots/1?action=save", {"filename": "b"})["n_saved"] == usage["total_tokens"]
    for path, status in (("/slots/99?action=save", 400), ("/slots/1?action=x", 400), ("/slots/x?action=erase", 400)):
        made(client, path, {"filename": "x"}, status)


def n_computed(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.split("\n")
    return float(next(line for line in lines if line.startswith("quire_computed_tokens_total")).split()[-1])


def test_restoring_after_a_restart_computes_at_most_a_block(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    arguments = ["--slot-save-path", str(tmp_path / "saved")]
    with served(tmp_path, arguments) as server, server.client() as client:
        id_ = made(client, "/v1/sessions", {"messages": [SYSTEM]})["id"]
        said(client, session=id_, messages=user("Hello"))
        made(client, f"/v1/sessions/{id_}/save", {"filename": "a"})
        prompt = {"prompt": list(range(1, 200)), "id_slot": 0, "n_predict": 4, "ignore_eos": True}
        made(client, "/completion", prompt)
        made(client, "/slots/0?action=save", {"filename": "b"})
        made(client, "/slots/1?action=save", {"filename": "empty"})
    for is_damaged in (False, True):
        with served(tmp_path, arguments) as server, server.client() as client:
            id_ = made(client, "/v1/sessions")["id"]
            made(client, f"/v1/sessions/{id_}/restore", {"filename": "a"})
            assert made(client, "/slots/0?action=restore", {"filename": "b"})["n_restored"] > 200
            made(client, "/slots/1?action=restore", {"filename": "empty"})
            made(client, "/completion", {"prompt": list(range(200, 240)), "n_predict": 1})
            least = 40 + 2 * 33 if is_damaged else 40
            wait_until(lambda client=client, least=least: n_computed(client) > least)  # the count lags behind
            assert is_damaged or n_computed(client) <= 40 + 2 * 33
        for path in filter(Path.is_file, (tmp_path / "saved").rglob(".blocks/*")):
            assert path.stat().st_mode & 0o777 == 0o600
            path.write_bytes(path.read_bytes()[:-5])
