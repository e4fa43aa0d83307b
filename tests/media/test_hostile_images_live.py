"""Images that attack the server are client errors, and other requests are answered meanwhile.

Oracle: statuses; the answers of other requests.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hostile_images import harmless_images, hostile_images, png_file
from served import served
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("qwen3vl")
    tiny = family("qwen3vl")
    tiny.save(tiny.make(), folder)
    options = ["-m", str(folder), "-c", "512", "-t", "1"]
    with served(tmp_path_factory.mktemp("server"), options) as running:
        yield running


def body_of(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}], "max_tokens": 1}


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def others(server: Any, done: threading.Event) -> int:
    """Ask for texts and the server's health until the event is set; return how often."""
    n = 0
    text = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    with server.client() as client:
        while not done.is_set() or n == 0:
            assert client.get("/health").status_code == 200
            assert client.post(CHAT, json=text).status_code == 200
            n += 1
    return n


def test_attacks_are_client_errors_and_delay_nobody(server: Any) -> None:
    small = url_of(png_file(1, 1))
    bodies = {name: body_of(url_of(data)) for name, data in hostile_images().items()}
    bodies |= {
        "30000 images": body_of(*[small] * 30_000),
        "images beyond the context": body_of(*[url_of(png_file(64, 64))] * 200),
        "base64 of zeros": body_of("data:image/png;base64," + "A" * (7 << 20)),
        "no base64": body_of("data:image/png;base64,*"),
        "unpadded": body_of("data:image/png;base64,AAAAA"),
        "no comma": body_of("data:image/png;base64" + "A" * 1000),
        "many parameters": body_of("data:image/png" + ";a=b" * 100_000 + ";base64,AAAA"),
        "another scheme": body_of("javascript:alert(1)"),
    }
    done, counts = threading.Event(), []
    beside = threading.Thread(target=lambda: counts.append(others(server, done)))
    beside.start()
    try:
        with server.client() as client:
            statuses = {name: client.post(CHAT, json=body).status_code for name, body in bodies.items()}
            too_long = client.post(CHAT, json=body_of("data:image/png;base64," + "A" * (9 << 20)))
    finally:
        done.set()
        beside.join()
    assert {name: status for name, status in statuses.items() if status != 400} == {}
    assert too_long.status_code == 413
    assert counts
    assert counts[0] > 0


def test_odd_images_are_read_or_refused(server: Any) -> None:
    with server.client() as client:
        replies = {name: client.post(CHAT, json=body_of(url_of(data))) for name, data in harmless_images().items()}
        assert {name for name, reply in replies.items() if reply.status_code not in (200, 400)} == set()
        # The first frame is read, and profiles are not.
        for name in ("300 frames GIF", "9 frames PNG", "ICC garbage", "EXIF garbage"):
            assert replies[name].status_code == 200, replies[name].text


def test_errors_tell_no_addresses(server: Any) -> None:
    with server.client() as client:
        for name, data in hostile_images().items():
            text = client.post(CHAT, json=body_of(url_of(data))).text
            assert not re.search(r"(?<!\d)0x[0-9a-f]", text), name
            assert "PIL" not in text, name
            assert len(text) < 400, name
