"""The scheduler on a simulated clock with a made-up model (scheduler_simulation.py)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quire._native.engine import DynamicWeights
from quire._native.testing import Scheduler, SchedulerConfig
from quire.errors import CapacityError, InternalError, RequestError
from scheduler_simulation import FULL, LAYOUTS, Simulation, answer_alone, make_pool, prompt

# Policies


def test_fifo_runs_by_arrival() -> None:
    sim = Simulation(max_running=1, policy="fifo")
    ids = [sim.submit(prompt(n, seed=n), priority=n)[0] for n in (9, 3, 6)]
    sim.run()
    assert sim.finished == ids


def test_shortest_first_runs_by_length() -> None:
    sim = Simulation(max_running=1, policy="shortest-first")
    long, short, middle = (sim.submit(prompt(n, seed=n))[0] for n in (9, 3, 6))
    sim.run()
    assert sim.finished == [short, middle, long]


def test_priority_runs_by_priority_then_arrival() -> None:
    sim = Simulation(max_running=1, policy="priority")
    low, high, low_later, high_later = (sim.submit(prompt(4, seed=i), priority=i % 2)[0] for i in range(4))
    sim.run()
    assert sim.finished == [high, high_later, low, low_later]


def test_dynamic_weighs_age_length_and_priority() -> None:
    weights = DynamicWeights(priority_s=10.0, token_s=1.0)
    sim = Simulation(max_running=1, policy="dynamic", weights=weights, max_step_tokens=64, n_blocks=65)
    blocker = sim.submit(prompt(4), n_new=12)[0]
    sim.step()
    long = sim.submit(prompt(40, seed=1))[0]
    short = sim.submit(prompt(4, seed=2))[0]
    sim.now_s += 5
    urgent = sim.submit(prompt(4, seed=3), priority=1)[0]
    sim.now_s += 20
    late = sim.submit(prompt(4, seed=4))[0]
    sim.run()
    # Ranks in seconds at the end: urgent 20 + 10 - 4, short 25 - 4, late 0 - 4, long 25 - 40.
    assert sim.finished == [blocker, urgent, short, late, long]


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match=r"'lifo'.* fifo, shortest-first, priority, dynamic"):
        SchedulerConfig(policy="lifo")


@pytest.mark.parametrize(("policy", "starves"), [("shortest-first", True), ("dynamic", False)])
def test_dynamic_starves_nobody(policy: str, starves: bool) -> None:
    sim = Simulation(max_running=1, policy=policy, weights=DynamicWeights(token_s=0.5))
    sim.submit(prompt(4))
    long = sim.submit(prompt(60, seed=1))[0]
    for i in range(200):
        sim.submit(prompt(4, seed=2 + i))
        sim.step()
    assert (sim.jobs[long].finished_s is None) == starves
    if not starves:
        assert sim.jobs[long].finished_s < 60  # at 0.5 s a token, its length is worth 30 s of age


@pytest.mark.parametrize(("policy", "fair"), [("fifo", False), ("dynamic", True)])
def test_dynamic_shares_between_keys(policy: str, fair: bool) -> None:
    sim = Simulation(max_running=2, policy=policy)
    greedy = [sim.submit(prompt(8, seed=i), n_new=4, key="greedy")[0] for i in range(30)]
    sim.step()
    modest = [sim.submit(prompt(8, seed=100 + i), n_new=4, key="modest")[0] for i in range(5)]
    sim.run()
    last_modest = max(sim.finished.index(id_) for id_ in modest)
    n_greedy_before = sum(sim.finished.index(id_) < last_modest for id_ in greedy)
    assert (n_greedy_before <= 10) == fair


# Budgets and chunks


def test_running_streams_never_stall_behind_a_long_prompt() -> None:
    sim = Simulation(max_step_tokens=8)
    streams = [sim.submit(prompt(2, seed=i), n_new=30)[0] for i in range(3)]
    sim.step()
    long = sim.submit(prompt(50, seed=9), n_new=1)[0]
    n_steps = 0
    while sim.jobs[long].finished_s is None:
        plan = sim.step()
        n_steps += 1
        rows = {item.sequence_id: item.n_tokens for item in plan.items}
        assert all(rows[stream] == 1 for stream in streams)
        assert rows[long] <= 5
        assert plan.n_tokens == 8 or long not in sim.scheduler
    assert n_steps == 10  # 50 tokens, 5 a step beside three streams
    sim.run()


def test_an_older_long_prompt_leaves_room_for_streams() -> None:
    sim = Simulation(max_step_tokens=8, policy="priority")
    stream = sim.submit(prompt(2), n_new=20)[0]
    sim.step()
    sim.submit(prompt(50, seed=1), priority=5)
    for _ in range(7):
        rows = [(item.sequence_id, item.n_tokens) for item in sim.step().items]
        assert (stream, 1) in rows
        assert sum(n for _, n in rows) == 8
    sim.run()


def test_cached_tokens_of_a_step_are_kept_for_streams() -> None:
    sim = Simulation(max_step_kv_tokens=34, policy="priority")
    first, last = (sim.submit(prompt(2, seed=i), n_new=12, priority=9 * (1 - i))[0] for i in range(2))
    sim.step()
    long = sim.submit(prompt(30), priority=5)[0]
    while last in sim.scheduler:
        assert {first, last} <= {item.sequence_id for item in sim.step().items}
    sim.run()
    assert sim.finished == [first, last, long]


def test_the_first_sequence_always_advances() -> None:
    """It takes cached tokens of a step before all others, even if these then have to wait."""
    sim = Simulation(max_step_kv_tokens=34, policy="priority")
    streams = [sim.submit(prompt(1, seed=i), n_new=20)[0] for i in range(2)]
    for _ in range(10):
        sim.step()
    long = sim.submit(prompt(30), n_new=2, priority=9)[0]
    assert long in sim.step().admitted
    while long in sim.scheduler:
        assert long == sim.step().items[0].sequence_id
    assert all(stream in sim.scheduler for stream in streams)
    sim.run()


def test_every_logit_row_is_delivered_once_within_the_budget() -> None:
    sim = Simulation(max_step_logit_rows=5, max_running=4)
    warm = sim.submit(prompt(12))[0]
    sim.run()
    every = sim.submit(prompt(12), n_new=3, every_logit_row=True)[0]
    streams = [sim.submit(prompt(3, seed=i), n_new=8)[0] for i in range(2)]
    sim.run()
    assert sim.scheduler.stats.n_prefix_hit_tokens == 0  # a cached prompt has no logits
    assert sim.jobs[every].logit_positions == list(range(14))
    assert sim.jobs[warm].logit_positions == [11]
    assert sim.jobs[streams[0]].logit_positions == list(range(2, 10))


def test_a_step_attends_to_at_most_max_step_kv_tokens() -> None:
    sim = Simulation(max_step_kv_tokens=24, max_running=4)
    for i in range(5):
        sim.submit(prompt(7, seed=i), n_new=9)
    sim.run()
    with pytest.raises(CapacityError, match=r"26 tokens.* 24\b"):
        sim.submit(prompt(20), n_new=6)


def test_budgets_must_hold_together() -> None:
    pool = make_pool(FULL, 8, 0)
    with pytest.raises(RequestError, match="max_running"):
        Scheduler(SchedulerConfig(max_step_tokens=4, max_running=5), pool)
    with pytest.raises(RequestError, match="max_running"):
        Scheduler(SchedulerConfig(max_step_logit_rows=4, max_running=5), pool)
    with pytest.raises(RequestError, match="kept_back_blocks"):
        Scheduler(SchedulerConfig(kept_back_blocks=-1), pool)
    for name in (
        "max_step_tokens",
        "max_step_logit_rows",
        "max_step_kv_tokens",
        "max_running",
        "max_preemptions",
        "turn_tokens",
    ):
        with pytest.raises(RequestError, match=f"{name} is "):
            Scheduler(SchedulerConfig(**{name: 0}), pool)
    with pytest.raises(RequestError, match="turn_priority 0"):
        Scheduler(SchedulerConfig(weights=DynamicWeights(turn_priority=0.0)), pool)


# Capacity, prefixes, preemption


def test_requests_that_can_never_fit_are_rejected_at_once() -> None:
    sim = Simulation(n_blocks=5)
    with pytest.raises(CapacityError, match=r"18 tokens .* 4 blocks of 4 tokens"):
        sim.submit(prompt(10), n_new=8)
    with pytest.raises(RequestError, match="empty prompt"):
        sim.scheduler.submit([], max_tokens=4, now_s=0)
    assert sim.scheduler.stats.n_waiting == 0
    sim.submit(prompt(10), n_new=7)  # its last token is never computed, so it fits
    sim.run()


def test_a_refused_admission_changes_nothing() -> None:
    sim = Simulation(n_blocks=9)
    sim.submit(prompt(8))
    sim.run()  # two blocks stay cached
    sim.submit(prompt(24, seed=1), n_new=4)
    sim.step()
    before = (sim.blocks.free_blocks, sim.blocks.n_published)
    waiting = sim.submit([*prompt(8), 1, 1, 1], n_new=2)[0]
    plan = sim.scheduler.plan(sim.now_s)
    assert waiting not in plan.admitted
    assert (sim.blocks.free_blocks, sim.blocks.n_published) == before
    assert sim.queue(waiting) == "waiting"
    sim.run()


def test_a_full_hit_leaves_one_token_to_compute() -> None:
    sim = Simulation()
    sim.submit(prompt(8))
    sim.run()
    for n_tokens, n_cached in ((8, 4), (9, 8), (7, 4)):
        id_ = sim.submit([*prompt(8), 1][:n_tokens])[0]
        plan = sim.step()
        assert [(item.sequence_id, item.first) for item in plan.items] == [(id_, n_cached)]
    other = sim.submit(prompt(8), salt="another tenant")[0]
    plan = sim.step()
    assert [(item.sequence_id, item.first) for item in plan.items] == [(other, 0)]
    sim.run()
    assert sim.scheduler.stats.n_prefix_hit_tokens == 16


def test_generated_tokens_are_found_too() -> None:
    sim = Simulation()
    sim.submit(prompt(6), n_new=7)
    sim.run()
    turn = sim.submit(prompt(6) + answer_alone(prompt(6), 7) + [1, 2])[0]
    assert sim.step().items[0].first == 12
    sim.run()
    assert sim.jobs[turn].finished_s is not None


def test_requests_that_arrive_together_compute_a_prefix_once() -> None:
    sim = Simulation(max_step_tokens=64)
    shared = prompt(12)
    for i in range(4):
        sim.submit([*shared, i, i], n_new=2)
    unrelated = sim.submit(prompt(5, seed=7))[0]
    first = sim.step()
    assert [item.n_tokens for item in first.items] == [14, 5]
    assert first.items[1].sequence_id == unrelated
    assert [item.first for item in sim.step().items] == [14, 12, 12, 12]
    sim.run()
    assert sim.scheduler.stats.n_prefix_hit_tokens == 36


def test_a_full_pool_preempts_the_latest_and_loses_nothing() -> None:
    sim = Simulation(n_blocks=13, kept_back_blocks=0)
    ids = [sim.submit(prompt(6 + i, seed=i), n_new=14)[0] for i in range(6)]
    victims: Counter[int] = Counter()
    while any(id_ in sim.scheduler for id_ in ids):
        plan = sim.step()
        victims.update(plan.preempted)
        left = [id_ for id_ in ids if id_ in sim.scheduler]
        if plan.preempted:
            assert ids[0] not in plan.preempted
            assert not plan.admitted
            assert min(plan.preempted) > max(item.sequence_id for item in plan.items)
        assert not left or plan.items
    assert victims.total() == sim.scheduler.stats.n_preemptions > 0
    assert sim.scheduler.stats.n_recovered_tokens > 0
    sim.run()


def test_admission_keeps_a_block_for_each_running_sequence() -> None:
    for kept_back_blocks, n_steps in ((None, 10), (0, 1)):
        sim = Simulation(n_blocks=9, kept_back_blocks=kept_back_blocks)
        first = sim.submit(prompt(8), n_new=10)[0]
        for _ in range(2):
            sim.step()
        assert sim.blocks.n_free == 5
        second = sim.submit(prompt(20, seed=1))[0]  # needs all of them
        n = 1
        while not (plan := sim.step()).admitted:
            n += 1
        assert plan.admitted == [second]
        assert (n, first in sim.scheduler) == (n_steps - 1 if kept_back_blocks is None else n_steps, n_steps == 1)


def test_a_step_that_preempts_admits_nobody() -> None:
    sim = Simulation(n_blocks=9, kept_back_blocks=0, max_running=2, policy="priority")
    first, second = (sim.submit(prompt(8, seed=i), n_new=20, priority=9 - 2 * i)[0] for i in range(2))
    sim.step()
    small = sim.submit(prompt(2), priority=8)[0]  # waits for a place only
    while not (plan := sim.step()).preempted:
        pass
    assert (plan.preempted, plan.admitted) == ([second], [])
    assert sim.step().admitted == [small]
    sim.run()
    assert first in sim.finished


def test_guarded_sequences_are_admitted_only_where_all_of_them_fit() -> None:
    """Otherwise a full pool could preempt none of them, and a step would fail."""
    sim = Simulation(n_blocks=9, kept_back_blocks=0, policy="priority", max_preemptions=1)
    first = sim.submit(prompt(9, seed=1), n_new=9, priority=2)[0]
    sim.step()
    others = [
        sim.submit(prompt(n, seed=seed), n_new=n_new, priority=priority)[0]
        for n, seed, n_new, priority in ((13, 0, 9, 1), (4, 2, 11, 0))
    ]
    sim.run()
    assert sim.finished[0] == first
    assert sorted(id_ for plan in sim.plans for id_ in plan.preempted) == others


def test_the_preempted_come_back_before_the_new() -> None:
    sim = Simulation(n_blocks=9, kept_back_blocks=0, policy="shortest-first")
    first = sim.submit(prompt(8), n_new=16)[0]
    second = sim.submit(prompt(9, seed=1), n_new=14)[0]
    while not sim.step().preempted:
        pass
    short = sim.submit(prompt(3, seed=2), n_new=1)[0]
    while first in sim.scheduler:
        assert not sim.step().admitted
    assert sim.step().admitted == [second, short]
    sim.run()


def test_preemptions_of_a_sequence_are_bounded() -> None:
    """Under shortest-first a stream of short prompts would otherwise preempt a long one for ever."""
    sim = Simulation(n_blocks=10, kept_back_blocks=0, policy="shortest-first", max_preemptions=2)
    long = sim.submit(prompt(12, seed=1), n_new=20)[0]
    for i in range(150):
        if i % 3 == 0:
            sim.submit(prompt(3, seed=2 + i), n_new=9)
        sim.step()
        if long in sim.scheduler:
            assert sim.scheduler.sequence(long).n_preemptions <= 2
    assert sim.jobs[long].finished_s is not None
    assert Counter(id_ for plan in sim.plans for id_ in plan.preempted)[long] == 2
    sim.run()


# Choices


def test_choices_share_the_prompt_and_copy_on_write() -> None:
    sim = Simulation()
    ids = sim.submit(prompt(10), n_new=6, n_choices=3)
    assert [sim.queue(id_) for id_ in ids] == ["waiting", "following", "following"]
    first = sim.step()
    assert [item.n_tokens for item in first.items] == [10]
    tables = [sim.scheduler.sequence(id_).tables[0] for id_ in ids]
    assert tables[0] == tables[1] == tables[2]
    assert sim.blocks.n_referenced == 3
    second = sim.step()
    shared = tables[0][2]
    assert [edit.source for edit in second.edits] == [shared, shared]  # the third choice keeps the original
    tables = [sim.scheduler.sequence(id_).tables[0] for id_ in ids]
    assert {*tables[0][:2]} == {*tables[1][:2]} == {*tables[2][:2]}
    assert len({table[2] for table in tables}) == 3
    assert sim.blocks.n_referenced == 5
    sim.run()
    assert len({tuple(sim.jobs[id_].answer) for id_ in ids}) > 1


def test_more_choices_than_may_run() -> None:
    sim = Simulation(max_running=3, n_blocks=12)
    ids = sim.submit(prompt(10), n_new=8, n_choices=7)
    sim.step()
    assert [sim.queue(id_) for id_ in ids] == ["running"] * 3 + ["waiting"] * 4
    sim.run()
    assert sorted(sim.finished) == ids


def test_choices_in_a_pool_for_one() -> None:
    sim = Simulation(n_blocks=6)
    ids = sim.submit(prompt(10), n_new=10, n_choices=3)
    sim.run()
    assert sorted(sim.finished) == ids
    assert sim.scheduler.stats.n_preemptions > 0


# Cancellation, outside tokens, misuse


def test_cancellation_in_every_state() -> None:
    sim = Simulation(max_running=2, max_step_tokens=4)
    decoding = sim.submit(prompt(2), n_new=20)[0]
    sim.step()
    prefilling = sim.submit(prompt(12, seed=1), n_new=2)[0]
    waiting = sim.submit(prompt(3, seed=2), n_new=2)[0]
    survivor = sim.submit(prompt(3, seed=3), n_new=5)[0]
    sim.step()
    states = [sim.scheduler.sequence(id_) for id_ in (decoding, prefilling, waiting)]
    assert [state.queue for state in states] == ["running", "running", "waiting"]
    assert 0 < states[1].n_computed < states[1].n_prompt
    for id_ in (decoding, prefilling, waiting):
        n_free, n_held = sim.blocks.n_free, sum(map(len, sim.scheduler.sequence(id_).tables))
        sim.scheduler.remove(id_)
        sim.scheduler.check()
        assert sim.blocks.n_free == n_free + n_held
        assert id_ not in sim.scheduler
        with pytest.raises(RequestError, match="unknown sequence"):
            sim.scheduler.remove(id_)
    sim.run()
    assert sim.finished == [survivor]


def test_cancelling_the_choice_that_computes_the_prompt() -> None:
    sim = Simulation(max_step_tokens=8)
    first, second, third = sim.submit(prompt(20), n_new=4, n_choices=3)
    sim.step()
    sim.scheduler.remove(first)
    sim.scheduler.check()
    assert (sim.queue(second), sim.queue(third)) == ("waiting", "following")
    assert sim.step().items[0].first == 8  # the computed tokens are found in the cache
    sim.run()
    assert sorted(sim.finished) == [second, third]


def test_the_next_choice_delivers_the_remaining_rows() -> None:
    sim = Simulation(max_step_tokens=8)
    first, second = sim.submit(prompt(20), n_new=2, n_choices=2, every_logit_row=True)
    sim.step()
    sim.scheduler.remove(first)
    sim.run()
    assert sim.jobs[first].logit_positions == list(range(8))
    assert sim.jobs[second].logit_positions == list(range(8, 21))


def test_cancelling_a_following_choice() -> None:
    sim = Simulation(max_step_tokens=8)
    first, second, third = sim.submit(prompt(20), n_new=4, n_choices=3)
    sim.step()
    sim.scheduler.remove(second)
    sim.run()
    assert sorted(sim.finished) == [first, third]


def test_a_sequence_that_waits_for_its_token_holds_nobody_up() -> None:
    sim = Simulation(n_blocks=9, kept_back_blocks=0)
    slow = sim.submit(prompt(6), n_new=3)[0]
    sim.paused.add(slow)
    sim.step()
    assert not sim.scheduler.sequence(slow).has_work
    other = sim.submit(prompt(6, seed=1), n_new=4)[0]
    while other in sim.scheduler:
        assert slow not in [item.sequence_id for item in sim.step().items]
    assert not sim.scheduler.plan(sim.now_s).items
    sim.paused.clear()
    sim.sample(slow)
    sim.run()


def test_a_preempted_sequence_that_waits_for_its_token() -> None:
    sim = Simulation(n_blocks=9, kept_back_blocks=0)
    older = sim.submit(prompt(6), n_new=24)[0]
    slow = sim.submit(prompt(6, seed=1), n_new=3)[0]
    sim.paused.add(slow)
    while older in sim.scheduler:
        sim.step()
    assert sim.queue(slow) == "waiting"
    assert not sim.scheduler.plan(sim.now_s).items  # waits for its token
    sim.paused.clear()
    sim.sample(slow)
    sim.run()
    assert sim.jobs[slow].logit_positions == [5, 6, 7]  # the row sampled outside is not computed again


def test_misuse_is_a_typed_error() -> None:
    sim = Simulation()
    id_ = sim.submit(prompt(5), n_new=2)[0]
    with pytest.raises(InternalError, match="before its row of logits"):
        sim.scheduler.append(id_, 1)
    plan = sim.scheduler.plan(0.0)
    sim.run_batch(plan)
    sim.scheduler.commit(plan)
    with pytest.raises(InternalError, match="stale"):
        sim.scheduler.commit(plan)
    for token in (1, 1):
        sim.scheduler.append(id_, token)
        sim.scheduler.commit(sim.scheduler.plan(1.0))
    with pytest.raises(InternalError, match="limit of 7 tokens"):
        sim.scheduler.append(id_, 1)
    other = sim.submit(prompt(5, seed=1))[0]
    plan = sim.scheduler.plan(2.0)
    sim.scheduler.remove(other)
    with pytest.raises(InternalError, match="stale"):
        sim.scheduler.commit(plan)
    with pytest.raises(InternalError, match="stale"):
        sim.scheduler.batch(plan)
    with pytest.raises(RequestError, match="clock"):
        sim.scheduler.submit([1], max_tokens=2, now_s=float("nan"))


# Everything at once

jobs = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.integers(0, 12),
            "shared": st.integers(0, 12),
            "own": st.integers(1, 14),
            "n_new": st.integers(1, 12),
            "n_choices": st.sampled_from([1, 1, 1, 2, 4]),
            "priority": st.sampled_from([-100, -1, 0, 1, 100]),
            "key": st.sampled_from(["a", "b", "c"]),
            "salt": st.sampled_from(["", "", "s"]),
            "every_logit_row": st.sampled_from([False, False, False, True]),
            "snapshot_positions": st.lists(st.integers(0, 20), max_size=2),
            "cancel_after": st.none() | st.none() | st.integers(0, 10),
            "paused": st.sampled_from([False, False, True]),
            "unread": st.none() | st.none() | st.tuples(st.integers(0, 8), st.integers(1, 9)),
        }
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    jobs=jobs,
    policy=st.sampled_from(["fifo", "shortest-first", "priority", "dynamic"]),
    n_blocks=st.integers(11, 24),
    n_states=st.integers(2, 8),
    spare_bytes=st.none() | st.integers(0, 60),
    reuse=st.sampled_from(["by_age", "by_address"]),
    max_step_tokens=st.integers(6, 30),
    max_step_logit_rows=st.integers(6, 12),
    max_step_kv_tokens=st.none() | st.integers(40, 60),
    max_running=st.integers(1, 6),
    kept_back_blocks=st.none() | st.integers(0, 3),
    max_preemptions=st.integers(1, 3),
    turn_tokens=st.integers(1, 9),
    snapshot_tokens=st.integers(1, 24),
    draft_max=st.sampled_from([0, 0, 1, 3, 7]),
    agreement=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_any_workload_finishes_with_the_answers_of_each_request_alone(
    name: str,
    jobs: list[dict[str, object]],
    n_blocks: int,
    n_states: int,
    spare_bytes: int | None,
    **config: object,
) -> None:
    layout = LAYOUTS[name]
    longest = 10 * layout.all_block_bytes + layout.state_bytes * layout.has_state
    budget_bytes = None if spare_bytes is None else longest + spare_bytes
    jobs = [dict(job) for job in jobs]
    sim = Simulation(n_blocks=n_blocks, layout=layout, n_states=n_states, budget_bytes=budget_bytes, **config)
    arrivals: dict[int, list[dict[str, object]]] = {}
    for i, job in enumerate(jobs):
        arrivals.setdefault(job.pop("at"), []).append({**job, "seed": i})  # type: ignore[arg-type]
    cancels: dict[int, int] = {}
    unread: dict[int, tuple[int, int]] = {}
    n_steps = 0
    while n_steps <= 12 or any(id_ in sim.scheduler for id_ in sim.jobs):
        for job in arrivals.get(n_steps, []):
            shared, own, seed = job.pop("shared"), job.pop("own"), job.pop("seed")
            cancel_after, paused, pause = job.pop("cancel_after"), job.pop("paused"), job.pop("unread")
            tokens = prompt(12)[:shared] + prompt(own, seed=1 + seed)  # type: ignore[operator, arg-type]
            if layout.source_group is not None:  # it shares a step with the answer's first token
                tokens = tokens[: sim.config.max_step_tokens - 1]
            ids = sim.submit(tokens, **job)  # type: ignore[arg-type]
            if cancel_after is not None:
                cancels[ids[seed % len(ids)]] = n_steps + cancel_after  # type: ignore[operator]
            if paused:
                sim.paused.add(ids[0])
            if pause is not None:
                unread |= {id_: (n_steps + pause[0], n_steps + sum(pause)) for id_ in ids}  # type: ignore[index, arg-type]
        for id_ in [id_ for id_, when in cancels.items() if when == n_steps and id_ in sim.scheduler]:
            sim.scheduler.remove(id_)
        for id_, (begin, end) in unread.items():
            if id_ in sim.scheduler and n_steps in (begin, end):
                (sim.scheduler.pause if n_steps == begin else sim.scheduler.resume)(id_)
        is_unread = any(id_ in sim.scheduler and begin <= n_steps < end for id_, (begin, end) in unread.items())
        if n_steps % 3 == 0:  # tokens sampled outside arrive late
            for id_ in sim.paused:
                state = sim.scheduler.sequence(id_) if id_ in sim.scheduler else None
                if state and not state.has_work and state.queue != "following":
                    sim.sample(id_)
        plan = sim.step()
        waits = any(id_ in sim.scheduler and not sim.scheduler.sequence(id_).has_work for id_ in sim.paused)
        assert (
            plan.items
            or plan.preempted
            or plan.yielded
            or waits
            or is_unread
            or all(id_ not in sim.scheduler for id_ in sim.jobs)
        )
        n_steps += 1
        assert n_steps < 5000
    sim.expect_all_answers()
    for id_, job in sim.jobs.items():
        if job.finished_s is not None:
            assert len(job.logit_positions) == len(set(job.logit_positions)), id_
    for count in Counter(id_ for plan in sim.plans for id_ in plan.preempted).values():
        assert count <= sim.config.max_preemptions
