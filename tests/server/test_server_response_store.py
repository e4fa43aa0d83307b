"""Stored responses: their owners, and which are dropped first."""

from __future__ import annotations

import pytest
from quire.server.failures import ApiError
from quire.server.service.caller import Caller
from quire.server.service.response_store import ResponseStore

A, B = Caller("a"), Caller("b")


def test_responses_belong_to_their_caller() -> None:
    kept = ResponseStore()
    kept.add(A, "1", {"x": 1}, [])
    assert kept.get(A, "1").response == {"x": 1}
    for caller, id_ in ((B, "1"), (A, "2")):
        with pytest.raises(ApiError, match="no stored response"):
            kept.get(caller, id_)
    kept.remove(A, "1")
    with pytest.raises(ApiError):
        kept.get(A, "1")


def test_the_least_recently_used_go_first() -> None:
    kept = ResponseStore(most_bytes=3 * len(b'[{"x":"' + b"y" * 100 + b'"},[]]'))
    for id_ in "123":
        kept.add(A, id_, {"x": "y" * 100}, [])
    kept.get(A, "1")
    kept.add(A, "4", {"x": "y" * 100}, [])
    assert [id_ for _, id_ in kept._responses] == ["3", "1", "4"]
    kept.add(A, "5", {"x": "y" * 1000}, [])  # larger than the whole store
    assert [id_ for _, id_ in kept._responses] == ["3", "1", "4"]
