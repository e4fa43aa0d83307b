"""``/v1/tools``: who may see and run the operator's tools.

Oracle: the statuses that the documentation promises, and a server that writes down what reached it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import FakeEngine
from quire.errors import RequestError
from quire.params.tool_options import ToolOptions
from quire.server.service.library import Library
from quire.server.service.service import Service
from quire.server.settings import Settings
from served_tools import HOME, Send, served


async def _session(send: Send) -> dict[str, str]:
    return {"x-quire-session": (await send("GET", "/v1/tools")).json()["session"]}


def test_a_call_runs_only_with_the_word_that_its_policy_asks_for() -> None:
    async def script(send: Send, calls: list[Any]) -> None:
        listed = (await send("GET", "/v1/tools")).json()
        assert [(tool["name"], tool["approval"]) for tool in listed["data"]] == [
            ("s__ask", "ask"),
            ("s__free", "always"),
        ]
        headers = {"x-quire-session": listed["session"]}
        body = {"name": "s__ask", "arguments": {"text": "<|im_start|>", "approved": True}}
        refused = await send("POST", "/v1/tools/call", json=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"], calls) == (403, "approval_required", [])
        run = await send("POST", "/v1/tools/call", json={**body, "approved": True}, headers=headers)
        assert (run.json()["content"], run.json()["is_error"]) == ("<|im_start|>", False)
        free = await send(
            "POST", "/v1/tools/call", json={"name": "s__free", "arguments": '{"text": "x"}'}, headers=headers
        )
        assert free.json()["content"] == "x"
        hidden = await send("POST", "/v1/tools/call", json={"name": "s__no", "approved": True}, headers=headers)
        assert hidden.status_code == 404
        broken = await send("POST", "/v1/tools/call", json={"name": "s__free", "arguments": "[1"}, headers=headers)
        assert broken.json()["is_error"]
        assert len(calls) == 2

    served(script)


def test_pages_of_other_origins_reach_no_tool_even_if_they_may_call_the_server() -> None:
    attacks: list[dict[str, str]] = [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:8081"},
        {"origin": "http://localhost:8080.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example"},  # DNS rebinding
        {"host": "evil.example", "origin": "http://evil.example"},
    ]

    async def script(send: Send, calls: list[Any]) -> None:
        body, session = {"name": "s__free", "arguments": {}, "approved": True}, await _session(send)
        for headers in attacks:
            seen = await send("GET", "/v1/tools", headers=headers)
            assert (seen.status_code, "session" in seen.text) == (403, False), headers
            run = await send("POST", "/v1/tools/call", json=body, headers={**session, **headers})
            assert run.status_code == 403, headers
        # A form of another page can send neither the header nor the content type.
        for headers, status in (
            ({}, 403),
            ({"x-quire-session": "0" * 64}, 403),
            ({**session, "origin": HOME, "content-type": "text/plain"}, 415),
        ):
            plain = await send(
                "POST",
                "/v1/tools/call",
                content=json.dumps(body),
                headers={"content-type": "application/json", **headers},
            )
            assert plain.status_code == status, headers
        assert calls == []
        own = {**session, "origin": HOME, "sec-fetch-site": "same-origin"}
        assert (await send("POST", "/v1/tools/call", json=body, headers=own)).status_code == 200
        assert calls == [{}]

    served(script, cors_origins=("*",))


def test_a_session_belongs_to_one_key() -> None:
    async def script(send: Send, calls: list[Any]) -> None:
        one, two = {"x-api-key": "first-secret"}, {"x-api-key": "second-secret"}
        session = (await send("GET", "/v1/tools", headers=one)).json()["session"]
        taken = await send(
            "POST", "/v1/tools/call", json={"name": "s__free"}, headers={**two, "x-quire-session": session}
        )
        assert (taken.status_code, calls) == (403, [])

    served(script, api_keys=("first-secret", "second-secret"))


def test_tools_are_off_by_default_and_need_keys_at_a_public_address() -> None:
    empty = Service(Settings(), Library.of("fake", FakeEngine)).toolbox
    assert (empty.tools, empty.servers) == ({}, [])
    with pytest.raises(RequestError, match="--api-key-file"):
        Settings(host="0.0.0.0", insecure=True, tools=ToolOptions(mcp="servers.json"))
