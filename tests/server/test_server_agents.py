"""Requests in the formats that popular client programs send.

Recorded from Claude Code, Codex, Open WebUI, and code completion in editors.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from one_call import post as one_post
from quire.server.worker.protocol import Chat

SHELL = {
    "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
    "required": ["command"], "additionalProperties": False,
}  # fmt: skip
READ = {
    "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["file_path"],
    "properties": {"file_path": {"type": "string"}, "limit": {"type": "number"}}, "additionalProperties": False,
}  # fmt: skip
CACHED = {"cache_control": {"type": "ephemeral"}}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


CLAUDE_CODE: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 64,
    "temperature": 1,
    "stream": True,
    "system": [{"type": "text", "text": "You are an agent.", **CACHED}, {"type": "text", "text": "Be brief.", **CACHED}],
    "metadata": {"user_id": "user_0_account__session_0"},
    "tools": [{"name": "Read", "description": "Reads a file.", "input_schema": READ}],
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nx\n</system-reminder>"}, {"type": "text", "text": "Hi", **CACHED}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/a"}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "1\tx", "is_error": False, **CACHED}]},
    ],
}  # fmt: skip


def test_claude_code(client: httpx.Client) -> None:
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
    }
    response = client.post("/v1/messages?beta=true", json=CLAUDE_CODE, headers=headers)
    events = events_of(response)
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    ignored = response.headers["x-quire-ignored"]
    assert "thinking.budget_tokens" in ignored
    assert "context_management" in ignored
    counted = {name: CLAUDE_CODE[name] for name in ("model", "messages", "system", "tools", "thinking")}
    assert client.post("/v1/messages/count_tokens?beta=true", json=counted).json()["input_tokens"] > 50


CODEX: dict[str, Any] = {
    "model": "gpt-5-codex",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
    ],
    "tools": [
        {"type": "function", "name": "shell", "description": "Runs.", "strict": False, "parameters": SHELL},
        {"type": "custom", "name": "apply_patch", "description": "x", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-a",
    "text": {"verbosity": "medium"},
}  # fmt: skip


def test_codex(client: httpx.Client) -> None:
    response = client.post("/v1/responses", json={**CODEX, "max_output_tokens": 48})
    events = events_of(response)
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    ignored = response.headers["x-quire-ignored"]
    for name in ("tools[1]", "tools[2]", "reasoning.summary", "reasoning.effort", "include"):
        assert name in ignored
    assert "tools[0]" not in ignored
    counted = client.post("/v1/responses/input_tokens", json=CODEX).json()["input_tokens"]
    assert counted == events[-1]["response"]["usage"]["input_tokens"]


SAID = {"role": "user", "content": "hi"}
SEARCH = {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}}


def asked_of(path: str, body: dict[str, Any]) -> tuple[Chat, list[str]]:
    """Return the engine's work for a body, and the ignored fields named in the header."""
    engine = FakeEngine()
    response = one_post(path, {"model": "fake", **body}, engine=engine)
    assert response.status_code == 200, response.text
    (asked,) = engine.asked
    assert isinstance(asked, Chat)
    return asked, [name.strip("'") for name in response.headers.get("x-quire-ignored", "").split(",") if name]


def called(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for message in messages
        for call in message.get("tool_calls", [])
    ]


@pytest.mark.parametrize(
    ("items", "calls", "results", "ignored"),
    [
        ([{"type": "tool_search_call", "call_id": "c", "arguments": {}}, {"type": "tool_search_output", "call_id": "c", "tools": []}],
         [], [], ["input[1]", "input[2]"]),
        ([{"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"},
          {"type": "custom_tool_call_output", "call_id": "c", "output": "y"}],
         [("apply_patch", {"input": "x"})], ["y"], []),
        ([{"type": "custom_tool_call", "call_id": "c", "name": "p", "input": ""},
          {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "y"}]}],
         [("p", {"input": ""})], ["y"], []),
        ([{"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
          {"type": "local_shell_call_output", "id": "c", "output": "a.txt"}],
         [("local_shell", {"type": "exec", "command": ["ls"]})], ["a.txt"], []),
        ([{"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
          {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a.txt", "stderr": ""}]}],
         [("shell", {"commands": ["ls"]})], ['[{"stdout":"a.txt","stderr":""}]'], []),
        ([{"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
          {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": None}],
         [("apply_patch", {"type": "delete_file", "path": "a"})], [""], []),
        ([{"type": "mcp_call", "id": "m", "name": "ask", "server_label": "s", "arguments": '{"q": 1}', "output": "42"}],
         [("ask", {"q": 1})], ["42"], []),
        ([{"type": "web_search_call", "id": "w", "status": "completed"}, {"type": "compaction", "encrypted_content": "x"}],
         [], [], ["input[1]", "input[2]"]),
        ([{"type": "a_type_of_tomorrow"}], [], [], ["input[1]"]),
        ([{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}, {"type": "mood"}]}],
         [], [], ["input[1].content[1]"]),
    ],
    ids=lambda value: value[0]["type"] if value and isinstance(value[0], dict) else "",
)  # fmt: skip
def test_items_that_are_not_functions(
    items: list[dict[str, Any]], calls: list[Any], results: list[str], ignored: list[str]
) -> None:
    asked, named = asked_of("/v1/responses", {"input": [SAID, *items]})
    assert called(asked.messages) == calls
    assert [message["content"] for message in asked.messages if message["role"] == "tool"] == results
    assert named == ignored
    assert one_post("/v1/responses", {"input": [SAID, *items]}, options={"strict": True}).status_code == (
        400 if ignored else 200
    )


@pytest.mark.parametrize("wrong", [[1], {}, 5, True])
def test_item_types_that_are_not_text_are_rejected(wrong: Any) -> None:
    for path, body, place in (
        ("/v1/responses", {"input": [{"type": wrong}]}, "input[0].type"),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": wrong}]}]}, "input[0].content[0]"),
        ("/v1/responses", {"input": "x", "tools": [{"type": wrong, "name": "f"}]}, "tools[0].type"),
        ("/v1/responses", {"input": "x", "tool_choice": {"type": wrong}}, "tool_choice"),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": wrong}]}, "input[0].id"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": wrong}]}]}, "messages[0].content[0].type"),
        ("/v1/messages", {"messages": [SAID], "tool_choice": {"type": wrong}}, "tool_choice.type"),
    ):
        response = one_post(path, {"model": "fake", **body, **({"max_tokens": 5} if "messages" in body else {})})
        assert response.status_code in (400, 404), response.text
        assert place in response.text


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_items_with_media_are_rejected_by_name(kind: str) -> None:
    body = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": kind}]}]}
    response = one_post("/v1/responses", body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input[0].content[1]")


@pytest.mark.parametrize(
    ("path", "tools", "ignored", "names"),
    [
        ("/v1/responses", [{"type": "function", "name": "f"}, SEARCH], ["tools[1]"], ["f"]),
        ("/v1/responses", [{"type": "web_search"}, {"type": "custom", "name": "p"}], ["tools[0]", "tools[1]"], []),
        ("/v1/chat/completions", [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "p"}}],
         ["tools[1]"], ["f"]),
        ("/api/chat", [{"type": "web_search"}, {"function": {"name": "f"}}], ["tools[0]"], ["f"]),
        ("/v1/messages", [{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
         ["tools[1]"], ["f"]),
        ("/v1/messages", [{"type": "tool_search_tool_bm25_20251119", "name": "s"}, {"type": "custom", "name": "f", "input_schema": {}}],
         ["tools[0]"], ["f"]),
    ],
)  # fmt: skip
def test_tools_of_other_types_are_left_out(path: str, tools: list[Any], ignored: list[str], names: list[str]) -> None:
    body = {"input": "x"} if "responses" in path else {"messages": [SAID], "max_tokens": 5, "stream": False}
    body = {name: value for name, value in body.items() if path != "/api/chat" or name != "max_tokens"}
    asked, named = asked_of(path, {**body, "tools": tools})
    assert named == ignored
    assert [tool["function"]["name"] for tool in asked.options.get("tools", [])] == names


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        ("/v1/responses", {"type": "web_search"}),
        ("/v1/responses", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}),
        ("/v1/chat/completions", {"type": "custom", "custom": {"name": "web_search"}}),
        ("/v1/messages", {"type": "tool", "name": "web_search"}),
    ],
)
def test_choosing_an_omitted_tool_has_no_effect(path: str, choice: dict[str, Any]) -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    tools = {
        "/v1/responses": [{"type": "function", **function}, {"type": "web_search"}],
        "/v1/chat/completions": [{"type": "function", "function": function}, {"type": "custom", "custom": {}}],
        "/v1/messages": [
            {"name": "f", "input_schema": {"type": "object"}},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
    }[path]
    body = {"input": "x"} if "responses" in path else {"messages": [SAID], "max_tokens": 5}
    asked, named = asked_of(path, {**body, "tools": tools, "tool_choice": choice})
    assert named == ["tools[1]", "tool_choice"]
    assert asked.options.get("tool_choice", "auto") == "auto"


def test_hundreds_of_tools_are_accepted() -> None:
    functions = [{"name": f"t{i}", "parameters": {"type": "object", "properties": {}}} for i in range(600)]
    for path, tools in (
        ("/v1/chat/completions", [{"type": "function", "function": function} for function in functions]),
        ("/v1/responses", [{"type": "function", **function} for function in functions]),
        ("/v1/messages", [{"name": f["name"], "input_schema": f["parameters"]} for f in functions]),
        ("/api/chat", [{"type": "function", "function": function} for function in functions]),
    ):
        body = {"input": "x"} if "responses" in path else {"messages": [SAID], "max_tokens": 5}
        asked, _ = asked_of(path, {**body, "tools": tools})
        assert [tool["function"]["name"] for tool in asked.options["tools"]] == [f["name"] for f in functions]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_engine_accepts_hundreds_of_tools(client: httpx.Client, choice: str) -> None:
    """Only counted, because so many tools exceed the small model's context."""
    tools = [{"type": "function", "function": {"name": f"t{i}", "parameters": {"type": "object"}}} for i in range(300)]
    body = {"messages": [SAID], "tools": tools, "tool_choice": choice}
    counted = client.post("/v1/chat/completions/input_tokens", json=body)
    assert counted.status_code == 200, counted.text
    assert counted.json()["input_tokens"] > 3000
    refused = client.post("/v1/chat/completions/input_tokens", json={**body, "tools": tools * 4})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")


USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "t", "input": {}}]}


@pytest.mark.parametrize(
    ("messages", "shown", "ignored"),
    [
        ([{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}]}, SAID],
         [{"role": "assistant", "content": "a"}], ["messages[1].content[0]"]),
        ([USED, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "tool_reference", "tool_name": "t"}]}]}],
         [{"role": "tool", "tool_call_id": "1", "content": "t"}], []),
        ([{"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"type": "text", "text": "a", "citations": [{"type": "web_search_result_location"}]}]}, SAID],
         [{"role": "assistant", "content": "a"}], ["messages[1].content[0]", "messages[1].content[1]"]),
        ([{"role": "user", "content": [{"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}]}],
         [{"role": "user", "content": "T\nD"}], []),
        ([{"role": "user", "content": [{"type": "search_result", "title": "T", "source": "http://a", "content": [{"type": "text", "text": "D"}]}]}],
         [{"role": "user", "content": "T\nhttp://a\nD"}], []),
    ],
    ids=["redacted_thinking", "tool_reference", "server_tool_use", "document", "search_result"],
)  # fmt: skip
def test_unknown_and_server_side_blocks_are_left_out(messages: list[Any], shown: list[Any], ignored: list[str]) -> None:
    asked, named = asked_of("/v1/messages", {"messages": [SAID, *messages], "max_tokens": 5})
    assert [message for message in asked.messages if message in shown] == shown
    assert named == ignored


def test_connector_calls_become_calls_and_results() -> None:
    blocks = [
        {"type": "mcp_tool_use", "id": "m", "name": "ask", "server_name": "s", "input": {"q": 1}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "42"}]},
    ]
    asked, _ = asked_of(
        "/v1/messages", {"messages": [SAID, {"role": "assistant", "content": blocks}, SAID], "max_tokens": 5}
    )
    assert [message["role"] for message in asked.messages] == ["user", "assistant", "tool", "user"]
    assert asked.messages[1]["tool_calls"][0]["function"] == {"name": "ask", "arguments": {"q": 1}}
    assert asked.messages[2]["content"] == "42"


@pytest.mark.parametrize(
    "source", [{"type": "base64", "media_type": "application/pdf", "data": ""}, {"type": "url", "url": "x"}]
)
def test_file_documents_are_rejected_by_name(source: dict[str, Any]) -> None:
    message = {"role": "user", "content": [{"type": "document", "source": source}]}
    response = one_post("/v1/messages", {"model": "fake", "messages": [message], "max_tokens": 5})
    assert response.status_code == 400
    text = response.json()["error"]["message"]
    assert "messages[0].content[0]" in text
    assert "'document'" in text


def spaced(name: str, *functions: str) -> dict[str, Any]:
    made = [{"type": "function", "name": each, "parameters": {"type": "object"}} for each in functions]
    return {"type": "namespace", "name": name, "description": "d", "tools": made}


def test_functions_in_namespaces(client: httpx.Client) -> None:
    tools = [*spaced("x", "f")["tools"], spaced("mcp__a", "f", "g"), spaced("mcp__b", "f"), {"type": "web_search"}]
    tools[1]["tools"].append({"type": "custom", "name": "p"})
    history = [
        {"type": "function_call", "call_id": "1", "namespace": "mcp__a", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "y"},
        {"type": "function_call", "call_id": "2", "namespace": "mcp__b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "2", "output": "y"},
        {"type": "function_call", "call_id": "3", "namespace": "gone", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "3", "output": "y"},
    ]
    asked, named = asked_of("/v1/responses", {"input": [SAID, *history], "tools": tools})
    assert named == ["tools[1].tools[2]", "tools[3]"]
    names = [tool["function"]["name"] for tool in asked.options["tools"]]
    assert names == ["f", "mcp__a__f", "g", "mcp__b__f"]
    assert [name for name, _ in called(asked.messages)] == ["g", "mcp__b__f", "gone__f"]
    choice = {"type": "function", "name": "f", "namespace": "mcp__b"}
    body = {"input": "x", "tools": tools, "tool_choice": choice, "max_output_tokens": 64}
    item = client.post("/v1/responses", json=body).json()["output"][-1]
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "f", "mcp__b")
    body["tool_choice"] = {"type": "function", "name": "f"}
    item = client.post("/v1/responses", json=body).json()["output"][-1]
    assert (item["name"], "namespace" in item) == ("f", False)
    response = client.post("/v1/responses", json={**body, "tool_choice": choice, "stream": True})
    added = [event["item"] for event in events_of(response) if event["type"] == "response.output_item.added"][-1]
    assert (added["name"], added["namespace"]) == ("f", "mcp__b")


def test_custom_calls_in_the_history_of_a_chat() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "p", "input": "x"}}
    history = [
        SAID,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "y"},
    ]
    asked, _ = asked_of("/v1/chat/completions", {"messages": history})
    assert called(asked.messages) == [("p", {"input": "x"})]


def test_item_references_are_resolved(client: httpx.Client) -> None:
    body = {"temperature": 0, "max_output_tokens": 16}
    first = client.post("/v1/responses", json={**body, "input": [SAID]}).json()
    item = first["output"][0]
    said = {"role": "user", "content": "And the capital of France?"}
    referred = client.post(
        "/v1/responses", json={**body, "input": [SAID, {"type": "item_reference", "id": item["id"]}, said]}
    ).json()
    whole = client.post("/v1/responses", json={**body, "input": [SAID, item, said]}).json()
    assert referred["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert referred["output"][0]["content"] == whole["output"][0]["content"]
    lost = client.post("/v1/responses", json={**body, "input": [{"type": "item_reference", "id": "msg_0"}]})
    assert (lost.status_code, lost.json()["error"]["param"]) == (404, "input[0].id")


def test_open_webui(client: httpx.Client) -> None:
    """In OpenAI's and Ollama's APIs, including what it asks before the first message."""
    (model,) = client.get("/v1/models").json()["data"]
    body = {
        "stream": True, "model": model["id"], "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8,
        "stream_options": {"include_usage": True}, "metadata": {"chat_id": "a"}, "chat_id": "a", "session_id": "b",
        "files": [], "tool_ids": None, "features": {"web_search": False}, "variables": {"{{USER_NAME}}": "x"},
    }  # fmt: skip
    response = client.post("/v1/chat/completions", json=body)
    assert events_of(response)[-1]["usage"]["completion_tokens"] <= 8
    assert "features" in response.headers["x-quire-ignored"]
    title = {**body, "stream": False, "messages": [{"role": "user", "content": "### Task:\nGenerate a title."}]}
    assert client.post("/v1/chat/completions", json=title).json()["choices"][0]["finish_reason"] in ("stop", "length")
    assert client.get("/api/version").json()["version"]
    (tag,) = client.get("/api/tags").json()["models"]
    assert client.get("/api/ps").status_code == 200
    asked = {"model": tag["model"], "messages": [{"role": "user", "content": "Hi"}], "stream": False}
    options = {"num_predict": 4, "num_gpu": 99, "num_thread": 4, "num_batch": 512, "use_mmap": True}
    answer = client.post("/api/chat", json={**asked, "options": options, "keep_alive": "5m", "think": False})
    assert answer.json()["done"] is True
    assert client.post("/v1/embeddings", json={"input": ["a", "b"], "model": tag["model"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        # An editor's completion request, with llama.cpp's fields.
        ("/completion", {"prompt": "def f(", "n_predict": 4, "temperature": 0.1, "top_k": 40, "stop": ["\n\n"],
                         "stream": False, "cache_prompt": True, "samplers": ["top_k", "temperature"], "t_max_prompt_ms": 500}),
        ("/v1/completions", {"prompt": "def f(", "max_tokens": 4, "temperature": 0, "cache_prompt": True, "model": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "cache_prompt": True,
                                  "dry_multiplier": 0.0, "samplers": "kpt", "timings_per_token": True, "reasoning_format": "auto"}),
    ],
)  # fmt: skip
def test_editors(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
