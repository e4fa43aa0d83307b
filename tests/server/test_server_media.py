"""Images, audio and files with a model that reads text: no URL is fetched, and everything is rejected by name.

Oracle: the message parts that the APIs document; a socket that nobody connects to.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
# URLs that a server which fetches images must not be led to; {port} listens on this machine.
HOSTS = (
    "127.0.0.1:{port}", "localhost:{port}", "2130706433:{port}", "0x7f.1:{port}", "0177.0.0.1:{port}", "127.1:{port}",
    "[::1]:{port}", "[::ffff:127.0.0.1]:{port}", "user@127.0.0.1:{port}", "127.0.0.1:{port}\\@example.com",
    "127。0。0。1:{port}", "169.254.169.254", "0:{port}", "0.0.0.0:{port}",
)  # fmt: skip
URLS = [f"{scheme}://{host}/a.png" for scheme in ("http", "https", "HTTP") for host in HOSTS] + [
    "file:///etc/passwd", "gopher://127.0.0.1:{port}/_x", "ftp://127.0.0.1:{port}/a", "//127.0.0.1:{port}/a",
    "unix:/tmp/x", "jar:http://127.0.0.1:{port}/a!/b", f"data:image/png;base64,{PICTURE}", "data:,x",
]  # fmt: skip


@pytest.fixture(scope="module")
def trap() -> Iterator[socket.socket]:
    """A listening socket that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def asked(url: str) -> list[tuple[str, dict[str, Any], str]]:
    """An image by URL in every API that has such a part: route, body, and the word in the error."""
    by_url = {"type": "image", "source": {"type": "url", "url": url}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [by_url]}
    return [
        (CHAT, {"messages": user({"type": "image_url", "image_url": {"url": url}})}, "image_url"),
        ("/apply-template", {"messages": user({"type": "image_url", "image_url": {"url": url}})}, "image_url"),
        (MESSAGES, {"model": "tiny-chat", "max_tokens": 1, "messages": user(by_url)}, "image"),
        (
            MESSAGES,
            {"model": "tiny-chat", "max_tokens": 1, "messages": user(result)},
            "content[0]: unsupported block type 'image'",
        ),
        (MESSAGES + "/count_tokens", {"model": "tiny-chat", "messages": user(by_url)}, "image"),
        (RESPONSES, {"input": user({"type": "input_image", "image_url": url})}, "image"),
        ("/completion", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [url]}}, "image"),
        (
            "/api/chat",
            {"model": "tiny-chat", "messages": [{"role": "user", "content": "x", "images": [url]}]},
            "image",
        ),
        ("/api/generate", {"model": "tiny-chat", "prompt": "x", "images": [url]}, "image"),
    ]


def refused(client: httpx.Client, path: str, body: dict[str, Any], word: str) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400, (path, body, response.text)
    assert word in response.text
    # The error contains no memory address, no file path, and nothing that was sent.
    assert not re.search(r"0x[0-9a-f]{6}|/etc/|Traceback", response.text)


@pytest.mark.parametrize("url", URLS)
def test_no_url_is_fetched(client: httpx.Client, trap: socket.socket, url: str) -> None:
    for path, body, word in asked(url.replace("{port}", str(trap.getsockname()[1]))):
        refused(client, path, body, word)
    with pytest.raises(BlockingIOError):
        trap.accept()


@pytest.mark.parametrize(
    ("path", "part", "word"),
    [
        (CHAT, {"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}}, "input_audio"),
        (CHAT, {"type": "file", "file": {"file_data": PICTURE}}, "file"),
        (CHAT, {"type": "video_url", "video_url": {"url": "x"}}, "video_url"),
        (
            MESSAGES,
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}},
            "document",
        ),
        (
            MESSAGES,
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
            "image",
        ),
        (RESPONSES, {"type": "input_file", "file_id": "x"}, "input_file"),
        (RESPONSES, {"type": "input_image", "file_id": "x"}, "input_image"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_media_parts_are_rejected_by_name(client: httpx.Client, path: str, part: Any, word: str) -> None:
    messages = user({"type": "input_text" if path == RESPONSES else "text", "text": "Look:"})
    messages[0]["content"].insert(0, part)
    body = {"input": messages} if path == RESPONSES else {"messages": messages, "model": "tiny-chat", "max_tokens": 1}
    refused(client, path, body, word)


def test_media_fields_are_rejected_by_name(client: httpx.Client) -> None:
    for fields in ({"modalities": ["text", "audio"]}, {"audio": {"voice": "a", "format": "wav"}}):
        refused(client, CHAT, {"messages": user({"type": "text", "text": "x"}), **fields}, next(iter(fields)))
    refused(client, "/completion", {"prompt": "x", "image_data": [{"data": PICTURE, "id": 1}]}, "image_data")
    for body in ({"content": [{"prompt_string": "x", "multimodal_data": [PICTURE]}]}, {"image_data": PICTURE}):
        refused(client, "/embedding", body, next(iter(body)))
    assert client.get("/props").json()["modalities"] == {"vision": False, "audio": False, "video": False}
