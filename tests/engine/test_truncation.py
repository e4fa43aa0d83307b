"""Truncation of long conversations: the oldest turns are dropped, and no more than needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quire.engine.requests.truncation import cut_ids, without_oldest

Conversation = Sequence[Mapping[str, object]]


def of(roles: str) -> list[dict[str, Any]]:
    """Return a message for each letter, with its index as text."""
    names = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[letter], "content": str(i)} for i, letter in enumerate(roles)]


def kept(roles: str, n_most: int) -> str:
    """Return the indices that remain if each message has one token."""
    found = without_oldest(of(roles), n_most, len)
    assert found.n_dropped == len(roles) - len(found.messages)
    return "".join(str(message["content"]) for message in found.messages)


@pytest.mark.parametrize(
    ("roles", "n_most", "left"),
    [
        ("uau", 3, "012"),
        ("uau", 2, "2"),
        ("uauau", 4, "234"),
        ("suauau", 4, "0345"),  # the system's messages stay, wherever they are
        ("sudau", 3, "024"),
        ("uatau", 4, "4"),  # a call and its result go with their turn
        ("uatat", 4, "034"),  # in the last turn, the oldest calls are dropped and the question stays
        ("uatatat", 5, "03456"),
        ("uaattaat", 6, "0567"),  # several calls, each with its results
        ("auau", 3, "123"),  # a greeting before the first question
        ("uaua", 2, "23"),  # the beginning of an answer stays
        ("u", 0, "0"),  # messages that must stay are kept even if they do not fit
        ("suau", 1, "03"),
    ],
)
def test_the_oldest_turns_are_dropped(roles: str, n_most: int, left: str) -> None:
    assert kept(roles, n_most) == left


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(0, 20_000))
def test_no_more_turns_are_dropped_than_needed(sizes: list[int], n_most: int) -> None:
    """For any number of characters per token, the fewest turns are dropped, with few counts of tokens."""
    messages = [{"role": "user", "content": "x" * size} for size in sizes]
    n_counts = 0

    def count(left: Conversation) -> int:
        nonlocal n_counts
        n_counts += 1
        return sum((len(str(message["content"])) + 2) // 3 for message in left)

    left = without_oldest(messages, n_most, count).messages
    assert left == messages[len(messages) - len(left) :]
    assert n_counts <= 14
    if count(left) <= n_most:
        assert len(left) == len(messages) or count(messages[len(messages) - len(left) - 1 :]) > n_most
    else:
        assert left == messages[-1:]


def test_ids_are_cut_after_the_kept_ones() -> None:
    ids = list(range(10))
    assert cut_ids(ids, 6, 2) == [0, 1, 6, 7, 8, 9]
    assert cut_ids(ids, 6, 0) == [4, 5, 6, 7, 8, 9]
    assert cut_ids(ids, 3, 5) == [0, 1, 2]
    assert cut_ids(ids, 10, 4) == ids
