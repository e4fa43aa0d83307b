"""The scheduler over several groups of layers and recurrent states, on a simulated clock (scheduler_simulation.py)."""

from __future__ import annotations

import random

import pytest
from quire._native.testing import CachePool, PoolGroup, Scheduler, SchedulerConfig
from quire.errors import CapacityError, UnsupportedError
from scheduler_simulation import (
    BLOCK,
    FULL,
    LAYOUTS,
    MIXED,
    N_VOCAB,
    NOTHING,
    STATE,
    STATE_ALONE,
    WINDOW,
    Layout,
    Simulation,
    answer_alone,
    prompt,
)


def firsts(sim: Simulation) -> list[tuple[int, int]]:
    """Return the first position and the number of tokens of each item of the next step."""
    return [(item.first, item.n_tokens) for item in sim.step().items]


# Snapshots


@pytest.mark.parametrize("layout", [STATE, STATE_ALONE])
def test_a_prompt_is_cut_where_its_state_is_kept(layout: Layout) -> None:
    sim = Simulation(layout=layout, max_step_tokens=64, snapshot_tokens=16)
    sim.submit(prompt(39), snapshot_positions=[9, 21])
    cuts = []
    for _ in range(6):
        cuts += firsts(sim)
    # Cuts at the last whole block of each message, every 16 tokens, and at the last whole block; then the rest.
    assert cuts == [(0, 8), (8, 8), (16, 4), (20, 12), (32, 4), (36, 3)]
    for n_same, n_found in ((38, 36), (36, 36), (35, 32), (22, 20), (19, 16), (11, 8), (7, 0)):
        other = [*prompt(39)[:n_same], (prompt(39)[n_same] + 1) % N_VOCAB]
        sim.submit(other)
        assert sim.step().items[0].first == n_found
        sim.run()


def test_a_full_hit_of_a_state_leaves_one_token_to_compute() -> None:
    sim = Simulation(layout=STATE)
    sim.submit(prompt(8))
    sim.run()
    assert sim.pool.stats.n_snapshots == 2  # after 4 tokens for the same prompt, after 8 for a longer one
    for tokens, n_cached in ((prompt(8), 4), ([*prompt(8), 1], 8)):
        sim.submit(tokens)
        assert sim.step().items[0].first == n_cached
        sim.run()


def test_decoding_keeps_the_state_of_its_last_whole_block() -> None:
    sim = Simulation(layout=STATE, snapshot_tokens=16)
    sim.submit(prompt(6), n_new=21)  # 26 tokens are computed
    sim.run()
    assert sim.pool.stats.n_snapshots == 3  # at the end of the prompt, after 16 tokens, and after the last whole block
    text = prompt(6) + answer_alone(prompt(6), 21)
    sim.submit([*text, 1, 2])
    assert sim.step().items[0].first == 24
    sim.run()
    for n_same, n_found in ((23, 16), (15, 4)):
        sim.submit([*text[:n_same], (text[n_same] + 1) % N_VOCAB])
        assert sim.step().items[0].first == n_found
        sim.run()


def test_snapshots_at_messages_outlive_those_between() -> None:
    sim = Simulation(layout=STATE_ALONE, n_states=8, snapshot_tokens=4)
    sim.submit(prompt(17))  # after 4, 8 and 12 tokens for texts that diverge, after 16 for the same text
    sim.run()
    sim.submit(prompt(17, seed=1))  # evicts two snapshots
    sim.run()
    assert sim.pool.stats.n_snapshots == 6
    for seed in (0, 1):
        sim.submit([*prompt(17, seed=seed), 1])
        assert sim.step().items[0].first == 16
        sim.run()


def test_choices_share_the_rows_and_have_states_of_their_own() -> None:
    sim = Simulation(layout=STATE)
    ids = sim.submit(prompt(10), n_new=6, n_choices=3)
    sim.step()
    sim.step()
    states = [sim.scheduler.sequence(id_) for id_ in ids]
    assert len({state.state for state in states}) == 3
    assert states[0].tables == states[1].tables == states[2].tables
    sim.run()
    assert len({tuple(sim.jobs[id_].answer) for id_ in ids}) > 1


def test_choices_without_a_slot_wait_for_one() -> None:
    sim = Simulation(layout=STATE, n_states=3)
    ids = sim.submit(prompt(10), n_new=6, n_choices=3)
    sim.run()
    assert sorted(sim.finished) == ids


def test_requests_that_arrive_together_compute_a_state_once() -> None:
    sim = Simulation(layout=STATE, max_step_tokens=64, snapshot_tokens=8)
    shared = prompt(14)
    for i in range(4):
        sim.submit([*shared, i, i], n_new=2, snapshot_positions=[14])
    assert firsts(sim) == [(0, 8)]
    assert firsts(sim) == [(8, 4)]
    assert firsts(sim) == [(12, 4), (12, 4), (12, 4), (12, 4)]
    sim.run()
    assert sim.scheduler.stats.n_prefix_hit_tokens == 36


def test_a_preempted_sequence_goes_on_from_its_last_snapshot() -> None:
    sim = Simulation(layout=STATE, n_blocks=9, n_states=9, kept_back_blocks=0)
    sim.submit(prompt(8), n_new=24)
    second = sim.submit(prompt(9, seed=1), n_new=14)[0]
    while second not in (plan := sim.step()).preempted:
        pass
    n_computed = len(sim.scheduler.sequence(second).tokens) - 1
    while second not in plan.admitted:
        plan = sim.step()
    first = next(item.first for item in plan.items if item.sequence_id == second)
    sim.run()
    stats = sim.scheduler.stats
    assert stats.n_recovered_tokens == first
    assert stats.n_recomputed_tokens == n_computed - first


# Windows


def test_a_window_gives_its_blocks_to_layers_that_need_them() -> None:
    """Two full groups would take 26 blocks of 3 bytes; the budget is 13 blocks, and 5 for the window and a step."""
    budget_bytes = 3 * (13 + 5)
    sim = Simulation(layout=WINDOW, n_blocks=30, budget_bytes=budget_bytes, max_step_tokens=8)
    id_ = sim.submit(prompt(33), n_new=17)[0]
    while id_ in sim.scheduler:
        sim.step()
        if id_ in sim.scheduler:
            full, window = sim.scheduler.sequence(id_).tables
            assert len([block for block in window if block]) <= 5
            assert 0 not in full
    assert {edit.kind for plan in sim.plans for edit in plan.edits} == {"discard"}
    sim.run()
    with pytest.raises(CapacityError, match=r"54 tokens needs 57 bytes .* 54:"):
        sim.submit(prompt(33), n_new=21)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_full_pool_is_slower_and_loses_nothing(name: str) -> None:
    layout = LAYOUTS[name]
    whole = 5 * layout.all_block_bytes + layout.state_bytes * layout.has_state
    sim = Simulation(layout=layout, n_blocks=40, budget_bytes=int(2.5 * whole), kept_back_blocks=0)
    for i in range(6):
        n_new = 10 if layout.source_group is None else 26  # tables of a source do not grow
        sim.submit(prompt(6 + i, seed=i), n_new=n_new, n_choices=1 + i % 2)
    sim.run()
    assert sim.scheduler.stats.n_preemptions > 0 or name in ("state-alone", "window-alone")


# Encoders


def test_a_prompt_whose_tokens_see_each_other_is_one_item() -> None:
    sim = Simulation(layout=NOTHING, max_step_tokens=20, max_step_logit_rows=20)
    sim.scheduler.submit(prompt(12), max_tokens=12, now_s=0.0)
    sim.scheduler.submit(prompt(9), max_tokens=9, now_s=1.0, every_logit_row=True)
    sim.scheduler.submit(prompt(8), max_tokens=8, now_s=2.0)
    sim.scheduler.submit(prompt(12), max_tokens=12, now_s=3.0)
    steps = []
    for _ in range(3):
        plan = sim.scheduler.plan(0.0)
        batch = sim.scheduler.batch(plan)
        assert (batch["groups"], batch["states"]) == ([], [])
        steps.append([(item.first, item.n_tokens, item.n_logit_rows) for item in plan.items])
        sim.scheduler.commit(plan)
        for item in plan.items:
            assert not sim.scheduler.sequence(item.sequence_id).has_work
            sim.scheduler.remove(item.sequence_id)
        sim.scheduler.check()
    # Prompts are computed whole, in order; the same prompt again has no prefix hit.
    assert steps == [[(0, 12, 1)], [(0, 9, 9), (0, 8, 1)], [(0, 12, 1)]]
    with pytest.raises(CapacityError, match=r"21 tokens.* 20 "):
        sim.scheduler.submit(prompt(21), max_tokens=21, now_s=4.0)
    with pytest.raises(UnsupportedError, match="2 tokens"):
        sim.scheduler.submit(prompt(4), max_tokens=6, now_s=4.0)


# Conversations and memory


@pytest.mark.parametrize(("layout", "snapshot_tokens"), [(WINDOW, 32), (STATE, 32), (MIXED, 32), (STATE, 8)])
def test_conversations_compute_at_most_the_distance_again(layout: Layout, snapshot_tokens: int) -> None:
    """32 conversations take turns; each prompt is the whole conversation so far, and new text."""
    sim = Simulation(
        layout=layout, n_blocks=3000, n_states=800, max_step_tokens=64, max_running=8, snapshot_tokens=snapshot_tokens
    )
    rng = random.Random(1)
    texts = [prompt(rng.randrange(8, 40), seed=i) for i in range(32)]
    lengths = [0] * len(texts)
    for turn in range(5):
        ids = [sim.submit(text, n_new=7 + i % 5, snapshot_positions=[len(text) - 3])[0] for i, text in enumerate(texts)]
        known = dict(zip(ids, lengths, strict=True))
        while any(id_ in sim.scheduler for id_ in ids):
            plan = sim.step()
            for item in plan.items:
                if item.sequence_id in plan.admitted:
                    again = known[item.sequence_id] - item.first
                    assert again <= BLOCK  # less than a block, and less than the distance of snapshots
                    assert again <= snapshot_tokens
        for i, id_ in enumerate(ids):
            said = sim.jobs[id_].prompt + sim.jobs[id_].answer
            lengths[i] = len(said) - 1  # the last token is never computed
            texts[i] = said + prompt(rng.randrange(3, 20), seed=100 * turn + i)
    assert sim.scheduler.stats.n_preemptions == 0


@pytest.mark.parametrize("layout", [WINDOW, STATE, MIXED])
def test_conversations_that_diverge_compute_at_most_the_distance_again(layout: Layout) -> None:
    """The next prompt leaves out the last answer, like thoughts: the prefix up to that message is found."""
    sim = Simulation(layout=layout, n_blocks=3000, n_states=800, max_step_tokens=64, snapshot_tokens=16)
    texts = [prompt(30 + i, seed=i) for i in range(8)]
    for text in texts:
        sim.submit(text, n_new=9, snapshot_positions=[len(text) - 2])
    sim.run()
    for i, text in enumerate(texts):
        sim.submit([*text[:-2], *prompt(9, seed=50 + i)])
        assert len(text) - 2 - sim.step().items[0].first <= BLOCK + 1
        sim.run()


def test_a_long_text_takes_what_its_windows_and_full_layers_need() -> None:
    """The layers of Gemma 3 4B: 5 see everything, 29 the last 1024 tokens; 32768 tokens."""
    n_tokens, n_answer, block, window, layer_bytes = 32768, 64, 32, 1024, 4096
    full_bytes, window_bytes = 5 * layer_bytes * block, 29 * layer_bytes * block
    needed = full_bytes * n_tokens // block + window_bytes * window // block
    pool = CachePool(
        [PoolGroup(1100, block_bytes=full_bytes), PoolGroup(1100, block_bytes=window_bytes, window=window)],
        budget_bytes=int(1.1 * needed),
    )
    scheduler = Scheduler(SchedulerConfig(max_step_tokens=512, max_step_logit_rows=64), pool)
    (id_,) = scheduler.submit([i % 7 for i in range(n_tokens - n_answer)], max_tokens=n_tokens, now_s=0.0)
    most = 0
    for _ in range(n_answer + 64):
        plan = scheduler.plan(0.0)
        assert not plan.preempted
        most = max(most, pool.held_bytes)
        scheduler.commit(plan)
        if not scheduler.sequence(id_).has_work:
            scheduler.append(id_, 1)
        if len(scheduler.sequence(id_).tokens) == n_tokens:
            break
    assert len(scheduler.sequence(id_).tokens) == n_tokens
    assert needed <= pool.filled_bytes
    assert most <= 1.1 * needed
    assert pool.held_bytes <= 1.02 * needed  # outside of prefill, the window and two blocks


def test_one_group_without_limits_is_the_simple_case() -> None:
    sim = Simulation(layout=FULL)
    sim.submit(prompt(20), snapshot_positions=[5, 9])
    assert firsts(sim) == [(0, 16)]  # without states, steps are not cut at snapshots
    sim.run()
