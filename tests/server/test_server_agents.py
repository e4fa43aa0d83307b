"""Requests of programs that people use with a server, in the shapes in which these send them.

Written down from what the programs send: Claude Code, Codex, Open WebUI, and editors that complete code.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

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


def test_open_webui(client: httpx.Client) -> None:
    """By OpenAI's interface and by Ollama's, with what it asks before the first message."""
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
        # An editor that completes, with llama.cpp's fields.
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
