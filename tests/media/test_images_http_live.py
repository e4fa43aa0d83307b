"""Images over HTTP: every dialect shows the model what Python shows it, and hostile images are client errors."""

from __future__ import annotations

import base64
import io
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from image_processor_cases import picture
from quire import LLM, SamplingParams
from served import environment, served
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")
images = pytest.importorskip("PIL.Image")

SIZE = (97, 211)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("qwen3vl")
    tiny = family("qwen3vl")
    tiny.save(tiny.make(), found)
    return found


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    options = ["-m", str(folder), "--mmproj", "auto", "--kv-dtype", "f32", "-c", "1024", "-t", "1", "--port", "0"]
    with served(tmp_path_factory.mktemp("server"), options) as server, server.client() as found:
        yield found


def png(size: tuple[int, int] = SIZE) -> str:
    stream = io.BytesIO()
    images.fromarray(picture(*size)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def body_of(path: str, data: str) -> dict[str, Any]:
    url = f"data:image/png;base64,{data}"
    if path == "/v1/chat/completions":
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
        return {"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
    if path == "/v1/responses":
        parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "what?"}]
        return {"input": [{"role": "user", "content": parts}], "max_output_tokens": 8, "temperature": 0}
    if path == "/v1/messages":
        source = {"type": "base64", "media_type": "image/png", "data": data}
        parts = [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]
        return {"model": "x", "messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
    message = {"role": "user", "content": "what?", "images": [data]}
    options = {"temperature": 0, "num_predict": 8}
    return {"model": "x", "messages": [message], "stream": False, "options": options}


ROUTES = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")


def used_of(path: str, reply: dict[str, Any]) -> int:
    """Tokens of the prompt, as the dialect counts them."""
    usage = reply.get("usage", {})
    if path == "/v1/messages":
        return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
    return reply["prompt_eval_count"] if path == "/api/chat" else usage.get("prompt_tokens", usage.get("input_tokens"))


def text_of(path: str, reply: dict[str, Any]) -> str:
    if path == "/v1/chat/completions":
        return reply["choices"][0]["message"]["content"]
    if path == "/v1/responses":
        return reply["output"][0]["content"][0]["text"]
    return reply["content"][0]["text"] if path == "/v1/messages" else reply["message"]["content"]


def test_every_dialect_answers_as_python(client: httpx.Client, folder: Path) -> None:
    content = [{"type": "image", "image": picture(*SIZE)}, {"type": "text", "text": "what?"}]
    with LLM(folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=1024) as llm:
        expected = llm.chat([{"role": "user", "content": content}], SamplingParams(temperature=0, max_tokens=8))
    for path in ROUTES:
        response = client.post(path, json=body_of(path, png()))
        assert response.status_code == 200, response.text
        assert used_of(path, response.json()) == len(expected.prompt_token_ids), path
        assert text_of(path, response.json()) == expected.choices[0].message.content, path


def test_videos(client: httpx.Client) -> None:
    def used_by(part: dict[str, Any]) -> int:
        parts = [part, {"type": "text", "text": "what?"}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0}
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        return int(response.json()["usage"]["prompt_tokens"])

    stream = io.BytesIO()
    images.fromarray(picture(64, 96)).save(stream, "JPEG")
    frame = base64.b64encode(stream.getvalue()).decode()
    whole = used_by({"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frame},{frame},{frame}"}})
    # Two pairs of frames of six tokens, each with a time of 13 bytes and two marks.
    assert whole - used_by({"type": "text", "text": ""}) == 2 * (6 + 13 + 2)
    refused = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [refused]}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 400


def test_command_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(base64.b64decode(png()))
    options = ["--mmproj", "auto", "--kv-dtype", "f32", "-c", "1024", "-t", "1", "--temp", "0", "-n", "8", "--json"]
    made = subprocess.run(
        [sys.executable, "-m", "quire", "run", "-m", str(folder), "--image", str(tmp_path / "a.png"), *options, "what?"],
        capture_output=True, text=True, env=environment(), check=True,
    )  # fmt: skip
    with LLM(folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=1024) as llm:
        content = [{"type": "image", "image": tmp_path / "a.png"}, {"type": "text", "text": "what?"}]
        expected = llm.chat([{"role": "user", "content": content}], SamplingParams(temperature=0, max_tokens=8))
    assert json.loads(made.stdout)["token_ids"] == expected.token_ids


def test_image_in_a_tool_result(client: httpx.Client) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": png()}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]}
    messages = [
        {"role": "user", "content": "look"}, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]},
    ]  # fmt: skip
    response = client.post("/v1/messages", json={"model": "x", "max_tokens": 4, "messages": messages})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["input_tokens"] > 18


def bomb() -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bomb(), id="bomb"),
        pytest.param(png()[:400], id="cut"),
        pytest.param(png((1, 900)), id="thin"),
        pytest.param("A" * 1000, id="no image"),
        pytest.param("*", id="no base64"),
    ],
)
def test_hostile_images_are_client_errors(client: httpx.Client, data: str) -> None:
    for path in ROUTES:
        response = client.post(path, json=body_of(path, data))
        assert response.status_code == 400, response.text
        assert " at 0x" not in response.text
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/a.png", "file:///etc/passwd", "/etc/passwd", "https://example.com/a.png"]
)
def test_nothing_is_fetched_or_opened(client: httpx.Client, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    response = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [part]}]})
    assert response.status_code == 400
    assert "/etc/" not in response.text
