"""The dynamic policy between keys: no key waits longer than the others' turns, and yielding costs little.

Oracle: the answers of each request alone, the clock of the simulation, and the counts of computed tokens.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_simulation import LAYOUTS, Simulation, prompt

TURN = 8


def fair(**options: object) -> Simulation:
    return Simulation(**{"policy": "dynamic", "turn_tokens": TURN, "n_blocks": 129, "max_step_tokens": 64, **options})  # type: ignore[arg-type]


def steps_until_admitted(sim: Simulation, id_: int, most: int = 200) -> int:
    for n in range(1, most):
        if id_ in sim.step().admitted:
            return n
    raise AssertionError(f"{id_} still waits after {most} steps")


# Places


@pytest.mark.parametrize("priority", [0, 100])
def test_a_key_that_holds_all_places_gives_one_back(priority: int) -> None:
    sim = fair(max_running=4)
    held = [sim.submit(prompt(6, seed=i), n_new=60, key="a", priority=priority)[0] for i in range(8)]
    sim.step()
    other = sim.submit(prompt(6, seed=9), n_new=3, key="b")[0]
    assert steps_until_admitted(sim, other) <= TURN + 1
    sim.run()
    assert sim.finished[0] == other
    assert sorted(sim.finished) == sorted([*held, other])
    # One place was yielded once: the answer ended before another sequence had to yield.
    assert sim.scheduler.stats.n_yields == 1


def test_sequences_that_had_their_turn_give_way_at_once() -> None:
    sim = fair(max_running=4)
    for i in range(8):
        sim.submit(prompt(6, seed=i), n_new=60, key="a")
    for _ in range(TURN):
        sim.step()
    other = sim.submit(prompt(6, seed=9), n_new=3, key="b")[0]
    assert steps_until_admitted(sim, other) == 1


@pytest.mark.parametrize(("n_steps", "n_waited"), [(2, 2), (3, 1)])
def test_a_turn_is_exactly_its_tokens(n_steps: int, n_waited: int) -> None:
    sim = fair(max_running=1)
    sim.submit(prompt(TURN - 2), n_new=60, key="a")
    for _ in range(n_steps):  # the prompt, then one token a step
        sim.step()
    assert steps_until_admitted(sim, sim.submit(prompt(6, seed=9), key="b")[0]) == n_waited


def test_one_place_more_is_no_reason_to_give_way() -> None:
    sim = fair(max_running=3)
    for key in "aabb":
        sim.submit(prompt(6, seed=len(sim.jobs)), n_new=60, key=key)
    for _ in range(5 * TURN):
        sim.step()
    assert sim.scheduler.stats.n_yields == 0


def test_the_victim_is_the_keys_own_last() -> None:
    sim = fair(max_running=3)
    ids = [
        sim.submit(prompt(6, seed=i), n_new=60, key="a", priority=priority)[0] for i, priority in enumerate((0, 5, 9))
    ]
    for _ in range(TURN):
        sim.step()
    sim.submit(prompt(6, seed=9), n_new=3, key="b")
    assert sim.step().yielded == [ids[0]]


def test_places_become_even_and_then_stay() -> None:
    sim = fair(max_running=4)
    for key in "ab":
        for i in range(4):
            sim.submit(prompt(6, seed=i), n_new=90, key=key)
        sim.step()
    for _ in range(3 * TURN):
        sim.step()
    yields = sim.scheduler.stats.n_yields
    assert yields == 2
    counts = Counter(key_of(sim, id_) for id_ in sim.jobs if sim.queue(id_) == "running")
    assert counts == {"a": 2, "b": 2}
    for _ in range(3 * TURN):
        sim.step()
    assert sim.scheduler.stats.n_yields == yields


def key_of(sim: Simulation, id_: int) -> str:
    return "ab"[(id_ - 1) // 4]


def test_one_key_never_gives_way_to_itself() -> None:
    sim = fair(max_running=2, turn_tokens=1)
    for i in range(6):
        sim.submit(prompt(6, seed=i), n_new=12, key="a", priority=i)
    sim.run()
    assert sim.scheduler.stats.n_preemptions == 0


@pytest.mark.parametrize("policy", ["fifo", "shortest-first", "priority"])
def test_other_policies_know_no_keys(policy: str) -> None:
    sim = fair(max_running=1, policy=policy)
    first = sim.submit(prompt(6), n_new=60, key="a")[0]
    sim.step()
    sim.submit(prompt(6, seed=1), n_new=1, key="b")
    sim.run()
    assert (sim.finished[0], sim.scheduler.stats.n_yields) == (first, 0)


def test_more_keys_than_places_take_turns() -> None:
    keys = "abcdef"
    sim = fair(max_running=2)
    ids = {sim.submit(prompt(6, seed=i), n_new=64, key=key)[0]: key for i, key in enumerate(keys)}
    last = dict.fromkeys(ids, 0)
    longest = 0
    for step in range(1, 120):
        for item in sim.step().items:
            last[item.sequence_id] = step
        longest = max([longest, *(step - last[id_] for id_ in ids)])
    assert not sim.finished
    assert longest <= len(keys) * (TURN + 2) // 2
    sim.run()
    stats = sim.scheduler.stats
    assert stats.n_recomputed_tokens <= stats.n_yields * 4  # less than a block each time


# Priority


@pytest.mark.parametrize("priority", [100, 100_000])
def test_priority_is_worth_two_turns_between_keys(priority: int) -> None:
    sim = fair(max_running=1, n_blocks=257)
    for i in range(60):
        sim.submit(prompt(4, seed=i), n_new=2, key="a", priority=priority)
        sim.submit(prompt(4, seed=100 + i), n_new=2, key="b")
    sim.run()
    first = [("a", "b")[id_ % 2 == 0] for id_ in sim.finished[:40]]
    assert 10 <= first.count("b") < 20
    gaps = "".join(first).split("b")
    assert max(map(len, gaps)) <= 4


def test_priority_orders_the_requests_of_a_key() -> None:
    sim = fair(max_running=1)
    ids = [sim.submit(prompt(4, seed=i), n_new=2, key="a", priority=i)[0] for i in range(5)]
    sim.submit(prompt(4, seed=9), n_new=2, key="b")
    sim.run()
    assert [id_ for id_ in sim.finished if id_ in ids] == ids[::-1]


def test_keys_that_ask_as_much_get_as_much() -> None:
    sim = fair(max_running=3)
    for i in range(40):
        sim.submit(prompt(8, seed=i), n_new=6, key="a", priority=50)
    sim.step()
    for i in range(10):
        sim.submit(prompt(8, seed=100 + i), n_new=6, key="b", priority=-50)
    sim.run()
    last = max(sim.finished.index(id_) for id_ in sim.finished if id_ > 40)
    assert last <= 40


# Tokens of a step


@pytest.mark.parametrize("every_logit_row", [False, True])
def test_a_long_prompt_leaves_others_their_part_of_a_step(every_logit_row: bool) -> None:
    sim = fair(max_step_tokens=16, max_step_logit_rows=16)
    long = sim.submit(prompt(300), key="a", every_logit_row=every_logit_row)[0]
    sim.step()
    short = sim.submit(prompt(20, seed=1), n_new=2, key="b")[0]
    n_steps = 0
    while short in sim.scheduler:
        assert long in [item.sequence_id for item in sim.step().items]
        n_steps += 1
    assert n_steps <= 5
    sim.run()


def test_a_key_alone_has_all_of_a_step() -> None:
    sim = fair(max_step_tokens=16)
    sim.submit(prompt(64), key="a")
    sim.submit(prompt(64, seed=1), key="a")
    assert [sim.step().n_tokens for _ in range(8)] == [16] * 8
    sim.run()


# Memory


def test_a_key_that_holds_all_blocks_gives_them_back() -> None:
    sim = fair(max_running=8, n_blocks=33, kept_back_blocks=0)
    for i in range(3):
        sim.submit(prompt(20, seed=i), n_new=20, key="a")
    for _ in range(TURN):
        sim.step()
    other = sim.submit(prompt(30, seed=9), n_new=8, key="b")[0]
    assert steps_until_admitted(sim, other) <= 2 * TURN
    sim.run()


@pytest.mark.parametrize("turn_tokens", [1, 4, 8])
def test_taking_turns_with_a_cache_for_one_repeats_a_bounded_part(turn_tokens: int) -> None:
    """Each turn evicts the other's blocks, so that the whole text is recomputed."""
    sim = fair(max_running=4, n_blocks=18, kept_back_blocks=0, turn_tokens=turn_tokens)
    for key, seed in (("a", 1), ("b", 2)):
        sim.submit(prompt(40, seed=seed), n_new=28, key=key)
    sim.run()
    stats = sim.scheduler.stats
    assert stats.n_yields > 1
    n_new = stats.n_computed_tokens - stats.n_recomputed_tokens
    assert stats.n_recomputed_tokens <= 8 * (n_new + 68)


def test_what_a_key_lost_does_not_hold_up_other_keys() -> None:
    """A sequence that may not be preempted again needs much room, and waits for it within its key."""
    sim = fair(n_blocks=9, kept_back_blocks=0, max_preemptions=1)
    for i in range(2):
        sim.submit(prompt(8, seed=i), n_new=16, key="a")
    while not (plan := sim.step()).preempted:
        pass
    assert steps_until_admitted(sim, sim.submit(prompt(2), key="b")[0]) == 1
    assert [sim.queue(id_) for id_ in plan.preempted] == ["waiting"]
    sim.run()


# Pauses


def test_a_paused_sequence_gives_its_place_and_blocks_back() -> None:
    sim = fair(max_running=1)
    unread = sim.submit(prompt(6), n_new=20)[0]
    for _ in range(4):
        sim.step()
    next_one = sim.submit(prompt(6, seed=1), n_new=3)[0]
    sim.scheduler.pause(unread)
    sim.scheduler.pause(unread)
    sim.scheduler.check()
    assert (sim.queue(unread), sim.blocks.n_referenced, sim.scheduler.stats.n_paused) == ("waiting", 0, 1)
    while next_one in sim.scheduler:
        sim.step()
    assert not sim.scheduler.plan(sim.now_s).items
    sim.scheduler.resume(unread)
    assert sim.step().items[0].first == 8  # the computed tokens are found in the cache
    sim.run()
    assert sim.finished == [next_one, unread]
    assert sim.scheduler.stats.n_preemptions == 0


def test_the_choices_of_a_paused_request_wait_with_it() -> None:
    sim = fair(max_running=4)
    ids = sim.submit(prompt(10), n_new=6, n_choices=3)
    for id_ in ids:
        sim.scheduler.pause(id_)
    assert not sim.scheduler.plan(sim.now_s).items
    for id_ in ids:
        sim.scheduler.resume(id_)
    sim.step()
    for id_ in ids[1:]:
        sim.scheduler.pause(id_)
    while ids[0] in sim.scheduler:
        assert [item.sequence_id for item in sim.step().items] == ids[:1]
    sim.scheduler.remove(ids[1])
    sim.scheduler.resume(ids[2])
    sim.run()
    assert sim.finished == [ids[0], ids[2]]


# Everything at once

demands = st.dictionaries(
    st.sampled_from("abcde"),
    st.fixed_dictionaries(
        {
            "n_at_a_time": st.integers(1, 6),
            "n_prompt": st.integers(1, 20),
            "n_new": st.sampled_from([1, 5, 40, 300]),
            "priority": st.sampled_from([-100, 0, 3, 100]),
        }
    ),
    min_size=2,
    max_size=5,
)


@pytest.mark.parametrize("name", ["full", "state"])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    demands=demands,
    max_running=st.integers(1, 5),
    turn_tokens=st.integers(1, 12),
    max_step_tokens=st.integers(8, 24),
    draft_max=st.sampled_from([0, 0, 3]),
)
def test_every_key_is_served_within_a_bound(name: str, demands: dict[str, dict[str, int]], **config: int) -> None:
    """Bound the time that a key with pending requests of any kind goes without a place."""
    sim = fair(**{"layout": LAYOUTS[name], "n_blocks": 481, "n_states": 33, **config})
    keys: dict[int, str] = {}
    last = dict.fromkeys(demands, 0)
    longest = 0
    for step in range(1, 120):
        for key, demand in demands.items():
            for _ in range(demand["n_at_a_time"] - sum(keys[id_] == key for id_ in keys if id_ in sim.scheduler)):
                tokens = prompt(demand["n_prompt"], seed=len(keys))
                keys[sim.submit(tokens, demand["n_new"], key=key, priority=demand["priority"])[0]] = key
        last |= {keys[item.sequence_id]: step for item in sim.step().items}
        longest = max(longest, *(step - at for at in last.values()))
    # Besides new tokens, a turn reads a prompt or recomputes evicted tokens.  Priorities differ by at most four turns.
    assert longest <= (len(demands) + 4) * (config["turn_tokens"] + 4)
    for id_ in keys:
        if id_ in sim.scheduler and len(sim.jobs[id_].answer) + 50 < sim.jobs[id_].n_new:
            sim.scheduler.remove(id_)
    sim.run()
