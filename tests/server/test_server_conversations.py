"""``/v1/conversations`` and responses that continue them.

Oracle: responses with all items as their input.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from quire.server.failures import ApiError
from quire.server.service.caller import Caller
from quire.server.service.conversation_store import ConversationStore
from served import served

ASK = {"max_output_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server")
    (path / "keys").write_text("first-key-0123456789\nsecond-key-0123456789\n")
    return path


def arguments(folder: Path) -> list[str]:
    return ["--api-key-file", str(folder / "keys"), "--state-dir", str(folder / "state")]


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key-0123456789"}


@pytest.fixture
def clients(folder: Path) -> Iterator[list[httpx.Client]]:
    with served(folder, arguments(folder)) as server:
        found = [server.client(headers=headers(name)) for name in ("first", "second")]
        with found[0], found[1]:
            yield found


def made(client: httpx.Client, path: str, body: Any = None, status: int = 200) -> Any:
    answer = client.post(path, json={} if body is None else body)
    assert answer.status_code == status, answer.text
    return answer.json()


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "status")} for item in items]


def test_responses_continue_conversations_over_restarts(folder: Path) -> None:
    system = {"role": "system", "content": "You are a fox."}
    with served(folder, arguments(folder)) as server, server.client(headers=headers("first")) as client:
        conversation = made(client, "/v1/conversations", {"items": [system], "metadata": {"topic": "foxes"}})
        id_ = conversation["id"]
        assert (conversation["object"], conversation["metadata"]) == ("conversation", {"topic": "foxes"})
        first = made(client, "/v1/responses", {**ASK, "conversation": id_, "input": "Hello"})
        assert first["conversation"] == {"id": id_}
        streamed = client.post(
            "/v1/responses", json={**ASK, "conversation": {"id": id_}, "input": "Why?", "stream": True}
        )
        last = json.loads(streamed.text.rstrip().rpartition("\ndata: ")[2])["response"]
        url = f"/v1/conversations/{id_}/items"
        assert [item["role"] for item in client.get(f"{url}?order=asc").json()["data"]] == [
            "system", "user", "assistant", "user", "assistant",
        ]  # fmt: skip
        whole = [system, {"role": "user", "content": "Hello"}, *first["output"], {"role": "user", "content": "Why?"}]
        fresh = made(client, "/v1/responses", {**ASK, "input": whole, "store": False})
        assert without_ids(last["output"]) == without_ids(fresh["output"])
        assert last["usage"]["input_tokens"] == fresh["usage"]["input_tokens"]
    with served(folder, arguments(folder)) as server, server.client(headers=headers("first")) as client:
        assert client.get(f"/v1/conversations/{id_}").json() == conversation
        third = made(client, "/v1/responses", {**ASK, "conversation": id_, "input": "Where?"})
        whole += [*last["output"], {"role": "user", "content": "Where?"}]
        fresh = made(client, "/v1/responses", {**ASK, "input": whole, "store": False})
        assert without_ids(third["output"]) == without_ids(fresh["output"])
        assert made(client, f"/v1/conversations/{id_}", {"metadata": {}})["metadata"] == {}
        deleted = client.delete(f"/v1/conversations/{id_}").json()
        assert deleted == {"id": id_, "object": "conversation.deleted", "deleted": True}
        made(client, "/v1/responses", {**ASK, "conversation": id_, "input": "x"}, 404)


def test_items_are_listed_added_and_deleted(clients: list[httpx.Client]) -> None:
    client, other = clients
    id_ = made(client, "/v1/conversations")["id"]
    url = f"/v1/conversations/{id_}/items"
    given = [{"type": "message", "role": "user", "content": f"{i}"} for i in range(5)]
    added = made(client, url, {"items": given})
    ids = [item["id"] for item in added["data"]]
    assert (added["object"], added["first_id"], added["last_id"], added["has_more"]) == ("list", ids[0], ids[4], False)
    assert added["data"][0]["content"] == [{"type": "input_text", "text": "0"}]
    page = client.get(f"{url}?limit=2&order=asc&after={ids[1]}").json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (ids[2:4], True)
    assert [item["id"] for item in client.get(url).json()["data"]] == ids[::-1]
    assert client.get(f"{url}/{ids[3]}").json() == added["data"][3]
    assert client.delete(f"{url}/{ids[3]}").json()["id"] == id_
    assert client.get(f"{url}/{ids[3]}").status_code == 404
    for query in ("limit=0", "limit=x", "order=up", "after=msg_x"):
        assert client.get(f"{url}?{query}").status_code == 400
    made(client, url, {"items": [{"type": "message", "role": "nobody", "content": "x"}]}, 400)
    made(client, url, {"items": [{"type": "computer_call"}]}, 400)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    for wrong in ({"name": 7}, {"name": ""}, {"name": None}, {"call_id": 7}, {"call_id": ["c"]}):
        error = made(client, url, {"items": [{**call, **wrong}]}, 400)["error"]
        assert error["param"] == f"input[0].{next(iter(wrong))}"
        made(client, "/v1/responses", {**ASK, "input": [{**call, **wrong}]}, 400)
    response = made(client, "/v1/responses", {**ASK, "input": "x"})["id"]
    both = {**ASK, "input": "x", "conversation": id_, "previous_response_id": response}
    assert made(client, "/v1/responses", both, 400)["error"]["param"] == "previous_response_id"
    for path in (f"/v1/conversations/{id_}", url, f"{url}/{ids[0]}"):
        assert other.get(path).status_code == 404
    assert other.delete(f"/v1/conversations/{id_}").status_code == 404
    made(other, url, {"items": given}, 404)
    made(other, "/v1/responses", {**ASK, "input": "x", "conversation": id_}, 404)


def test_a_response_outlives_its_conversation(clients: list[httpx.Client]) -> None:
    client, _ = clients
    id_ = made(client, "/v1/conversations")["id"]
    body = {"input": "Hello", "conversation": id_, "max_output_tokens": 200, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert client.delete(f"/v1/conversations/{id_}").json()["deleted"]
        data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert data[-1]["type"] in ("response.completed", "response.incomplete"), data[-1]
    response = data[-1]["response"]
    assert response["output"][0]["content"][0]["text"]
    assert client.get(f"/v1/responses/{response['id']}").json() == response
    assert client.get(f"/v1/conversations/{id_}").status_code == 404


def test_a_full_disk_adds_no_part_of_a_response(tmp_path: Path) -> None:
    caller, store = Caller("key"), ConversationStore(tmp_path)
    id_ = store.create(caller, [{"content": "a"}], {})["id"]
    (pages,) = store._db.execute("pragma page_count").fetchone()
    store._db.execute(f"pragma max_page_count = {pages + 2}")  # as a disk with room for 8 KiB
    with pytest.raises(ApiError, match="full"):
        store.add(caller, id_, [{"content": "b" * 2000}] * 20)
    with pytest.raises(ApiError, match="full"):
        store.create(caller, [{"content": "b" * 2000}] * 20, {})
    assert [item["content"] for item in store.items(caller, id_)] == ["a"]
    assert store._db.execute("select count(*) from conversations").fetchone() == (1,)
    store.remove(caller, id_)
    store.close()
