"""The accounting of what layers keep between steps: sizes, blocks, states, prefixes.  No memory of the cache itself."""

from collections.abc import Sequence

from quire._native.graph import CacheSpec

class CacheGroup:
    """Layers whose rows live equally long; they share block tables."""

    @property
    def window(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def of_source(self) -> bool: ...
    @property
    def layers(self) -> list[int]: ...
    @property
    def block_bytes(self) -> int:
        """Bytes of one block, K and V of the group's layers."""

class CacheLayout:
    """What all layers keep, with the types of K and V: one of f32, f16, bf16, q8_0, q5_1, q4_0, or two as in q8_0/q4_0.

    Raises ShapeError for sizes that are not positive or, of q5_1 and q4_0, heads that do not divide by 32, and
    UnsupportedError for types that do not go together.  ``q8_0`` is 8 bits with a scale per token and head here.
    """

    def __init__(self, layers: Sequence[CacheSpec], dtype: str, block_tokens: int = 32) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def groups(self) -> list[CacheGroup]: ...
    @property
    def block_bytes(self) -> int:
        """Bytes of one block in every group."""
    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's recurrent state."""
    def k_block_bytes(self, layer: int) -> int: ...
    def v_block_bytes(self, layer: int) -> int: ...

class BlockPool:
    """Which blocks of the cache are whose.

    Blocks are numbered from 1; block 0 is the null block, which is never handed out and which padding writes to.
    A freed block keeps its contents and hash until it is handed out again: blocks without a hash first, then published
    ones, least recently freed first or, with ``reuse="by_address"``, of the less recently freed half the next one above
    the last that went so.  ``n_blocks`` counts the null block.
    """

    def __init__(self, n_blocks: int, block_tokens: int = 32, *, reuse: str = "by_age") -> None: ...
    @property
    def n_blocks(self) -> int: ...
    @property
    def n_usable(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def n_free(self) -> int:
        """Blocks that nobody refers to, those that can still be found included."""
    @property
    def n_referenced(self) -> int: ...
    @property
    def n_published(self) -> int:
        """Blocks that can be found by their hash."""
    @property
    def n_evictions(self) -> int:
        """Published blocks that were handed out for other contents, since the beginning."""
    @property
    def free_blocks(self) -> list[int]:
        """In the order in which they will be handed out."""
    def allocate(self) -> int:
        """A block of undefined contents with one reference; CapacityError when none is free."""
    def retain(self, block: int) -> None:
        """One more reference, also to a free block."""
    def release(self, block: int) -> None:
        """One reference less; InternalError when there is none."""
    def n_references(self, block: int) -> int: ...
    def publish(self, block: int, hash: bytes) -> bool:
        """Make a full block findable; False when the hash names another block, which then stays the one found."""
    def unpublish(self, block: int) -> None:
        """The block's contents are about to change."""
    def find(self, hash: bytes) -> int | None: ...
    def hash(self, block: int) -> bytes | None: ...
    def forget_published(self) -> None:
        """No block can be found any more."""
    def check(self) -> None:
        """Verify every invariant; InternalError names the one that broke."""

class BlockTable:
    """The blocks of one sequence of tokens, in order of position; releases them when it goes away.

    ``adapter``, ``media`` and ``salt`` enter the hashes: only tables that agree in them share blocks.
    """

    def __init__(self, pool: BlockPool, *, adapter: bytes = b"", media: bytes = b"", salt: bytes = b"") -> None: ...
    @property
    def pool(self) -> BlockPool: ...
    @property
    def blocks(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def slot(self, position: int) -> int:
        """``block * block_tokens + offset``; ShapeError beyond the table."""
    def match_prefix(self, token_ids: Sequence[int], max_tokens: int | None = None) -> int:
        """Share the longest published prefix, in whole blocks; returns its tokens.  The table must be empty."""
    def blocks_needed(self, begin: int, end: int) -> int:
        """Free blocks that writing positions ``begin`` to ``end - 1`` takes, a copy of a shared first one included."""
    def reserve(self, n_tokens: int) -> None:
        """Have blocks for ``n_tokens`` positions in all; CapacityError, and no change, when the pool has too few."""
    def ensure_writable(self, position: int) -> tuple[int, int] | None:
        """Make the block of a position private.  (from, to) when its contents must be copied."""
    def publish(self, token_ids: Sequence[int]) -> None:
        """These tokens, from position 0, are computed: their full blocks can be found from now on."""
    def fork(self) -> BlockTable:
        """Another table of the same blocks, a partial last one too."""
    def release(self) -> None:
        """Give all blocks back, the last one first."""

class CacheBytes:
    """Bytes of one kind: ``held`` by running sequences, and ``cached``: free, and found again until they are needed."""

    @property
    def held(self) -> int: ...
    @property
    def cached(self) -> int: ...

class CacheStats:
    """What a pool's bytes are used for."""

    @property
    def budget_bytes(self) -> int: ...
    @property
    def groups(self) -> list[CacheBytes]: ...
    @property
    def states(self) -> CacheBytes: ...
    @property
    def n_snapshots(self) -> int: ...
