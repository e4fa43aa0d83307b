"""HTTP itself: input before a key is checked, and how answers and connections end.

Oracles: RFC 9110 and 9112; statuses and limits written down for each case.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from quire.server.listener.http_protocol import MAX_HEAD_BYTES, MAX_HEAD_LINES
from served import environment, impatient_server, wait_until

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
SHORT = b'{"prompt": "short"}'


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with impatient_server() as port:
        yield port


def connect(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.settimeout(20.0)
    return made


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    return data


def read_object(connection: socket.socket) -> bytes:
    """Read one answer whose body is an object without nested objects."""
    data = b""
    while not data.endswith(b"}"):
        part = connection.recv(1 << 16)
        assert part
        data += part
    return data


def parsed(data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of one answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


def completion(body: bytes, version: str = "1.1") -> bytes:
    head = f"POST /v1/completions HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
LARGE = {
    "one header": HEALTH + b"x: " + b"y" * (8 << 20),
    "a name": HEALTH + b"x" * (8 << 20),
    "a path": b"GET /" + b"y" * (8 << 20),
    "many headers": HEALTH + b"x: y\r\n" * (1 << 20),
    "large headers": HEALTH + (b"x: " + b"y" * 8000 + b"\r\n") * 1000,
    "empty lines": b"\r\n" * (4 << 20),
    "a trailer": CHUNKED + b"0\r\nx: " + b"y" * (8 << 20),
    "trailers": CHUNKED + b"0\r\n" + b"x: y\r\n" * (1 << 20),
    "an extension of a chunk": CHUNKED + b"5;" + b"y" * (8 << 20),
}


@pytest.mark.parametrize("data", LARGE.values(), ids=LARGE.keys())
def test_a_large_head_is_rejected_before_it_is_complete(port: int, data: bytes) -> None:
    with connect(port) as connection:
        n_sent = 0
        try:
            while n_sent < len(data):
                n_sent += connection.send(data[n_sent : n_sent + (1 << 16)])
        except ConnectionError:
            pass
        came = b""
        with suppress(ConnectionError):
            came = read_to_end(connection)
    # A client that keeps sending for longer than the server waits may not see the answer.
    if came:
        status, headers, body = parsed(came)
        assert (status, headers["connection"]) == (431, "close")
        assert json.loads(body)["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize("data", LARGE.values(), ids=LARGE.keys())
def test_a_large_head_is_rejected_at_the_limit(port: int, data: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(data[: MAX_HEAD_BYTES + (20 << 10)])
        status, headers, body = parsed(read_to_end(connection))
    assert (status, headers["content-type"]) == (431, "application/json")
    assert json.loads(body)["error"]["code"] == "headers_too_large"


def test_heads_within_the_limits_are_accepted(port: int) -> None:
    many = b"".join(b"x%d: y\r\n" % i for i in range(MAX_HEAD_LINES - 1))
    large = b"x: " + b"y" * (MAX_HEAD_BYTES - 100) + b"\r\n"
    for lines in (many, large):
        with connect(port) as connection:
            # Requests on the same connection each have their own limits.
            for _ in range(3):
                connection.sendall(HEALTH + lines + b"\r\n")
                assert parsed(read_object(connection))[0] == 200
    with connect(port) as connection:
        connection.sendall(HEALTH + many + b"one: more\r\n\r\n")
        assert parsed(read_to_end(connection))[0] == 431


def test_a_half_closed_client_gets_its_answer(port: int) -> None:
    for body in (SHORT, b'{"prompt": "short", "stream": true}'):
        with connect(port) as connection:
            connection.sendall(completion(body))
            connection.shutdown(socket.SHUT_WR)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.status == 200
            assert b"ab" in response.read() or body != SHORT
            assert connection.recv(1) == b""


def test_a_disconnected_client_is_cancelled(port: int) -> None:
    """It looks like a half-closed client until something is sent to it; the prompt ``never`` gets no answer."""

    def n_counted() -> int:
        with connect(port) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\nhost: localhost\r\n\r\n")
            text = read_to_end(connection).decode()
        return sum(
            int(n) for n in re.findall(r'^quire_http_requests_total\{.*status="499".*\} (\d+)', text, re.MULTILINE)
        )

    def n_active() -> int:
        with connect(port) as connection:
            connection.sendall(b"GET /v1/status HTTP/1.0\r\nhost: localhost\r\n\r\n")
            status = read_to_end(connection).partition(b"\r\n\r\n")[2]
        return int(json.loads(status)["queue"]["requests"])

    before = n_counted()
    wait_until(lambda: n_active() == 0)
    with connect(port) as connection:
        connection.sendall(completion(b'{"prompt": "never"}'))
        wait_until(lambda: n_active() == 1)
    wait_until(lambda: n_counted() > before)


def test_an_incomplete_request_gets_no_answer(port: int) -> None:
    for data in (b"", HEALTH, completion(SHORT)[:-1]):
        with connect(port) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            assert read_to_end(connection) == b""


@pytest.mark.parametrize("body", [SHORT, b'{"prompt": "short", "stream": true}'], ids=["whole", "stream"])
def test_http_1_0_gets_no_chunks(port: int, body: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(completion(body, "1.0"))
        status, headers, content = parsed(read_to_end(connection))
    assert status == 200
    assert "transfer-encoding" not in headers
    assert headers["connection"] == "close"
    if body == SHORT:
        assert int(headers["content-length"]) == len(content)
        assert json.loads(content)["choices"][0]["text"] == "ab"
    else:
        events = content.decode().split("\n\n")
        assert all(event.startswith("data: ") for event in events[:-1])
        assert events[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize(
    "data",
    [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", CHUNKED + b"zz\r\n", HEALTH + b"no colon\r\n\r\n", bytes(100)],
)
def test_malformed_requests_are_rejected_in_json(port: int, data: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(data)
        status, headers, body = parsed(read_to_end(connection))
    assert (status, headers["content-type"], headers["connection"]) == (400, "application/json", "close")
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "malformed_request")


def test_a_fault_after_a_request_does_not_replace_its_answer(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(completion(SHORT) + b"nonsense\r\n\r\n")
        came = read_to_end(connection)
    assert re.findall(rb"HTTP/1\.1 (\d{3}) ", came) in ([b"200"], [b"200", b"400"])


def test_a_body_rejected_while_arriving_gets_an_answer(port: int) -> None:
    """Closing with unread data would reset the connection, and the client might not see the reason."""
    with connect(port) as connection:
        connection.sendall(completion(b"x" * 100)[:-100].replace(b"length: 100", b"length: 99999999") + b"x" * 200_000)
        assert parsed(read_to_end(connection))[0] == 413


def test_requests_during_shutdown_are_rejected_not_reset() -> None:
    """On idle and fresh connections from before, and on one that the kernel accepted after listening stopped."""
    script = Path(__file__).resolve().parents[1] / "support" / "stopping_server.py"
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, env=environment(), text=True)
    assert process.stderr is not None
    found = re.search(r":(\d+)$", process.stderr.readline())
    assert found is not None
    port = int(found[1])
    try:
        with connect(port) as idle, connect(port) as fresh:
            idle.sendall(HEALTH + b"\r\n")
            assert parsed(read_object(idle))[0] == 200
            process.send_signal(signal.SIGTERM)
            assert process.stderr.readline() == "stopping\n"
            with connect(port) as late:
                for connection in (idle, fresh, late):
                    connection.sendall(completion(SHORT))
                for connection in (idle, fresh, late):
                    status, headers, body = parsed(read_to_end(connection))
                    assert (status, headers["connection"]) == (503, "close")
                    assert json.loads(body)["error"]["code"] == "shutting_down"
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    with pytest.raises(ConnectionRefusedError):
        connect(port)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no terminals to hang up")
@pytest.mark.parametrize("ignored", [False, True], ids=["a terminal", "nohup"])
def test_a_server_drains_when_its_terminal_hangs_up(ignored: bool) -> None:
    script = Path(__file__).resolve().parents[1] / "support" / "impatient_server.py"
    shell = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"] if ignored else []
    process = subprocess.Popen(
        [*shell, sys.executable, str(script)], stderr=subprocess.PIPE, env=environment(), text=True
    )
    assert process.stderr is not None
    try:
        found = re.search(r":(\d+)$", process.stderr.readline())
        assert found is not None
        process.send_signal(signal.SIGHUP)
        if ignored:
            time.sleep(0.5)
            with connect(int(found[1])) as connection:
                connection.sendall(HEALTH + b"\r\n")
                assert parsed(read_object(connection))[0] == 200
            process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_server_without_clients_stops_at_once() -> None:
    started = time.monotonic()
    with impatient_server():
        started = time.monotonic()
    assert time.monotonic() - started < 25, "a server with clients takes 30 s"
