"""Slow, silent or too many clients are disconnected, and others are served meanwhile.

Oracle: the request of another client at the same time; the system's list of connections.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from impatient_server import MOST_OF_ADDRESS, PATIENCE_S
from served import impatient_server

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with impatient_server() as port:
        yield port


def connect(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.settimeout(LIMIT_S)
    return made


def read_to_end(connection: socket.socket) -> tuple[bytes, float]:
    """Return everything received until the server closes, and how long that took."""
    started = time.monotonic()
    data = b""
    try:
        while part := connection.recv(1 << 16):
            data += part
    except ConnectionError:
        pass
    return data, time.monotonic() - started


def reply_of(connection: socket.socket) -> bytes:
    """Read one short reply, which ends with an object."""
    data = b""
    while not data.endswith(b"}"):
        part = connection.recv(4096)
        assert part
        data += part
    return data


def answered(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/v1/completions"
    response = httpx.post(url, json={"prompt": "short"}, timeout=3 * LIMIT_S, trust_env=False)
    return bool(response.json()["choices"][0]["text"] == "ab")


def n_counted(port: int) -> int:
    """Return how many requests have ended, in any way; this request itself counts in the next call."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=3 * LIMIT_S, trust_env=False).text
    return sum(int(float(found)) for found in re.findall(r"^quire_http_requests_total\{.*\} (.*)$", text, re.MULTILINE))


def is_taken(connection: socket.socket) -> bool:
    """Return True if a short request on it is answered."""
    try:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
    except ConnectionError:
        return False


def is_served(port: int) -> bool:
    """Return True if a new connection is answered."""
    try:
        return answered(port)
    except httpx.TransportError:
        return False


def request(body: bytes, length: int | None = None) -> bytes:
    n = len(body) if length is None else length
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {n}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nhost: loc"])
def test_slow_headers_time_out(port: int, sent: bytes) -> None:
    with connect(port) as slow:
        slow.sendall(sent)
        assert answered(port)
        data, seconds = read_to_end(slow)
    assert data == b""
    assert seconds < LIMIT_S


def test_idle_keep_alive_is_allowed_but_not_slow_headers(port: int) -> None:
    with connect(port) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert reply_of(slow).startswith(b"HTTP/1.1 200 OK")
        time.sleep(2 * PATIENCE_S)
        slow.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert reply_of(slow).startswith(b"HTTP/1.1 200 OK")
        slow.sendall(b"GET /heal")
        assert read_to_end(slow)[0] == b""


def test_slow_bodies_time_out(port: int) -> None:
    with connect(port) as slow:
        slow.sendall(request(b'{"prompt": ', 100))
        assert answered(port)
        data, _ = read_to_end(slow)
    assert b"408" in data.split(b"\r\n")[0]
    assert json.loads(data.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_timeout"


def test_unread_answers_time_out(port: int) -> None:
    before = n_counted(port)
    with connect(port) as slow:
        slow.sendall(request(b'{"prompt": "x", "stream": true, "max_tokens": 9}'))
        # Not with a time limit: a server that got no processor meanwhile has not been waiting.
        others = 0
        end = time.monotonic() + 3 * LIMIT_S
        while n_counted(port) - before - 2 * others < 2:
            assert time.monotonic() < end
            assert answered(port)
            others += 1
            time.sleep(PATIENCE_S / 5)
        data, _ = read_to_end(slow)
    # Disconnected long before the end.
    assert b"[DONE]" not in data
    assert len(data) < 15_000_000


def n_open(connections: list[socket.socket]) -> int:
    """Return how many of them the server has not closed."""
    found = 0
    for connection in connections:
        connection.settimeout(0.001)
        try:
            while connection.recv(4096):  # read the rest of an answer
                pass
        except TimeoutError:
            found += 1
        except ConnectionError:
            pass
    return found


def test_idle_connections_make_room_for_new_ones(port: int) -> None:
    """The limit holds, and no later client is locked out."""
    many: list[socket.socket] = []
    try:
        for _ in range(80):
            many.append(connect(port))
            assert is_taken(many[-1])
        assert n_open(many) <= MOST_OF_ADDRESS
        assert n_open(many[-20:]) == 20, "the least recently used go first"
        assert answered(port)
    finally:
        for connection in many:
            connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_busy_connections_of_one_address_leave_room_for_others(port: int) -> None:
    many: list[socket.socket] = []
    try:
        for _ in range(MOST_OF_ADDRESS + 10):
            many.append(connect(port))
            with contextlib.suppress(ConnectionError):
                many[-1].sendall(request(b'{"prompt": "never"}'))
        deadline = time.monotonic() + LIMIT_S
        while n_open(many) > MOST_OF_ADDRESS:
            assert time.monotonic() < deadline
        with connect(port) as another:
            assert not is_taken(another)
        with socket.create_connection(("127.0.0.1", port), LIMIT_S, ("127.0.0.2", 0)) as other:
            assert is_taken(other)
    finally:
        for connection in many:
            connection.close()
    deadline = time.monotonic() + LIMIT_S
    while not is_served(port):
        assert time.monotonic() < deadline
        time.sleep(0.05)
