"""Pools that share a budget, and the caches of sequences over groups of layers.

Oracle: a model of dictionaries that keeps what was written where, and recounts every byte.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from quire._native.graph import CacheSpec
from quire._native.kv import CacheLayout
from quire._native.testing import CachePool, PoolGroup, SequenceCache
from quire.errors import CapacityError, ShapeError
from scheduler_simulation import BLOCK, LAYOUTS, MIXED, NOTHING, STATE, STATE_ALONE, Layout, make_pool

STEP = 5
REUSE = st.sampled_from(["by_age", "by_address"])


def compute(cache: SequenceCache, tokens: list[int], begin: int = 0) -> None:
    """Compute tokens from `begin` on in steps."""
    for first in range(begin, len(tokens), STEP):
        end = min(first + STEP, len(tokens))
        cache.prepare(first, end)
        cache.advance(tokens, end)


# The budget


def test_groups_share_a_budget_and_the_oldest_goes_first() -> None:
    pool = CachePool([PoolGroup(9, block_bytes=2), PoolGroup(9, block_bytes=3)], block_tokens=1, budget_bytes=12)
    small, large = pool.groups
    first, second = small.allocate(), large.allocate()
    third = small.allocate()
    for group, block, name in ((small, first, b"a"), (large, second, b"b"), (small, third, b"c")):
        group.publish(block, name * 32)
    large.release(second)
    small.release(first)
    small.release(third)
    assert (pool.held_bytes, pool.filled_bytes) == (0, 7)
    taken = [large.allocate()]  # there is room for it
    assert pool.filled_bytes == 10
    taken.append(large.allocate())  # the oldest is of its own group, and is filled anew
    assert small.find(b"a" * 32) == first
    assert large.find(b"b" * 32) is None
    assert not pool.take_edits()
    taken.append(large.allocate())  # the older of the small ones goes, and its 2 bytes do
    assert small.find(b"a" * 32) is None
    assert small.find(b"c" * 32) == third
    assert [(edit.kind, edit.group, edit.source) for edit in pool.take_edits()] == [("discard", 0, first)]
    assert pool.filled_bytes == 11
    taken.append(large.allocate())
    assert [edit.source for edit in pool.take_edits()] == [third]
    assert (pool.held_bytes, pool.filled_bytes) == (12, 12)
    with pytest.raises(CapacityError):
        small.allocate()
    pool.check()
    for block in taken:
        large.release(block)
    pool.check()


def test_blocks_without_a_hash_are_reused_before_old_ones() -> None:
    pool = CachePool([PoolGroup(5), PoolGroup(5)], block_tokens=1, budget_bytes=2)
    one, other = pool.groups
    old, private = one.allocate(), one.allocate()
    one.publish(old, b"a" * 32)
    one.release(old)
    one.release(private)
    other.allocate()
    assert one.find(b"a" * 32) == old
    assert [edit.source for edit in pool.take_edits()] == [private]


def test_a_layout_groups_layers_by_how_long_their_rows_live() -> None:
    layers = [
        CacheSpec(n_kv_head=8, head_dim=128),
        CacheSpec(n_kv_head=2, head_dim=64, v_head_dim=32, window=512),
        CacheSpec(states=[("conv", 10), ("ssm", 6)]),
        CacheSpec(n_kv_head=1, head_dim=16),
        CacheSpec(n_kv_head=1, head_dim=16, chunk=64),
        CacheSpec(),
        CacheSpec.latent(rank=512, n_rot=64),
    ]
    layout = CacheLayout(layers, "f16")
    assert layout.k_block_bytes(0) == layout.v_block_bytes(0) == 8 * 128 * 2 * 32
    assert layout.k_block_bytes(1) == 2 * 64 * 2 * 32
    assert layout.v_block_bytes(1) == 2 * 32 * 2 * 32
    full, chunk, window = layout.groups
    assert ((full.window, full.chunk), full.layers) == ((0, 0), [0, 3, 6])
    assert (layout.k_block_bytes(6), layout.v_block_bytes(6)) == (576 * 2 * 32, 0)
    assert (layers[6].n_kv_head, layers[6].head_dim, layers[6].v_head_dim, layers[6].v_in_k) == (1, 576, 512, True)
    assert ((chunk.window, chunk.chunk), chunk.layers) == ((0, 64), [4])
    assert ((window.window, window.chunk), window.layers) == ((512, 0), [1])
    assert full.block_bytes == (2 * 8 * 128 + 2 * 16 + 576) * 2 * 32
    assert window.block_bytes == 2 * (64 + 32) * 2 * 32
    assert layout.block_bytes == sum(group.block_bytes for group in layout.groups)
    assert layout.state_bytes == 16 * 4


def test_invalid_sizes_of_a_layout_are_rejected() -> None:
    with pytest.raises(ShapeError, match="layer 1 has n_kv_head 0"):
        CacheLayout([CacheSpec(n_kv_head=1, head_dim=8), CacheSpec(n_kv_head=0, head_dim=8)], "f16")
    with pytest.raises(ShapeError, match="window -1"):
        CacheLayout([CacheSpec(n_kv_head=1, head_dim=8, window=-1)], "f32")
    with pytest.raises(ShapeError, match="layer 0 has both"):
        CacheLayout([CacheSpec(n_kv_head=1, head_dim=8, window=4, chunk=4)], "f32")
    heads = CacheSpec(n_kv_head=1, head_dim=64, v_head_dim=80)
    assert CacheLayout([heads], "q4_0/q8_0").k_block_bytes(0) == 64 * 18
    with pytest.raises(ShapeError, match="heads of layer 1 have 80 numbers: a cache of q5_1 needs a multiple of 32"):
        CacheLayout([CacheSpec(), heads], "q4_0/q5_1")
    with pytest.raises(ShapeError, match="q8_0/f16 in layer 0"):
        CacheLayout([CacheSpec.latent(rank=512, n_rot=64)], "q8_0/f16")
    for rank, n_rot in ((0, 8), (8, -1)):
        with pytest.raises(ShapeError, match="layer 0 has"):
            CacheLayout([CacheSpec.latent(rank=rank, n_rot=n_rot)], "f16")


# Windows and chunks


@pytest.mark.parametrize("name", ["window", "window-alone", "window-chunk-state"])
def test_blocks_behind_the_window_are_dropped_but_found(name: str) -> None:
    layout = LAYOUTS[name]
    pool = make_pool(layout, 40, 8)
    cache = SequenceCache(pool, step_tokens=STEP)
    tokens = [i % 3 for i in range(50)]
    assert cache.take(tokens, 49) == 0
    for first in range(0, 50, STEP):
        cache.prepare(first, first + STEP)
        cache.advance(tokens, first + STEP)
        boundary = (first + STEP) // BLOCK * BLOCK
        for group, table in enumerate(cache.tables):
            n_dropped = layout.first_seen(group, boundary) // BLOCK
            assert table[:n_dropped] == [0] * n_dropped
            assert 0 not in table[n_dropped:]
            if layout.groups[group] != (0, 0):
                assert len(table) - n_dropped <= 6  # 7 tokens of a chunk, 3 of a block, 5 of a step; wherever it begins
    other = SequenceCache(pool, step_tokens=STEP)
    if not layout.has_state:
        assert other.match(tokens[:21] + [9] * 20, 40) == 20  # dropped blocks are free, not lost
        assert cache.match(tokens, 49) == 48
    cache.release()
    assert pool.held_bytes == 0
    pool.check()


def test_a_window_needs_only_its_own_blocks_of_a_prefix() -> None:
    pool = make_pool(Layout(groups=((6, 0),)), 9, 0)
    cache = SequenceCache(pool, step_tokens=STEP)
    tokens = [i % 3 for i in range(33)]
    cache.take(tokens, 32)
    compute(cache, tokens)
    cache.release()
    other = SequenceCache(pool, step_tokens=STEP)
    assert pool.groups[0].n_published < 8  # the first ones were filled anew
    assert other.take(tokens, 32) == 32
    assert [block != 0 for block in other.tables[0][:8]] == [False] * 6 + [True] * 2  # tokens 27 to 31
    assert other.match(tokens[:8], 8) == 0


def test_chunks_end_where_the_next_one_begins() -> None:
    pool = make_pool(Layout(groups=((0, 0), (0, 8))), 20, 0)
    cache = SequenceCache(pool, step_tokens=STEP)
    tokens = [i % 3 for i in range(21)]
    cache.take(tokens, 20)
    compute(cache, tokens)
    assert [block != 0 for block in cache.tables[1]] == [False] * 4 + [True] * 2
    other = SequenceCache(pool, step_tokens=STEP)
    assert other.take(tokens[:17], 16) == 16  # nothing of the first two chunks is seen again
    assert [block != 0 for block in other.tables[1]] == [False] * 4 + [True]


# States


def test_a_state_is_taken_up_where_a_snapshot_is() -> None:
    pool = make_pool(STATE, 20, 5)
    cache = SequenceCache(pool, step_tokens=STEP)
    tokens = [i % 3 for i in range(14)]
    assert cache.take(tokens, 13) == 0
    assert [(edit.group, edit.source, edit.target) for edit in pool.take_edits()] == [(None, 0, cache.state)]
    cache.prepare(0, 8)
    cache.advance(tokens, 8)
    cache.snapshot(tokens[:8])
    (kept,) = pool.take_edits()
    assert (kept.kind, kept.group, kept.source) == ("copy", None, cache.state)
    other = SequenceCache(pool, step_tokens=STEP)
    assert other.match(tokens[:8], 7) == 0  # the blocks would do, but there is no state after 4 tokens
    assert other.take(tokens, 13) == 8
    assert [(edit.source, edit.target) for edit in pool.take_edits()] == [(kept.target, other.state)]
    assert SequenceCache(pool, step_tokens=STEP, salt=b"other").match(tokens, 13) == 0
    fork = other.fork()
    assert fork.state not in (other.state, cache.state)
    assert [(edit.source, edit.target) for edit in pool.take_edits()] == [(other.state, fork.state)]
    assert fork.tables == other.tables
    assert pool.stats.n_snapshots == 1
    for held in (cache, other, fork):
        held.release()
    assert pool.held_bytes == 0
    with pytest.raises(ShapeError, match="after 7 tokens"):
        cache.snapshot(tokens[:7])


def test_the_last_room_is_the_snapshots_own() -> None:
    pool = make_pool(STATE_ALONE, 2, 3, budget_bytes=2 * STATE_ALONE.state_bytes)
    cache = SequenceCache(pool, step_tokens=STEP)
    tokens = [1, 2, 3, 4]
    cache.take(tokens, 3)
    cache.advance(tokens, 4)
    cache.snapshot(tokens)
    (_, kept) = pool.take_edits()
    second = SequenceCache(pool, step_tokens=STEP)
    assert second.take([*tokens, 5], 4) == 4
    assert second.state == kept.target  # no copy
    assert not pool.take_edits()
    assert SequenceCache(pool, step_tokens=STEP).match([*tokens, 5], 4) == 0
    assert SequenceCache(pool, step_tokens=STEP).take([9], 0) is None
    assert not second.can_fork
    pool.check()


def test_a_rolling_snapshot_takes_its_predecessors_place() -> None:
    pool = make_pool(STATE_ALONE, 2, 9)
    cache = SequenceCache(pool, step_tokens=STEP)
    tokens = [i % 3 for i in range(20)]
    cache.take(tokens, 19)
    for end in range(BLOCK, 21, BLOCK):
        cache.advance(tokens, end)
        cache.snapshot(tokens[:end], rolling=end > BLOCK)
        other = SequenceCache(pool, step_tokens=STEP)
        assert other.match([*tokens[: end + 1], 9], end) == end
        assert pool.stats.n_snapshots == (1 if end == BLOCK else 2)
    assert cache.match(tokens, 7) == BLOCK  # the first one is kept


def test_without_rows_and_states_nothing_matches() -> None:
    pool = make_pool(NOTHING, 2, 0)
    cache = SequenceCache(pool, step_tokens=STEP)
    assert cache.take([1] * 9, 8) == 0
    cache.advance([1] * 9, 9)
    assert SequenceCache(pool, step_tokens=STEP).match([1] * 9, 8) == 0
    assert (cache.tables, cache.state) == ([], None)


# Everything at once


class Sequence:
    """A sequence as the model sees it: its tokens and those of them that are computed."""

    def __init__(self, pool: CachePool, salt: bytes) -> None:
        self.cache = SequenceCache(pool, step_tokens=STEP, salt=salt)
        self.salt = salt
        self.tokens: list[int] = []
        self.n_computed = 0
        self.is_running = False


class CacheMachine(RuleBasedStateMachine):
    """A model of the contents of every slot and state: a sequence must always find its own tokens there."""

    layout = MIXED
    n_steps = 0
    sequences = Bundle("sequences")

    @initialize(n_blocks=st.integers(8, 14), n_states=st.integers(3, 8), budget=st.floats(0.6, 1.0), reuse=REUSE)
    def start(self, n_blocks: int, n_states: int, budget: float, reuse: str) -> None:
        layout = self.layout
        whole = (n_blocks - 1) * layout.all_block_bytes
        whole += (n_states - 1) * layout.state_bytes * layout.has_state
        self.pool = make_pool(layout, n_blocks, n_states, int(budget * whole), reuse)
        self.budget = int(budget * whole)
        self.slots: dict[tuple[int, int], tuple[bytes, tuple[int, ...]]] = {}
        self.states: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        self.live: list[Sequence] = []

    def make_edits(self) -> None:
        for edit in self.pool.take_edits():
            if edit.group is None:
                assert edit.kind == "discard" or edit.target != 0
                content = None if edit.source == 0 else self.states.get(edit.source)
                target = edit.source if edit.kind == "discard" else edit.target
                self.states.pop(target, None)
                if edit.kind == "copy":
                    assert edit.source == 0 or content is not None
                    self.states[target] = content or (b"", ())
                continue
            target = edit.source if edit.kind == "discard" else edit.target
            for offset in range(BLOCK):
                found = self.slots.get((edit.group, edit.source * BLOCK + offset))
                self.slots.pop((edit.group, target * BLOCK + offset), None)
                if edit.kind == "copy" and found is not None:
                    self.slots[edit.group, target * BLOCK + offset] = found

    def step(self, sequence: Sequence) -> bool:
        """Compute some pending tokens as a step would; False when the pool is too full."""
        begin = sequence.n_computed
        end = min(begin + STEP, len(sequence.tokens))
        fits = sequence.cache.has_room_to_write(begin, end)
        try:
            sequence.cache.prepare(begin, end)
        except CapacityError:
            assert not fits
            self.make_edits()
            return False
        assert fits
        self.make_edits()
        for position in range(begin, end):
            seen = (sequence.salt, tuple(sequence.tokens[: position + 1]))
            for group, table in enumerate(sequence.cache.tables):
                assert table[position // BLOCK] != 0
                self.slots[group, table[position // BLOCK] * BLOCK + position % BLOCK] = seen
        if self.layout.has_state:
            assert sequence.cache.state is not None
            salt, tokens = self.states[sequence.cache.state]
            assert list(tokens) == sequence.tokens[:begin]
            assert salt == sequence.salt or not tokens
            self.states[sequence.cache.state] = (sequence.salt, tuple(sequence.tokens[:end]))
        sequence.n_computed = end
        sequence.cache.advance(sequence.tokens, end)
        return True

    def compute(self, sequence: Sequence, snapshots: bool = False) -> None:
        while sequence.n_computed < len(sequence.tokens) and self.step(sequence):
            if snapshots and sequence.n_computed % BLOCK == 0:
                sequence.cache.snapshot(sequence.tokens[: sequence.n_computed], rolling=sequence.n_computed % 8 != 0)

    def resume(self, sequence: Sequence, snapshots: bool) -> None:
        limit = max(0, len(sequence.tokens) - 1)
        matched = sequence.cache.match(sequence.tokens, limit)
        taken = sequence.cache.take(sequence.tokens, limit)
        if taken is None:
            return
        assert taken == matched <= limit
        sequence.is_running, sequence.n_computed = True, taken
        self.compute(sequence, snapshots)

    @rule(
        target=sequences,
        salt=st.sampled_from([b"", b"", b"t"]),
        tokens=st.lists(st.integers(0, 1), max_size=17),
        snapshots=st.booleans(),
    )
    def admit(self, salt: bytes, tokens: list[int], snapshots: bool) -> Sequence:
        sequence = Sequence(self.pool, salt)
        sequence.tokens = tokens
        self.live.append(sequence)
        self.resume(sequence, snapshots)
        return sequence

    @rule(sequence=sequences, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6), snapshots=st.booleans())
    def append(self, sequence: Sequence, tokens: list[int], snapshots: bool) -> None:
        sequence.tokens = sequence.tokens + tokens
        if sequence.is_running:
            self.compute(sequence, snapshots)
        else:
            self.resume(sequence, snapshots)

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence):  # type: ignore[no-untyped-def]
        if not sequence.is_running or not sequence.cache.can_fork:
            return multiple()
        copy = Sequence(self.pool, sequence.salt)
        copy.cache = sequence.cache.fork()
        copy.tokens, copy.n_computed, copy.is_running = list(sequence.tokens), sequence.n_computed, True
        self.live.append(copy)
        return copy

    @rule(sequence=sequences)
    def preempt(self, sequence: Sequence) -> None:
        sequence.cache.release()
        sequence.is_running, sequence.n_computed = False, 0

    @rule(target=sequences, sequence=consumes(sequences))
    def finish_or_abort(self, sequence: Sequence):  # type: ignore[no-untyped-def]
        self.live.remove(sequence)
        sequence.cache.release()
        return multiple()

    @rule(group=st.integers(0, 2), n=st.integers(1, 4))
    def evict(self, group: int, n: int) -> None:
        """Outside work takes blocks of one group for a moment and scribbles over them."""
        pools = [*self.pool.groups, *([self.pool.states] if self.layout.has_state else [])]
        pool = pools[group % len(pools)]
        taken = []
        for _ in range(n):
            try:
                taken.append(pool.allocate())
            except CapacityError:
                break
        self.make_edits()
        for block in taken:
            if pool is pools[-1] and self.layout.has_state:
                self.states.pop(block, None)
            else:
                for offset in range(BLOCK):
                    self.slots.pop((group % len(pools), block * BLOCK + offset), None)
            pool.release(block)

    @invariant()
    def every_sequence_finds_its_own_tokens(self) -> None:
        self.make_edits()
        for sequence in self.live:
            for group, table in enumerate(sequence.cache.tables):
                for position in range(self.layout.first_seen(group, sequence.n_computed), sequence.n_computed):
                    expected = (sequence.salt, tuple(sequence.tokens[: position + 1]))
                    assert self.slots[group, table[position // BLOCK] * BLOCK + position % BLOCK] == expected
            if self.layout.has_state and sequence.is_running:
                assert list(self.states[sequence.cache.state or 0][1]) == sequence.tokens[: sequence.n_computed]

    @invariant()
    def accounts_agree(self) -> None:
        CacheMachine.n_steps += 1
        self.pool.check()
        held_bytes = 0
        for group, pool in enumerate(self.pool.groups):
            held = [block for sequence in self.live for block in sequence.cache.tables[group] if block != 0]
            for block in range(1, pool.n_blocks):
                assert pool.n_references(block) == held.count(block)
            held_bytes += len(set(held)) * self.layout.block_bytes(group)
        held_bytes += sum(sequence.cache.state is not None for sequence in self.live) * self.layout.state_bytes
        assert self.pool.held_bytes == held_bytes
        assert held_bytes <= self.pool.filled_bytes <= self.budget

    def teardown(self) -> None:
        for sequence in self.live:
            sequence.cache.release()
        self.pool.check()
        assert self.pool.held_bytes == 0


# The cache of source texts is in test_scheduler.py, as only a scheduler encodes them.
@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.source_group is None])
def test_cache_machine(name: str) -> None:
    CacheMachine.n_steps = 0
    machine = type("Machine", (CacheMachine,), {"layout": LAYOUTS[name]})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
    )
    assert CacheMachine.n_steps >= 400
