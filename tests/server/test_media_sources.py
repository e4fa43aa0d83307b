"""Files that requests name by URL: only from hosts and folders that are allowed, within limits of size and time.

Oracles: what local servers sent, and which of them were reached.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from quire.errors import RequestError
from quire.server.media_sources import MediaSources, wanted_urls, with_contents
from quire.server.pinned_fetch import FetchLimits, HostRules, fetch
from quire.server.settings import Settings

BODY = bytes(range(256)) * 40
LOCAL = HostRules.of(["127.0.0.1"])
LIMITS = FetchLimits(max_bytes=1 << 20, total_s=20)


@contextmanager
def serving(
    answer: Callable[[BaseHTTPRequestHandler], None], host: str = "127.0.0.1"
) -> Iterator[tuple[str, list[str]]]:
    """Serve until the block ends; yield the server's URL and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            with suppress(OSError):
                answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{host}:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def sends(body: bytes, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def redirects(target: str, status: int = 302) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Location", target)
        handler.end_headers()

    return answer


def drips(begin: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Send ``begin``, then a byte from time to time, for ever."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(begin)
        while True:
            time.sleep(0.05)
            handler.wfile.write(b"x")

    return answer


def floods(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
    while True:
        handler.wfile.write(bytes(1 << 16))


def test_a_file_and_its_redirects() -> None:
    with serving(sends(BODY)) as (url, asked):
        assert fetch(f"{url}/a.png?b=c#d", LOCAL, LIMITS) == BODY
        assert asked == ["/a.png?b=c"]
        with serving(redirects(f"{url}/z", 307)) as (first, _):
            assert fetch(first, LOCAL, LIMITS) == BODY
    with serving(redirects("/again")) as (url, asked), pytest.raises(RequestError, match="5 times"):
        fetch(url, LOCAL, LIMITS)
    assert len(asked) == 6


@pytest.mark.parametrize(
    "target", ["http://127.0.0.2:{port}/x", "http://localhost:{port}/x", "http://[::1]:{port}/", "file:///etc/passwd"]
)
def test_redirects_are_checked(target: str) -> None:
    with serving(sends(BODY), "127.0.0.2") as (private, asked):
        port = private.rpartition(":")[2]
        with serving(redirects(target.replace("{port}", port))) as (url, _), pytest.raises(RequestError):
            fetch(url, LOCAL, LIMITS)
        assert not asked


def test_a_name_is_resolved_once() -> None:
    answers = [["127.0.0.1"], ["127.0.0.2"], ["127.0.0.2"]]
    names: list[str] = []

    def resolve(host: str, port: int) -> list[ipaddress.IPv4Address]:
        names.append(host)
        return [ipaddress.IPv4Address(each) for each in answers.pop(0)]

    rules = HostRules.of(["example.com", "127.0.0.1"])
    with serving(sends(BODY)) as (url, asked):
        named = url.replace("127.0.0.1", "Example.com.")
        assert fetch(named, rules, LIMITS, resolve) == BODY
        assert (names, asked) == (["example.com"], ["/"])
        with pytest.raises(RequestError, match="no public address"):
            fetch(named, rules, LIMITS, resolve)
        answers[0] = ["127.0.0.1", "10.0.0.1"]
        with pytest.raises(RequestError, match="no public address"):
            fetch(named, rules, LIMITS, resolve)
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("64:ff9b::808:808", True),
        *((address, False) for address in (
            "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
            "192.0.2.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "fec0::1", "ff02::1",
            "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:0:0:0:0:80ff:fffe",
        )),
    ],
)  # fmt: skip
def test_public_addresses(address: str, is_public: bool) -> None:
    parsed = ipaddress.ip_address(address)
    rules = HostRules.of(["*"])
    assert rules.allows_address(parsed) == is_public
    assert rules.allows_host(address) == is_public
    assert HostRules.of([address]).allows_address(parsed)
    assert not HostRules.of(["example.com"]).allows_host(address)


@pytest.mark.parametrize(
    "host",
    [
        "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "user@127.0.0.1", "127.0.0.1\\@example.com", "127。0。0。1", "0",
        "example.com:99999", "ex ample.com", "-a.com", "[::1", "example.com%00.org", "a" * 300,
    ],
)  # fmt: skip
@pytest.mark.parametrize("rules", [HostRules.of(["*"]), HostRules.of(["example.com"])], ids=["all", "one"])
def test_odd_hosts_are_refused(host: str, rules: HostRules) -> None:
    def resolve(host: str, port: int) -> list[ipaddress.IPv4Address]:
        raise AssertionError(host)

    with pytest.raises(RequestError):
        fetch(f"http://{host}/a.png", rules, LIMITS, resolve)


@pytest.mark.parametrize("entry", ["", "a b", "http://a.com", "a.com/x", "*.com", "10.0.0.0/33"])
def test_invalid_entries(entry: str) -> None:
    with pytest.raises(RequestError, match="allowed_media_domains"):
        Settings(allowed_media_domains=(entry,))


@pytest.mark.parametrize(
    ("answer", "seconds", "word"),
    [
        pytest.param(floods, 20, "1048576 bytes", id="endless body"),
        pytest.param(sends(b"x", Content_Length=str(1 << 40)), 20, "1048576 bytes", id="announced size"),
        pytest.param(sends(b"x", Content_Length="1000"), 20, "cannot fetch", id="cut body"),
        pytest.param(drips(b"HTTP/1.0 200 OK\r\n\r\n"), 0.5, "0.5 s", id="slow body"),
        pytest.param(drips(b"HTTP/1.0 200 OK\r\nA: "), 0.5, "0.5 s", id="slow head"),
        pytest.param(drips(b""), 0.5, "0.5 s", id="slow status"),
        pytest.param(lambda handler: time.sleep(5), 0.5, "0.5 s", id="silence"),
        pytest.param(lambda handler: handler.send_error(404), 20, "404", id="not there"),
        pytest.param(lambda handler: handler.wfile.write(b"\0" * 99), 20, "cannot fetch", id="no HTTP"),
    ],
)  # fmt: skip
def test_limits(answer: Callable[[BaseHTTPRequestHandler], None], seconds: float, word: str) -> None:
    with serving(answer) as (url, asked), pytest.raises(RequestError, match=word):
        fetch(url, LOCAL, FetchLimits(max_bytes=1 << 20, total_s=seconds))
    assert asked


def test_a_closed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(RequestError, match="cannot fetch"):
        fetch(f"http://127.0.0.1:{port}", LOCAL, LIMITS)


def test_local_files(tmp_path: Path) -> None:
    folder, outside = tmp_path / "media", tmp_path / "secret.png"
    (folder / "a b").mkdir(parents=True)
    outside.write_bytes(b"secret")
    inside = folder / "a b" / "c.png"
    inside.write_bytes(BODY)
    (folder / "link.png").symlink_to(inside)
    (folder / "out.png").symlink_to(outside)
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    (folder / "large").write_bytes(bytes(2 << 20))
    sources = MediaSources(folder=folder)
    for url in (
        f"file://{folder}/a%20b/c.png",
        f"file://localhost{folder}/link.png",
        "file://link.png",
        "FILE:link.png",
    ):
        assert sources.read(url, LIMITS) == BODY, url
    for url in (
        f"file://{outside}", f"file://{folder}/../secret.png", f"file://{folder}/%2e%2e/secret.png", "file://out.png",
        "file://up/secret.png", "file://pipe", "file://large", "file://a%20b", f"file://{folder}", "file://absent.png",
        "file:///etc/passwd", "file://..", "file://link.png%00.txt", f"file:///{folder}/../media/out.png", "file:",
    ):  # fmt: skip
        with pytest.raises(RequestError) as caught:
            sources.read(url, LIMITS)
        assert str(tmp_path) not in str(caught.value)
    with pytest.raises(RequestError, match="allowed-local-media-path"):
        MediaSources(hosts=LOCAL).read(f"file://{inside}", LIMITS)
    with pytest.raises(RequestError, match="allowed-media-domains"):
        sources.read("http://127.0.0.1:1/", LIMITS)


def test_urls_of_messages() -> None:
    url = "http://127.0.0.1/a.png"
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    messages = [
        {"role": "user", "content": url},
        {"role": "user", "content": [
            {"type": "text", "text": url}, data, {"type": "image_url", "image_url": {"url": url}},
            {"type": "input_image", "image_url": url}, {"type": "audio_url", "audio_url": {"url": "https://b/c.wav"}},
        ]},
    ]  # fmt: skip
    assert wanted_urls(messages) == {url: "messages[1].content[2]", "https://b/c.wav": "messages[1].content[4]"}
    made = with_contents(messages, {url: b"1", "https://b/c.wav": b"2"})
    assert made[0] == messages[0]
    image = {"type": "image", "image": b"1"}
    assert made[1]["content"] == [
        {"type": "text", "text": url}, data, image, image, {"type": "audio", "audio": b"2"},
    ]  # fmt: skip
    several = [{"role": "user", "content": [{"type": "image_url", "image_url": f"{url}{i}"} for i in range(40)]}]
    with pytest.raises(RequestError, match="40 URLs"):
        MediaSources(hosts=LOCAL).contents(wanted_urls(several))


def test_all_files_of_a_request_share_its_limits(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(600))
    sources = MediaSources(folder=tmp_path, max_total_bytes=1000)
    assert sources.contents({"file://a": "x"}) == {"file://a": bytes(600)}
    with pytest.raises(RequestError, match="y: the files have more than 1000 bytes"):
        sources.contents({"file://a": "x", "file:a": "y"})
    with serving(drips(b"HTTP/1.0 200 OK\r\n\r\n")) as (url, _):
        slow = MediaSources(hosts=LOCAL, limits=FetchLimits(total_s=0.4))
        with pytest.raises(RequestError, match=r"^\[chat\] 0: "):
            slow.contents({f"{url}/{i}": str(i) for i in range(30)})
