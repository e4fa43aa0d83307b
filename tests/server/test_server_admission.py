"""Admission of requests, with settings chosen for each case."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fake_engine import INFO, FakeEngine
from quire.errors import RequestError
from quire.server.app import build_app
from quire.server.failures import ApiError
from quire.server.service.admission import Admission, Ticket
from quire.server.service.caller import Caller, caller_name
from quire.server.service.library import Library
from quire.server.service.service import Service
from quire.server.settings import Settings, read_keys

A, B = Caller("a"), Caller("b")


def admission(n_running: int = 4, **options: Any) -> Admission:
    made = Admission(Settings(**options))
    made.n_running = n_running
    return made


def enter_until_refused(gate: Admission, caller: Caller, most: int = 1000) -> tuple[list[Ticket], ApiError]:
    tickets: list[Ticket] = []
    for _ in range(most):
        try:
            tickets.append(gate.enter(caller, 0))
        except ApiError as error:
            return tickets, error
    raise AssertionError("nothing was refused")


def test_the_queue_is_limited_and_frees_places() -> None:
    gate = admission(max_queue=6)
    tickets, error = enter_until_refused(gate, A)
    assert len(tickets) == 10
    assert (error.status, error.code) == (429, "queue_full")
    assert error.retry_after_s is not None
    assert error.retry_after_s >= 1
    tickets[3].close()
    tickets[3].close()
    gate.enter(A, 0)
    with pytest.raises(ApiError):
        gate.enter(A, 0)


def test_priority_is_limited_for_all_keys_or_single_ones(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(
        "# keys\nfirst-key-0123456789 max-priority=50\n\nsecond-key-012345678\nthird-key-0123456789 max-priority=-3\n"
    )
    keys, priorities = read_keys(file)
    assert keys == ("first-key-0123456789", "second-key-012345678", "third-key-0123456789")
    gate = admission(api_keys=keys, key_priorities=priorities, max_priority=10)
    callers = [Caller(caller_name(hashlib.sha256(key.encode()).digest())) for key in keys]
    assert [gate.priority(caller, 100) for caller in callers] == [50, 10, -3]
    assert [gate.priority(caller, -20) for caller in callers] == [-20] * 3
    assert admission().priority(A, 100) == 100
    with pytest.raises(RequestError, match="max_priority"):
        admission(max_priority=101)


@pytest.mark.parametrize(
    "line", ["first-key-0123456789 max-priority=x", "first-key-0123456789 priority=1", "max-priority=1"]
)
def test_invalid_key_lines_are_rejected(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"another-key-0123456\n{line}\n")
    if line == "max-priority=1":  # itself a valid key
        assert read_keys(file)[0][1] == line
        return
    with pytest.raises(RequestError, match="number 2"):
        read_keys(file)


def test_a_file_of_keys_is_read_up_to_a_limit() -> None:
    with pytest.raises(RequestError, match="/dev/zero is too large"):
        read_keys(Path("/dev/zero"))


def test_the_queue_is_limited_by_tokens_too() -> None:
    gate = admission(max_queue_tokens=1000)
    first = gate.enter(A, 1500)
    assert gate.n_tokens == 500
    first.know(400)
    first.know(300)
    assert gate.n_tokens == 700
    with pytest.raises(ApiError, match="tokens in flight"):
        gate.enter(A, 1500)
    gate.enter(A, 300)
    first.close()
    assert gate.n_tokens == 100
    # A request larger than the queue runs alone.
    assert admission(max_queue_tokens=10).enter(A, 3000).n_tokens == 1000


def test_a_caller_gets_only_its_fair_share() -> None:
    gate = admission(max_queue=16)
    alone, _ = enter_until_refused(gate, A)
    assert len(alone) == 20
    for ticket in alone[10:]:
        ticket.close()
    # The other caller gets half of the places, whatever the first one does.
    second, error = enter_until_refused(gate, B)
    assert (len(second), error.code) == (10, "queue_full")
    second[0].close()
    with pytest.raises(ApiError) as refused:
        gate.enter(A, 0)
    assert refused.value.code == "fair_share"


def test_a_callers_share_of_requests_is_reserved() -> None:
    gate = admission(max_queue=16, max_queue_tokens=9000)
    alone, error = enter_until_refused(gate, A)
    assert (len(alone), error.code) == (20, "queue_full")
    # All places are taken, but the other caller still gets its half of them, and a third one its third.
    second, error = enter_until_refused(gate, B)
    assert (len(second), error.code) == (10, "queue_full")
    third, _ = enter_until_refused(gate, Caller("c"))
    assert len(third) == 6
    for ticket in (*alone, *second, *third):
        ticket.close()
    assert (gate.n_active, gate.n_tokens) == (0, 0)


def test_a_callers_share_of_tokens_is_reserved() -> None:
    gate = admission(max_queue_tokens=9000)
    gate.enter(A, 3 * 9000)
    with pytest.raises(ApiError, match="tokens in flight"):
        gate.enter(A, 3)
    small = gate.enter(B, 3 * 4000)
    with pytest.raises(ApiError, match="tokens in flight"):
        gate.enter(B, 3 * 501)
    gate.enter(B, 3 * 500)
    # A body that arrives in pieces has the same limit, and so do values that use memory.
    with pytest.raises(ApiError, match="tokens in flight"):
        small.grow(4001, 0)
    with pytest.raises(ApiError, match="tokens in flight"):
        small.grow(4000, 1)
    small.close()
    gate.enter(B, 0).grow(3000, 500)


def test_values_of_a_body_count_until_the_request_ends() -> None:
    gate = admission(max_queue_tokens=9000)
    ticket = gate.enter(A, 300)
    ticket.grow(100, 5000)
    ticket.know(70)
    assert gate.n_tokens == 5070
    ticket.close()
    assert gate.n_tokens == 0


def test_rates_of_requests_and_tokens() -> None:
    gate = admission(rate_requests_per_minute=3, max_queue=100)
    tickets, error = enter_until_refused(gate, A)
    assert len(tickets) == 3
    assert (error.code, error.retry_after_s) == ("rate_limited", 20)
    assert len(enter_until_refused(gate, B)[0]) == 3
    account = gate._accounts["a"]
    assert account.requests is not None
    account.requests.filled_s -= 21
    gate.enter(A, 0)
    spent = admission(rate_tokens_per_minute=600)
    spent.enter(A, 0).charge(1199)
    with pytest.raises(ApiError) as refused:
        spent.enter(A, 0)
    assert refused.value.retry_after_s == 60


def test_rejections_over_http_have_retry_after() -> None:
    engine = FakeEngine([None] * 8)
    engine.info = msgspec.structs.replace(INFO, max_sequences=2)
    service = Service(
        Settings(access_log=False, max_queue=1, request_timeout_s=0.3), Library.of("fake", lambda: engine)
    )

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(build_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(*(client.post("/v1/generate", json={"prompt": "x"}) for _ in range(5)))

    responses = asyncio.run(run())
    assert sorted(response.status_code for response in responses) == [429, 429, 504, 504, 504]
    assert all(int(r.headers["retry-after"]) >= 1 for r in responses if r.status_code == 429)
    assert (service.admission.n_active, service.admission.n_tokens) == (0, 0)
    assert sorted(engine.cancelled) == [1, 2, 3]


def test_places_add_up_over_all_loaded_models() -> None:
    engines = {"a": FakeEngine(), "b": FakeEngine()}
    library = Library("a", lambda: dict.fromkeys(engines, 1), lambda name, *_: engines[name], 10)
    service = Service(Settings(max_queue=1), library)
    assert enter_until_refused_by(service) == 32 + 1
    library.open_from_start("a")
    assert enter_until_refused_by(service) == 4 + 1
    library.open_from_start("b")
    assert enter_until_refused_by(service) == 8 + 1


def enter_until_refused_by(service: Service) -> int:
    """Return how many requests of one caller a server admits."""
    tickets: list[Ticket] = []
    try:
        while len(tickets) < 1000:
            tickets.append(service.enter(A, 0))
    except ApiError:
        pass
    for ticket in tickets:
        ticket.close()
    return len(tickets)


def test_a_draining_server_rejects_new_requests() -> None:
    service = Service(Settings(access_log=False), Library.of("fake", FakeEngine))
    service.draining = True

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(build_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.post("/v1/generate", json={"prompt": "x"}), await client.get("/health")]

    refused, health = asyncio.run(run())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert (health.status_code, health.json()) == (503, {"status": "stopping"})
