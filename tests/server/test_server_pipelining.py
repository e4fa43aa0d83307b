"""Pipelined requests: answered in order, completely, and without blocking the listener.

Oracles: the number and order of the answers; the server's memory as the system counts it; the latency of another
client's request meanwhile.
"""

from __future__ import annotations

import json
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from quire.server.listener.backlog import Backlog
from quire.server.listener.connections import Connections, address_group
from served import impatient_process

LIMIT_S = 120.0
ATTACK_S = 2.0
MIB = 1 << 20
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
SMALLEST = b"GET /x HTTP/1.1\r\nhost:[::1]\r\n\r\n"
CHUNKED_HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system has no /proc")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, int]]:
    with impatient_process() as found:
        yield found


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), LIMIT_S)


def statuses_until_end(connection: socket.socket) -> list[int]:
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    return [int(found) for found in re.findall(rb"HTTP/1\.1 ([2-5]\d\d) ", data)]  # except "100 Continue"


def post(body: bytes, *more: bytes) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head + b"".join(more) + b"content-length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return CHUNKED_HEAD + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


# Data to send, and the expected statuses.
SEQUENCES = {
    "the same": [(HEALTH, 200)] * 200,
    "bodies": [(post(b'{"prompt": "short"}'), 200), (HEALTH, 200), (post(b"{"), 400), (SMALLEST, 404)] * 10,
    "large bodies": [(post(b'{"prompt": "short"%s}' % (b" " * 100_000)), 200), (HEALTH, 200)] * 3,
    "chunks": [(chunked(b'{"prompt": "short"}' + b" " * 9000, 700), 200), (HEALTH, 200), (HEALTH, 200)] * 4,
    "blank lines in a chunk": [(chunked(b'{"prompt":\r\n\r\n"short"}' + b"\r\n\r\n" * 4000, 5000), 200), (HEALTH, 200)],
    "a body that nobody reads": [(b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000\r\n\r\n" + bytes(5000), 200)] * 5,
}  # fmt: skip


@pytest.mark.parametrize("steps", SEQUENCES.values(), ids=SEQUENCES.keys())
@pytest.mark.parametrize("cut", ["whole", "few", "many"])
def test_every_request_is_answered_in_order(server: tuple[int, int], steps: list[tuple[bytes, int]], cut: str) -> None:
    last = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    data = b"".join(sent for sent, _ in steps) + last
    chance = random.Random(len(data))
    n_cuts = {"whole": 0, "few": 5, "many": 200}[cut]
    cuts = sorted(chance.randrange(len(data)) for _ in range(n_cuts))
    with connect(server[0]) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send() -> None:
            for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                connection.sendall(data[start:end])

        sending = threading.Thread(target=send)
        sending.start()
        found = statuses_until_end(connection)
        sending.join()
    assert found == [status for _, status in steps] + [200]


def test_a_half_closed_client_gets_all_answers(server: tuple[int, int]) -> None:
    with connect(server[0]) as connection:
        connection.sendall(post(b'{"prompt": "short"}') + HEALTH * 30)
        connection.shutdown(socket.SHUT_WR)
        assert statuses_until_end(connection) == [200] * 31


def n_active(port: int) -> int:
    with connect(port) as connection:
        connection.sendall(b"GET /v1/status HTTP/1.0\r\nhost: localhost\r\n\r\n")
        data = b""
        while part := connection.recv(1 << 16):
            data += part
    return int(json.loads(data.partition(b"\r\n\r\n")[2])["queue"]["requests"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of an end behind bytes that nobody has read")
def test_a_disconnected_client_is_noticed_despite_pending_requests(server: tuple[int, int]) -> None:
    with connect(server[0]) as connection:
        connection.sendall(post(b'{"prompt": "never"}') + HEALTH * 30)
        end = time.monotonic() + LIMIT_S
        while n_active(server[0]) == 0:
            assert time.monotonic() < end
    while n_active(server[0]) > 0:
        assert time.monotonic() < end
        time.sleep(0.1)


def resident_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


def attack(port: int, first: bytes, forever: bytes, read: bool) -> None:
    """Send without end, until the time is over or the server closes."""
    with connect(port) as connection:
        connection.settimeout(0.1)
        end = time.monotonic() + ATTACK_S
        waiting = memoryview(first + forever)
        while time.monotonic() < end:
            try:
                waiting = waiting[connection.send(waiting) :] or memoryview(forever)
                if read:
                    connection.recv(1 << 20)
            except TimeoutError:
                continue
            except ConnectionError:
                return


FLOODS: dict[str, Callable[[], tuple[bytes, bytes, bool]]] = {
    "requests, nothing read": lambda: (b"", SMALLEST * 5000, False),
    "requests, all read": lambda: (b"", SMALLEST * 5000, True),
    "requests behind an answer that does not come": lambda: (post(b'{"prompt": "never"}'), SMALLEST * 5000, False),
    "a body behind requests": lambda: (SMALLEST * 20_000 + CHUNKED_HEAD, b"10000\r\n" + bytes(65536) + b"\r\n", False),
    "a body that nobody reads": lambda: (
        b"GET /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n",
        b"10000\r\n" + bytes(65536) + b"\r\n",
        True,
    ),
    "requests behind the last chunk": lambda: (b"", chunked(b'{"prompt": "short"}', 99) + SMALLEST * 5000, False),
}


@needs_proc
@pytest.mark.parametrize("make", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_is_bounded_and_does_not_block_others(server: tuple[int, int], make: Callable[[], tuple[bytes, bytes, bool]]) -> None:  # fmt: skip
    port, pid = server
    attackers = [threading.Thread(target=attack, args=(port, *make())) for _ in range(4)]
    before = most = resident_bytes(pid)
    waits: list[float] = []
    for attacker in attackers:
        attacker.start()
    while any(attacker.is_alive() for attacker in attackers):
        started = time.monotonic()
        with connect(port) as connection:
            connection.sendall(HEALTH)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        waits.append(time.monotonic() - started)
        most = max(most, resident_bytes(pid))
        time.sleep(0.02)
    for attacker in attackers:
        attacker.join()
    # Without limits, one such client took 200 MiB, and the loop was blocked for 6 s afterwards.
    assert most - before < 24 * MIB
    assert sorted(waits)[len(waits) // 2] < 2, "the system may stop any process for a moment"


def test_a_client_that_reads_nothing_is_disconnected(server: tuple[int, int]) -> None:
    with connect(server[0]) as connection:
        connection.settimeout(LIMIT_S)
        with pytest.raises(ConnectionError):
            connection.sendall(SMALLEST * 1_000_000)


# Unit tests of the parts


def test_pieces_end_at_possible_request_ends() -> None:
    backlog = Backlog()
    backlog.add(SMALLEST * 2 + b"GET ")
    assert [bytes(backlog.take(0)) for _ in range(3)] == [SMALLEST, SMALLEST, b"GET "]
    assert len(backlog) == 0
    backlog.add(b"GET /")
    backlog.add(b"x HTTP/1.1\r\n\r\nabcde" + SMALLEST)
    assert bytes(backlog.take(0)) == b"GET /x HTTP/1.1\r\n\r\n"
    assert bytes(backlog.take(5)) == b"abcde"
    assert bytes(backlog.take(0)) == SMALLEST
    backlog.add(bytes(100_000))
    n_taken = [len(backlog.take(n_left)) for n_left in (50_000, None, 0)]
    assert max(n_taken) <= 16 << 10
    assert n_taken[1] < n_taken[0]


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"), (None, ""), ("a socket", "a socket"),
    ],
)  # fmt: skip
def test_ipv6_addresses_are_grouped_by_network(host: str | None, group: str) -> None:
    assert address_group(host) == group


class Dropped:
    """A connection that records how it ended."""

    def __init__(self, table: Connections, host: str) -> None:
        self.busy = self.refused = self.closed = False
        self.taken = table.enter(self, host)

    def drop_idle(self) -> bool:
        self.closed = not self.busy
        return self.closed

    def drop_holder(self) -> None:
        self.refused = True


def test_the_largest_holder_is_dropped_at_the_limit() -> None:
    table = Connections(10, 10, 1000)
    small, large, third = (Dropped(table, "192.0.2.1") for _ in range(3))
    table.hold(large, 700)
    table.hold(small, 200)
    assert table.n_bytes == 900
    table.hold(third, 300)
    assert (small.refused, large.refused, third.refused) == (False, True, False)
    assert table.n_bytes == 500
    table.leave(small)
    table.leave(third)
    table.leave(third)
    assert (table.n_bytes, len(table)) == (0, 1)


def test_a_new_connection_replaces_one_of_the_busiest_address() -> None:
    table = Connections(4, 3, 1000)
    many = [Dropped(table, "192.0.2.1") for _ in range(3)]
    table.mark(many[0], idle=False)
    table.mark(many[0], idle=True)  # most recently used
    other = Dropped(table, "192.0.2.2")
    new = Dropped(table, "192.0.2.3")
    assert [each.closed for each in (*many, other)] == [False, True, False, False]
    assert new.taken
    assert len(table) == 4
    for each in many:
        each.busy = True
        table.mark(each, idle=False)
    other.busy = new.busy = True
    assert not Dropped(table, "192.0.2.4").taken
    assert len(table) == 4
