"""Drafted tokens in plans, on a simulated clock (scheduler_simulation.py)."""

from __future__ import annotations

import pytest
from quire.errors import InternalError
from scheduler_simulation import BLOCK, FULL, LAYOUTS, STATE, Simulation, answer_alone, prompt


def decoding(sim: Simulation, n_prompt: int = 6, n_new: int = 20) -> int:
    (id_,) = sim.submit(prompt(n_prompt), n_new=n_new)
    sim.step()
    return id_


def right(sim: Simulation, id_: int, n: int) -> list[int]:
    tokens = sim.scheduler.sequence(id_).tokens
    return answer_alone(tokens, n)


def test_a_right_draft_gives_as_many_tokens_and_one_more_in_one_step() -> None:
    sim = Simulation()
    id_ = decoding(sim)
    sim.scheduler.draft(id_, right(sim, id_, 4))
    (item,) = sim.step().items
    assert (item.first, item.n_tokens, item.n_logit_rows, item.n_drafted) == (6, 5, 5, 4)
    assert len(sim.jobs[id_].answer) == 6
    state = sim.scheduler.sequence(id_)
    assert (state.n_computed, state.drafted, len(state.tables[0])) == (11, [], 3)
    stats = sim.scheduler.stats
    assert (stats.n_drafted_tokens, stats.n_accepted_tokens, stats.n_computed_tokens) == (4, 4, 11)
    sim.run()


def test_wrong_drafts_are_rolled_back() -> None:
    sim = Simulation()
    id_ = decoding(sim)
    draft = right(sim, id_, 6)
    draft[1] = (draft[1] + 1) % 5
    sim.scheduler.draft(id_, draft)
    n_before = sim.blocks.n_free
    (item,) = sim.step().items
    assert item.n_tokens == 7  # to the end of the third block
    # The first token, the accepted one, and the one that replaces the wrong draft.
    assert len(sim.jobs[id_].answer) == 3
    state = sim.scheduler.sequence(id_)
    assert (state.n_computed, len(state.tokens), len(state.tables[0])) == (8, 9, 3)
    assert sim.blocks.n_free == n_before - 1
    sim.run()


def test_a_draft_ends_before_the_last_token() -> None:
    sim = Simulation()
    id_ = decoding(sim, n_new=4)
    assert sim.scheduler.draft_limit(id_) == 2
    with pytest.raises(InternalError, match=r"3 tokens.* 2\b"):
        sim.scheduler.draft(id_, [0, 0, 0])
    sim.scheduler.draft(id_, right(sim, id_, 2))
    sim.step()
    assert id_ not in sim.scheduler
    sim.expect_all_answers()


def test_only_a_sequence_that_is_about_to_draw_has_a_draft() -> None:
    sim = Simulation(max_step_tokens=4, max_running=1)
    reading, waiting = sim.submit(prompt(10))[0], sim.submit(prompt(7))[0]
    for _ in range(2):
        assert sim.scheduler.draft_limit(reading) == sim.scheduler.draft_limit(waiting) == 0
        sim.step()
    with pytest.raises(InternalError, match=r"1 tokens.* 0\b"):
        sim.scheduler.draft(reading, [0])


def test_a_draft_stands_behind_the_end_of_a_prompt() -> None:
    sim = Simulation(max_step_tokens=8)
    (id_,) = sim.submit(prompt(11), n_new=9)
    assert sim.scheduler.draft_limit(id_) == 0  # the prompt does not end in this step
    sim.step()
    assert sim.scheduler.draft_limit(id_) == 8
    sim.scheduler.draft(id_, right(sim, id_, 7))
    (item,) = sim.step().items
    assert (item.first, item.n_tokens, item.n_drafted) == (8, 8, 5)  # as many as fit into the step
    assert len(sim.jobs[id_].answer) == 6
    (other,) = sim.submit(prompt(3, seed=1), n_new=9)
    sim.scheduler.draft(other, right(sim, other, 2))  # not admitted yet
    assert [item.n_drafted for item in sim.step().items] == [0, 2]
    sim.run()


@pytest.mark.parametrize("limit", ["max_step_tokens", "max_step_logit_rows"])
def test_drafts_take_no_row_from_others(limit: str) -> None:
    sim = Simulation(max_running=4, **{"max_step_tokens": 64, limit: 6})
    ids = [decoding(sim, n_prompt=2) for _ in range(4)]
    for id_ in ids:
        sim.scheduler.draft(id_, right(sim, id_, 5))
    items = sim.step().items
    assert [(item.sequence_id, item.n_tokens) for item in items] == [(ids[0], 3), *((id_, 1) for id_ in ids[1:])]
    sim.run()


def test_drafts_take_no_block_that_others_may_need() -> None:
    sim = Simulation(n_blocks=6, kept_back_blocks=0)
    first, second = decoding(sim, n_new=10), decoding(sim, n_new=10)
    for id_ in (first, second):
        sim.scheduler.draft(id_, right(sim, id_, 7 if id_ == first else 6))
    assert sim.blocks.n_free == 2
    plan = sim.step()
    assert [item.n_tokens for item in plan.items] == [1, 2]  # drafts end with their blocks
    assert plan.preempted == []
    sim.run()


@pytest.mark.parametrize("n_right", [0, 1, 2])
def test_a_state_goes_back_to_where_it_was_before_the_draft(n_right: int) -> None:
    sim = Simulation(layout=STATE, n_states=8)
    id_ = decoding(sim, n_prompt=BLOCK)
    before = sim.states[sim.scheduler.sequence(id_).state or 0]
    draft = right(sim, id_, 2)
    for i in range(n_right, 2):
        draft[i] = (draft[i] + 1) % 5
    sim.scheduler.draft(id_, draft)
    sim.step()
    state = sim.scheduler.sequence(id_)
    assert len(state.tokens) == BLOCK + 1 + n_right + 1
    assert state.n_computed == (BLOCK if n_right < 2 else BLOCK + 3)
    assert (sim.states[state.state or 0] == before) == (n_right < 2)
    assert sim.scheduler.draft_limit(id_) > 0  # next to the recomputed tokens
    (item,) = sim.step().items
    assert (item.first, item.n_logit_rows) == (state.n_computed, 1)
    sim.run()
    assert sim.pool.held_bytes == 0


def test_without_a_slot_for_its_copy_a_state_goes_without_a_draft() -> None:
    sim = Simulation(layout=STATE, n_states=3)
    id_ = decoding(sim)
    sim.submit(prompt(5, seed=1), n_new=9)
    sim.step()
    sim.scheduler.draft(id_, right(sim, id_, 1))
    assert sim.step().items[0].n_drafted == 0
    sim.run()


def test_rows_that_wait_for_a_token_outlive_a_preemption() -> None:
    sim = Simulation(n_blocks=6, kept_back_blocks=0)
    older, younger = decoding(sim, n_new=13), decoding(sim, n_prompt=5, n_new=8)
    sim.scheduler.draft(younger, right(sim, younger, 2))
    sim.paused.add(younger)  # its logits are ready but no token is drawn
    plan = sim.step()
    assert [item.n_drafted for item in plan.items] == [0, 2]
    while sim.queue(younger) == "running":
        sim.step()
    assert sim.scheduler.sequence(younger).n_computed == 0
    sim.paused.clear()
    sim.sample(younger)
    assert len(sim.jobs[younger].answer) == 4  # all logits were kept
    sim.run()
    assert older in sim.finished


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("n_blocks", [14, 60])
def test_answers_do_not_depend_on_drafts(name: str, n_blocks: int) -> None:
    for agreement in (0.0, 0.6, 1.0):
        sim = Simulation(layout=LAYOUTS[name], n_blocks=n_blocks, draft_max=6, agreement=agreement, kept_back_blocks=0)
        for i in range(8):
            sim.submit(prompt(5 + i, seed=i), n_new=16, n_choices=1 + i % 2)
        sim.run()
        stats = sim.scheduler.stats
        assert stats.n_drafted_tokens > 0
        assert stats.n_accepted_tokens <= stats.n_drafted_tokens
        assert (stats.n_accepted_tokens == stats.n_drafted_tokens) == (agreement == 1.0)


def test_fewer_steps_with_drafts() -> None:
    def steps(draft_max: int) -> int:
        sim = Simulation(layout=FULL, draft_max=draft_max, agreement=1.0)
        sim.submit(prompt(5), n_new=50)
        sim.run()
        return len(sim.plans)

    assert steps(0) == 50
    assert steps(6) < 25
