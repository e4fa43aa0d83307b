"""The block pool and block tables.  Oracle: a model of dictionaries that keeps what was written where."""

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
from quire._native.kv import BlockPool, BlockTable
from quire._native.testing import block_hash
from quire.errors import CapacityError, InternalError, ShapeError


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(4, 2)
    assert (pool.n_blocks, pool.n_usable, pool.n_free) == (4, 3, 3)
    assert sorted(pool.allocate() for _ in range(3)) == [1, 2, 3]
    with pytest.raises(CapacityError, match="all 3 are in use"):
        pool.allocate()
    for block in (0, -1, 4):
        with pytest.raises(ShapeError, match="1 to 3"):
            pool.retain(block)


def test_a_pool_needs_blocks() -> None:
    for n_blocks in (-1, 0, 1):
        with pytest.raises(CapacityError):
            BlockPool(n_blocks)
    with pytest.raises(ShapeError):
        BlockPool(4, 0)


def test_freed_blocks_keep_their_contents_until_reused_tails_first() -> None:
    pool = BlockPool(6, 2)
    tokens = [1, 2, 3, 4, 5, 6]
    table = BlockTable(pool)
    table.reserve(6)
    head, middle, tail = table.blocks
    table.publish(tokens)
    table.release()
    assert (pool.n_free, pool.n_published) == (5, 3)
    assert pool.free_blocks[-3:] == [tail, middle, head]
    unused = [pool.allocate(), pool.allocate()]
    assert not set(unused) & {head, middle, tail}
    assert pool.allocate() == tail
    assert (pool.n_published, pool.n_evictions) == (2, 1)
    again = BlockTable(pool)
    assert again.match_prefix(tokens) == 4
    assert again.blocks == [head, middle]


def test_a_hit_makes_a_block_recently_used() -> None:
    pool = BlockPool(3, 1)
    first, second = BlockTable(pool), BlockTable(pool)
    for table, tokens in ((first, [1]), (second, [2])):
        table.reserve(1)
        table.publish(tokens)
        table.release()
    hit = BlockTable(pool)
    assert hit.match_prefix([1]) == 1
    hit.release()
    pool.allocate()  # evicts 2, although it was freed later at first
    assert BlockTable(pool).match_prefix([2]) == 0
    assert BlockTable(pool).match_prefix([1]) == 1


def test_only_equal_salts_adapters_and_media_share() -> None:
    pool = BlockPool(8, 2)
    table = BlockTable(pool, salt=b"a", adapter=b"x", media=b"m")
    table.reserve(2)
    table.publish([1, 2])
    assert BlockTable(pool, salt=b"a", adapter=b"x", media=b"m").match_prefix([1, 2, 3]) == 2
    assert BlockTable(pool, salt=b"b", adapter=b"x", media=b"m").match_prefix([1, 2, 3]) == 0
    assert BlockTable(pool, salt=b"a", adapter=b"y", media=b"m").match_prefix([1, 2, 3]) == 0
    assert BlockTable(pool, salt=b"a", adapter=b"x").match_prefix([1, 2, 3]) == 0


def test_a_prefix_hit_may_be_limited() -> None:
    pool = BlockPool(8, 2)
    table = BlockTable(pool)
    table.reserve(4)
    table.publish([1, 2, 3, 4])
    assert BlockTable(pool).match_prefix([1, 2, 3, 4], max_tokens=3) == 2


def test_blocks_after_a_hit_are_published() -> None:
    pool = BlockPool(8, 2)
    table = BlockTable(pool)
    table.reserve(2)
    table.publish([1, 2])
    longer = BlockTable(pool)
    assert longer.match_prefix([1, 2, 3, 4]) == 2
    longer.reserve(4)
    longer.publish([1, 2, 3, 4])
    assert BlockTable(pool).match_prefix([1, 2, 3, 4]) == 4


def test_equal_blocks_computed_at_once_stay_private() -> None:
    pool = BlockPool(8, 2)
    tables = [BlockTable(pool), BlockTable(pool)]
    for table in tables:
        table.reserve(5)
    for table in tables:
        table.publish([1, 2, 3, 4, 5])
    assert pool.n_published == 2
    shared = BlockTable(pool)
    assert shared.match_prefix([1, 2, 3, 4]) == 4
    assert shared.blocks == tables[0].blocks[:2]
    copies = tables[1].blocks[:2]
    tables[1].release()
    assert set(pool.free_blocks[:2]) <= {*copies, tables[0].blocks[2]} | set(pool.free_blocks[:3])
    assert set(copies) < set(pool.free_blocks[:3])  # nothing in them is worth keeping
    pool.check()


def test_writing_a_shared_block_copies_it_first() -> None:
    pool = BlockPool(5, 4)
    table = BlockTable(pool)
    table.reserve(6)
    fork = table.fork()
    old = table.blocks[1]
    assert fork.blocks == table.blocks
    assert fork.blocks_needed(6, 7) == 1
    copy = fork.ensure_writable(6)
    assert copy == (old, fork.blocks[1])
    assert fork.blocks[1] != old
    assert fork.blocks[0] == table.blocks[0]
    assert table.ensure_writable(6) is None  # the only reference now
    assert table.slot(6) == old * 4 + 2
    with pytest.raises(ShapeError, match="position 8 is out of range: expected 0 to 7"):
        table.slot(8)


def test_a_refused_reservation_changes_nothing() -> None:
    pool = BlockPool(4, 4)
    table = BlockTable(pool)
    table.reserve(4)
    fork = table.fork()
    with pytest.raises(CapacityError, match="2 free blocks: expected 3"):
        table.reserve(16)
    assert table.blocks == fork.blocks
    table.reserve(12)
    before = fork.blocks
    with pytest.raises(CapacityError):
        fork.ensure_writable(3)
    assert fork.blocks == before
    pool.check()


def test_writing_a_published_block_hides_it() -> None:
    pool = BlockPool(4, 2)
    table = BlockTable(pool)
    table.reserve(2)
    table.publish([1, 2])
    assert table.ensure_writable(1) is None
    assert BlockTable(pool).match_prefix([1, 2]) == 0
    table.publish([1, 3])
    assert BlockTable(pool).match_prefix([1, 3]) == 2
    pool.check()


def test_misuse_is_a_typed_error_and_no_crash() -> None:
    pool = BlockPool(4, 2)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(InternalError, match="already free"):
        pool.release(block)
    with pytest.raises(InternalError):
        pool.publish(block, block_hash([1]))
    table = BlockTable(pool)
    table.reserve(2)
    with pytest.raises(InternalError, match="cannot take a prefix"):
        table.match_prefix([1, 2])
    with pytest.raises(InternalError, match="cannot publish 2 blocks"):
        table.publish([1, 2, 3, 4])
    pool.release(table.blocks[0])
    del table
    pool.check()


def test_forgetting_keeps_the_blocks() -> None:
    pool = BlockPool(4, 2)
    table = BlockTable(pool)
    table.reserve(2)
    table.publish([1, 2])
    pool.forget_published()
    assert pool.n_published == 0
    assert pool.n_references(table.blocks[0]) == 1
    assert pool.find(block_hash([1, 2])) is None
    pool.check()


BLOCK = 3
N_BLOCKS = 7


class Sequence:
    """A sequence as the model sees it: its tokens and those of them that are computed."""

    def __init__(self, pool: BlockPool, salt: bytes) -> None:
        self.table = BlockTable(pool, salt=salt)
        self.salt = salt
        self.tokens: list[int] = []
        self.n_computed = 0


class PoolMachine(RuleBasedStateMachine):
    """Every slot's contents are modelled: a sequence must always read its own tokens back through its table."""

    n_steps = 0

    sequences = Bundle("sequences")

    @initialize(reuse=st.sampled_from(["by_age", "by_address"]))
    def start(self, reuse: str) -> None:
        self.pool = BlockPool(N_BLOCKS, BLOCK, reuse=reuse)
        self.store: dict[int, tuple[bytes, tuple[int, ...]]] = {}  # slot -> salt, tokens up to and with this one
        self.live: list[Sequence] = []

    def compute(self, sequence: Sequence) -> bool:
        """Write all pending tokens as a step would; False exactly when the pool is too full."""
        begin, end = sequence.n_computed, len(sequence.tokens)
        if begin == end:
            return True
        fits = sequence.table.blocks_needed(begin, end) <= self.pool.n_free
        try:
            if begin < len(sequence.table) * BLOCK and (copy := sequence.table.ensure_writable(begin)):
                for offset in range(BLOCK):
                    if copy[0] * BLOCK + offset in self.store:
                        self.store[copy[1] * BLOCK + offset] = self.store[copy[0] * BLOCK + offset]
            sequence.table.reserve(end)
        except CapacityError:
            assert not fits
            return False
        assert fits
        for position in range(begin, end):
            slot = sequence.table.slot(position)
            self.store[slot] = (sequence.salt, tuple(sequence.tokens[: position + 1]))
        sequence.n_computed = end
        sequence.table.publish(sequence.tokens)
        return True

    def resume(self, sequence: Sequence) -> None:
        limit = max(0, len(sequence.tokens) - 1)
        before = self.pool.n_published
        sequence.n_computed = sequence.table.match_prefix(sequence.tokens, limit)
        assert sequence.n_computed <= limit
        assert self.pool.n_published == before
        self.compute(sequence)

    @rule(target=sequences, salt=st.sampled_from([b"", b"t"]), tokens=st.lists(st.integers(0, 1), max_size=9))
    def allocate_or_share_prefix(self, salt: bytes, tokens: list[int]) -> Sequence:
        sequence = Sequence(self.pool, salt)
        sequence.tokens = tokens
        self.live.append(sequence)
        self.resume(sequence)
        return sequence

    @rule(sequence=sequences, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def append(self, sequence: Sequence, tokens: list[int]) -> None:
        if len(sequence.tokens) + len(tokens) <= (N_BLOCKS - 1) * BLOCK:
            sequence.tokens += tokens
            self.compute(sequence)

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence) -> Sequence:
        copy = Sequence(self.pool, sequence.salt)
        copy.table = sequence.table.fork()
        copy.tokens, copy.n_computed = list(sequence.tokens), sequence.n_computed
        self.live.append(copy)
        return copy

    @rule(sequence=sequences)
    def preempt(self, sequence: Sequence) -> None:
        sequence.table.release()
        sequence.n_computed = 0

    @rule(sequence=sequences)
    def preempt_and_resume(self, sequence: Sequence) -> None:
        self.preempt(sequence)
        self.resume(sequence)

    @rule(target=sequences, sequence=consumes(sequences))
    def finish_or_abort(self, sequence: Sequence):  # type: ignore[no-untyped-def]
        self.live.remove(sequence)
        sequence.table.release()
        return multiple()

    @rule(n=st.integers(1, 4))
    def evict(self, n: int) -> None:
        """Outside work takes blocks for a moment and scribbles over them."""
        taken = [self.pool.allocate() for _ in range(min(n, self.pool.n_free))]
        for block in taken:
            for offset in range(BLOCK):
                self.store.pop(block * BLOCK + offset, None)
            self.pool.release(block)

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for sequence in self.live:
            for position in range(sequence.n_computed):
                expected = (sequence.salt, tuple(sequence.tokens[: position + 1]))
                assert self.store[sequence.table.slot(position)] == expected

    @invariant()
    def accounts_agree(self) -> None:
        PoolMachine.n_steps += 1
        self.pool.check()
        held = [block for sequence in self.live for block in sequence.table.blocks]
        for block in range(1, N_BLOCKS):
            assert self.pool.n_references(block) == held.count(block)
        free = self.pool.free_blocks
        assert sorted([*free, *set(held)]) == list(range(1, N_BLOCKS))
        published = [block for block in range(1, N_BLOCKS) if self.pool.hash(block) is not None]
        assert len(published) == self.pool.n_published
        for block in published:
            assert self.pool.find(self.pool.hash(block) or b"") == block
            salt, tokens = self.store[block * BLOCK + BLOCK - 1]
            parent = None
            for begin in range(0, len(tokens), BLOCK):
                parent = block_hash(list(tokens[begin : begin + BLOCK]), parent=parent, salt=salt)
            assert self.pool.hash(block) == parent  # the name tells what is inside

    def teardown(self) -> None:
        for sequence in self.live:
            sequence.table.release()
        self.pool.check()
        assert self.pool.n_free == N_BLOCKS - 1


def test_pool_machine() -> None:
    PoolMachine.n_steps = 0
    run_state_machine_as_test(
        PoolMachine, settings=settings(max_examples=120, stateful_step_count=60, deadline=None, derandomize=True)
    )
    assert PoolMachine.n_steps >= 2000
