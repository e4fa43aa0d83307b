"""Histories as clients send them back, in every API, with a template that is strict about content.

Oracle: the prompt from ``/apply-template``, written down by hand, and its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from repackaged import repackaged
from served import Served, served

# Content is required, and lists are shown with markers of the template's own.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content.strip() }}{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if tools %}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROMPT = (
    '<|im_start|>user\n[How warm][is it?]<|im_end|>\n<|im_start|>assistant\n<call>weather{"city": "Paris"}<|im_end|>\n'
    "<|im_start|>tool\n[20][°C]<|im_end|>\n<|im_start|>assistant\n"
)
TEXTS = ["How warm", "is it?"]
RESULTS = ["20", "°C"]
ARGUMENTS = {"city": "Paris"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("templates")
    path = repackaged(folder / "strict.gguf", {"tokenizer.chat_template": (TEMPLATE, "string")})
    with served(folder, ["--model", str(path)]) as running:
        yield running


def parts(kind: str, texts: list[str]) -> list[dict[str, str]]:
    return [{"type": kind, "text": text} for text in texts]


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture(scope="module")
def n_tokens(client: httpx.Client) -> int:
    return len(post(client, "/tokenize", content=PROMPT)["tokens"])


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=["absent", "null", "empty"])
def test_openai(client: httpx.Client, n_tokens: int, content: dict[str, Any]) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "user", "content": parts("text", TEXTS)},
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": parts("text", RESULTS)},
    ]
    assert post(client, "/apply-template", messages=messages)["prompt"] == PROMPT
    answer = post(client, "/v1/chat/completions", messages=messages, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == n_tokens


def test_anthropic(client: httpx.Client, n_tokens: int) -> None:
    messages = [
        {"role": "user", "content": parts("text", TEXTS)},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "weather", "input": ARGUMENTS}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": parts("text", RESULTS)}]},
    ]
    assert post(client, "/v1/messages/count_tokens", model="strict", messages=messages) == {"input_tokens": n_tokens}


def test_responses(client: httpx.Client, n_tokens: int) -> None:
    given = [
        {"role": "user", "content": parts("input_text", TEXTS)},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "a", "output": parts("input_text", RESULTS)},
    ]
    answer = post(client, "/v1/responses", model="strict", input=given, max_output_tokens=16)
    assert answer["usage"]["input_tokens"] == n_tokens


def test_ollama(client: httpx.Client) -> None:
    """Content is text; tool calls come without any content."""
    call = {"function": {"name": "weather", "arguments": ARGUMENTS}}
    shown = PROMPT.replace("[How warm][is it?]", "How warm").replace("[20][°C]", "20")
    n_shown = len(post(client, "/tokenize", content=shown)["tokens"])
    for content in ({}, {"content": ""}, {"content": None}):
        messages = [
            {"role": "user", "content": "How warm"},
            {"role": "assistant", **content, "tool_calls": [call]},
            {"role": "tool", "tool_name": "weather", "content": "20"},
        ]
        options = {"num_predict": 1}
        answer = post(client, "/api/chat", model="strict", messages=messages, stream=False, options=options)
        assert answer["prompt_eval_count"] == n_shown
