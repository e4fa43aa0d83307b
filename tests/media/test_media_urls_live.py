"""Images by URL, from a server that allows it: the same answers as with the images themselves."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from served import served
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")
images = pytest.importorskip("PIL.Image")

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(3)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    images.effect_noise((97, 65), 60).convert("RGB").save(folder / "a.png")
    return folder


@pytest.fixture(scope="module")
def origin(media: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(media)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server(media: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("qwen3vl")
    tiny = family("qwen3vl")
    tiny.save(tiny.make(), folder)
    options = ["-m", str(folder), "-c", "512", "-t", "1", "--temp", "0"]
    options += ["--allowed-media-domains", "127.0.0.1,example.org", "--allowed-local-media-path", str(media)]
    with served(tmp_path_factory.mktemp("server"), options) as running:
        yield running


def body_of(path: str, url: str) -> dict[str, Any]:
    if path == RESPONSES:
        parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "what?"}]
        return {"input": [{"role": "user", "content": parts}], "max_output_tokens": 6}
    if path == MESSAGES:
        source = {"type": "url", "url": url}
        if url.startswith("data:"):
            source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        parts = [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]
        return {"model": "x", "messages": [{"role": "user", "content": parts}], "max_tokens": 6}
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 6}


def shown(path: str, reply: dict[str, Any]) -> Any:
    if path == RESPONSES:
        return reply["output"][0]["content"][0]["text"]
    return reply["content"][0]["text"] if path == MESSAGES else reply["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_answers_are_those_of_the_image_itself(server: Any, origin: str, media: Path, path: str) -> None:
    data = "data:image/png;base64," + base64.b64encode((media / "a.png").read_bytes()).decode()
    with server.client() as client:
        expected = client.post(path, json=body_of(path, data))
        assert expected.status_code == 200, expected.text
        for url in (f"{origin}/a.png", f"file://{media}/a.png"):
            reply = client.post(path, json=body_of(path, url))
            assert reply.status_code == 200, reply.text
            assert shown(path, reply.json()) == shown(path, expected.json())


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("url", ["http://localhost:{port}/a.png", "file:///etc/passwd", "{origin}/absent", "ftp://a/b"])
def test_what_is_not_allowed(server: Any, origin: str, path: str, url: str) -> None:
    url = url.replace("{port}", origin.rpartition(":")[2]).replace("{origin}", origin)
    with server.client() as client:
        reply = client.post(path, json=body_of(path, url))
    assert reply.status_code == 400, reply.text
    assert "/etc/" not in reply.text


def test_a_slow_host_delays_nobody_else(server: Any, origin: str) -> None:
    with server.client() as client:
        statuses: list[int] = []
        slow = threading.Thread(
            target=lambda: statuses.append(client.post(CHAT, json=body_of(CHAT, f"{origin}/slow")).status_code)
        )
        slow.start()
        n = 0
        with server.client() as other:
            while slow.is_alive():
                text = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
                assert other.post(CHAT, json=text).status_code == 200
                n += slow.is_alive()
        slow.join()
    assert n > 0
    assert statuses == [400]  # there is no such file
