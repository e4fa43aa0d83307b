"""Which replica gets a request: prefix hashes and the policy."""

from __future__ import annotations

import random
from typing import Any

from quire.routing.policy import Policy
from quire.routing.prefix_index import BLOCKS_OF_AN_ANSWER, PrefixIndex, Replica
from quire.routing.prefixes import BLOCK_BYTES, prefix_hashes

LONG = "river house tree cat " * 100


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)], **more}


def n_shared(first: dict[str, Any], second: dict[str, Any], *keys: str) -> int:
    a, b = prefix_hashes(first, *keys[:1]), prefix_hashes(second, *keys[1:])
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_a_later_turn_has_the_blocks_of_the_earlier_one() -> None:
    earlier, later = chat(LONG), chat(LONG, "An answer.", LONG)
    assert len(prefix_hashes(earlier)) == len(LONG) // BLOCK_BYTES
    assert n_shared(earlier, later) == len(prefix_hashes(earlier))
    parts = [{"role": "user", "content": [{"type": "text", "text": LONG}]}]
    assert prefix_hashes({"messages": parts}) == prefix_hashes(earlier)


def test_what_changes_the_cache_parts_requests() -> None:
    body = chat(LONG)
    for change in ({"model": "b"}, {"cache_salt": "x"}, {"tools": [{"name": "f"}]}, {"lora": [{"id": 1}]}):
        assert n_shared(body, {**body, **change}) == 0
    assert n_shared(body, body, "key-1", "key-2") == 0
    assert n_shared(body, {**body, "temperature": 0.5, "stream": True}) == len(prefix_hashes(body))
    assert n_shared(chat("a" + LONG), chat("b" + LONG)) == 0


def test_anything_is_a_request() -> None:
    for body in ({}, {"messages": 3}, {"messages": ["x" * 600]}, {"prompt": [[1, 2], "y" * 600]}, {"input": None}):
        assert isinstance(prefix_hashes(body), list)
    assert prefix_hashes({"prompt": "\ud800" * 600})


def test_the_index_finds_the_longest_match_and_forgets_ends_first() -> None:
    index, one, other = PrefixIndex(most=10), Replica("1"), Replica("2")
    index.add(one, range(8))
    for n in range(9):
        assert index.n_known([*range(n), -1, -2]) == n
    index.add(other, range(3))
    assert index.matches(range(8)) == {one: 8, other: 3}
    assert index.holders(2) == [other, one]
    index.add(one, range(100, 105))
    assert len(index) == 10
    assert index.n_known(range(8)) == 5
    assert index.matches(range(100, 105)) == {one: 5}
    one.epoch += 1  # it has started again, with an empty cache
    assert index.matches(range(8)) == {other: 3}


def test_a_block_remembers_the_last_replicas_it_was_sent_to() -> None:
    index, some = PrefixIndex(most_holders=3), replicas(0, 0, 0, 0, 0)
    for replica in (*some, some[3]):
        index.add(replica, range(2))
    assert index.holders(1) == [some[3], some[4], some[2]]


def replicas(*n_active: int) -> list[Replica]:
    return [Replica(str(i), n_active=n) for i, n in enumerate(n_active)]


def test_the_longest_match_wins_unless_waiting_for_it_takes_longer_than_computing() -> None:
    policy, n = Policy(draw=random.Random(1)), BLOCKS_OF_AN_ANSWER
    some = replicas(3, 0, 0)
    policy.index.add(some[1], range(6 * n))
    policy.index.add(some[0], range(10 * n))
    asked = list(range(12 * n))
    assert policy.choose(some, asked) is some[0]  # 3 answers and 2 answers' worth of the prompt, against 6 and 12
    assert policy.choose(some, asked, tried={some[0]}) is some[1]
    some[0].n_active = 5
    assert policy.choose(some, asked) is some[1]
    some[0].n_active, some[1].n_unread = 4, n
    assert policy.choose(some, asked) is some[0]
    some[0].n_active, some[0].is_ready = 0, False
    assert policy.choose(some, asked) is some[1]
    some[1].n_active = 9
    assert policy.choose(some, asked) is some[2]
    for replica in some:
        replica.is_ready = False
    assert policy.choose(some, []) is None


def test_without_a_match_requests_are_spread() -> None:
    policy, some = Policy(draw=random.Random(1)), replicas(0, 0, 0, 0)
    for i in range(400):
        chosen = policy.choose(some, [i])
        assert chosen is not None
        chosen.n_active += 1
    assert max(each.n_active for each in some) - min(each.n_active for each in some) <= 3


def test_a_fleet_is_asked_in_part_and_matches_are_found_all_the_same() -> None:
    policy, many = Policy(draw=random.Random(1)), replicas(*[1] * 1000)
    policy.index.add(many[700], range(10))
    assert policy.choose(many, list(range(12))) is many[700]
    for replica in many[:990]:
        replica.is_ready = False
    assert policy.choose(many, list(range(12))) in many[990:]
    assert policy.choose(many, [5], tried=set(many[990:])) is None
