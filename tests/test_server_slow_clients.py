"""Clients that are slow, silent or too many: they are cut, and others are served meanwhile.

Oracle: a request of another client, beside them; the connections that the system knows.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from impatient_server import PATIENCE_S
from served import impatient_server

LIMIT_S = 10.0


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with impatient_server() as port:
        yield port


def connect(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.settimeout(LIMIT_S)
    return made


def read_to_end(connection: socket.socket) -> tuple[bytes, float]:
    """All that comes until the server closes, and how long that took."""
    started = time.monotonic()
    data = b""
    try:
        while part := connection.recv(1 << 16):
            data += part
    except ConnectionError:
        pass
    return data, time.monotonic() - started


def reply_of(connection: socket.socket) -> bytes:
    """One short reply, which ends with an object."""
    data = b""
    while not data.endswith(b"}"):
        part = connection.recv(4096)
        assert part
        data += part
    return data


def answered(port: int) -> bool:
    response = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "short"}, trust_env=False)
    return bool(response.json()["choices"][0]["text"] == "ab")


def request(body: bytes, length: int | None = None) -> bytes:
    n = len(body) if length is None else length
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {n}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nhost: loc"])
def test_headers_must_come(port: int, sent: bytes) -> None:
    with connect(port) as slow:
        slow.sendall(sent)
        assert answered(port)
        data, seconds = read_to_end(slow)
    assert data == b""
    assert seconds < 2 + 4 * PATIENCE_S


def test_a_connection_that_is_kept_may_rest_but_not_dribble(port: int) -> None:
    with connect(port) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert reply_of(slow).startswith(b"HTTP/1.1 200 OK")
        time.sleep(2 * PATIENCE_S)
        slow.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert reply_of(slow).startswith(b"HTTP/1.1 200 OK")
        slow.sendall(b"GET /heal")
        assert read_to_end(slow)[0] == b""


def test_a_body_must_come(port: int) -> None:
    with connect(port) as slow:
        slow.sendall(request(b'{"prompt": ', 100))
        assert answered(port)
        data, _ = read_to_end(slow)
    assert b"408" in data.split(b"\r\n")[0]
    assert json.loads(data.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_timeout"


def test_an_answer_must_be_read(port: int) -> None:
    with connect(port) as slow:
        slow.sendall(request(b'{"prompt": "x", "stream": true, "max_tokens": 9}'))
        time.sleep(4 * PATIENCE_S)
        assert answered(port)
        data, _ = read_to_end(slow)
    # Cut long before its end.
    assert b"[DONE]" not in data
    assert len(data) < 15_000_000


def test_connections_have_a_limit(port: int) -> None:
    many = [connect(port) for _ in range(80)]
    try:
        ends = 0
        for connection in many:
            connection.settimeout(0.05)
            try:
                ends += connection.recv(1) == b""
            except ConnectionError:
                ends += 1
            except TimeoutError:
                pass
        assert ends >= 20
    finally:
        for connection in many:
            connection.close()
    time.sleep(0.1)
    assert answered(port)
