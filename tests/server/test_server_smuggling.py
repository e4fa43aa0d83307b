"""Requests that two HTTP parsers could interpret differently.

Oracle: RFC 9112, which requires each to be rejected; the number of answers received.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

import pytest
from served import impatient_server

BODY = b'{"prompt": "short"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
NEXT = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
LAST = b"0\r\n\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with impatient_server() as port:
        yield port


def statuses(port: int, data: bytes) -> list[int]:
    """Return the statuses of all answers until the server closes the connection by itself."""
    came = b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(20.0)
        connection.sendall(data)
        try:
            while part := connection.recv(1 << 16):
                came += part
        except ConnectionError:
            pass
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", came)]


def test_the_same_requests_without_a_fault_succeed(port: int) -> None:
    for data in (HEAD + LENGTH + b"\r\n" + BODY, HEAD + CHUNKED + b"\r\n" + CHUNK + LAST):
        assert statuses(port, data + NEXT) == [200, 200]


def with_headers(*lines: bytes, body: bytes = BODY) -> bytes:
    return HEAD + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


N = b"%d" % len(BODY)
FAULTS = {
    "length and chunks": with_headers(b"content-length: " + N, b"transfer-encoding: chunked", body=CHUNK + LAST),
    "chunks and length": with_headers(b"transfer-encoding: chunked", b"content-length: " + N, body=CHUNK + LAST),
    "two lengths": with_headers(b"content-length: " + N, b"content-length: 3"),
    "two equal lengths": with_headers(b"content-length: " + N, b"content-length: " + N),
    "list of lengths": with_headers(b"content-length: " + N + b", " + N),
    "length with sign": with_headers(b"content-length: +" + N),
    "negative length": with_headers(b"content-length: -1"),
    "hexadecimal length": with_headers(b"content-length: 0x13"),
    "length of words": with_headers(b"content-length: many"),
    "length with a space inside": with_headers(b"content-length: 1 9"),
    "empty length": with_headers(b"content-length:"),
    "length too large": with_headers(b"content-length: 99999999999999999999999"),
    "space before the colon": with_headers(b"content-length : " + N),
    "tab before the colon": with_headers(b"content-length\t: " + N),
    "space before the name": with_headers(b"x: y", b" content-length: " + N),
    "folded line": with_headers(b"x: y", b" z", b"content-length: " + N),
    "folded by a tab": with_headers(b"x: y", b"\tz", b"content-length: " + N),
    "no name": with_headers(b": y", b"content-length: " + N),
    "no colon": with_headers(b"nonsense", b"content-length: " + N),
    "null in a name": with_headers(b"x\0y: z", b"content-length: " + N),
    "null in a value": with_headers(b"x: y\0z", b"content-length: " + N),
    "carriage return in a value": with_headers(b"x: y\rz", b"content-length: " + N),
    "bare line ends": (HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY,
    "one bare line end": HEAD + LENGTH[:-2] + b"\n\r\n" + BODY,
    "bare carriage returns": (HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\r") + BODY,
    "chunked twice": with_headers(b"transfer-encoding: chunked, chunked", body=CHUNK + LAST),
    "two codings": with_headers(b"transfer-encoding: chunked", b"transfer-encoding: identity", body=CHUNK + LAST),
    "chunked is not last": with_headers(b"transfer-encoding: chunked, gzip", body=CHUNK + LAST),
    "gzip before chunked": with_headers(b"transfer-encoding: gzip, chunked", body=CHUNK + LAST),
    "identity before chunked": with_headers(b"transfer-encoding: identity, chunked", body=CHUNK + LAST),
    "nothing before chunked": with_headers(b"transfer-encoding: , chunked", body=CHUNK + LAST),
    "chunked with a parameter": with_headers(b"transfer-encoding: chunked;q=1", body=CHUNK + LAST),
    "a port of words": b"GET /health HTTP/1.1\r\nhost: 127.0.0.1:evil\r\n\r\n",
    "words behind brackets": b"GET /health HTTP/1.1\r\nhost: [::1]evil\r\n\r\n",
    "unknown coding": with_headers(b"transfer-encoding: xchunked", body=CHUNK + LAST),
    "coding with a vertical tab": with_headers(b"transfer-encoding: \x0bchunked", body=CHUNK + LAST),
    "coding of the name with a space": with_headers(b"transfer-encoding : chunked", body=CHUNK + LAST),
    "chunk of words": with_headers(b"transfer-encoding: chunked", body=b"zz\r\n" + BODY + b"\r\n" + LAST),
    "negative chunk": with_headers(b"transfer-encoding: chunked", body=b"-1\r\n" + BODY + b"\r\n" + LAST),
    "chunk with a sign": with_headers(b"transfer-encoding: chunked", body=b"+" + CHUNK + LAST),
    "hexadecimal chunk with 0x": with_headers(b"transfer-encoding: chunked", body=b"0x" + CHUNK + LAST),
    "chunk too large": with_headers(b"transfer-encoding: chunked", body=b"fffffffffffffffff\r\n" + BODY),
    "chunk longer than it says": with_headers(b"transfer-encoding: chunked", body=b"3\r\n" + BODY + b"\r\n" + LAST),
    "chunk ends bare": with_headers(b"transfer-encoding: chunked", body=CHUNK.replace(b"\r\n", b"\n") + LAST),
    "chunk without an end": with_headers(b"transfer-encoding: chunked", body=CHUNK[:-2] + LAST),
    "space after a chunk's size": with_headers(b"transfer-encoding: chunked", body=b"13 \r\n" + BODY + b"\r\n" + LAST),
    "bare end in a chunk's extension": with_headers(
        b"transfer-encoding: chunked", body=b"13;a\nb\r\n" + BODY + b"\r\n" + LAST
    ),
    "unknown version": b"GET /health HTTP/9.9\r\nhost: localhost\r\n\r\n",
    "old version with chunks": b"POST /v1/completions HTTP/1.0\r\nhost: localhost\r\n"
    + CHUNKED
    + b"\r\n"
    + CHUNK
    + LAST,
    "no version": b"GET /health\r\n\r\n",
    "tab for a space": b"GET\t/health\tHTTP/1.1\r\nhost: localhost\r\n\r\n",
    "space in the path": b"GET /hea lth HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "null in the path": b"GET /hea\0lth HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "unknown method": b"BREW /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "method in small letters": b"get /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
    "two hosts the other way": b"GET /health HTTP/1.1\r\nhost: evil.example\r\nhost: localhost\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two keys": b"GET /health HTTP/1.1\r\nhost: localhost\r\nauthorization: a\r\nauthorization: b\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a response": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "long method": b"A" * 70_000,
    "long path": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "long header": with_headers(b"x: " + b"y" * 70_000),
    "many headers": with_headers(*[b"x%d: y" % i for i in range(10_000)]),
}


@pytest.mark.parametrize("data", FAULTS.values(), ids=FAULTS.keys())
def test_ambiguous_requests_are_rejected_and_the_connection_closed(port: int, data: bytes) -> None:
    started = time.monotonic()
    answers = statuses(port, data + NEXT)
    assert len(answers) <= 1, "what followed was taken for another request"
    assert all(400 <= status < 500 or status in (501, 505) for status in answers)
    assert time.monotonic() - started < 60


def test_other_clients_are_answered_afterwards(port: int) -> None:
    assert statuses(port, NEXT) == [200]


def test_range_headers_are_ignored(port: int) -> None:
    ranges = b"range: bytes=" + b",".join(b"%d-%d" % (i, i) for i in range(4000)) + b"\r\n"
    assert statuses(port, b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + ranges + b"\r\n" + NEXT) == [200, 200]
