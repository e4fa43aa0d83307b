"""The accounting of what layers keep between steps: sizes, blocks, states, prefixes.  No memory of the cache itself."""

from collections.abc import Sequence

from quire._native.graph import CacheSpec

class CacheGroup:
    """Layers whose rows are kept equally long, and which therefore share block tables."""

    @property
    def window(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def of_source(self) -> bool: ...
    @property
    def bidirectional_media(self) -> bool: ...
    @property
    def layers(self) -> list[int]: ...
    @property
    def block_bytes(self) -> int:
        """The bytes of one block: K and V of all layers in the group."""

class CacheLayout:
    """The data that all layers keep between steps, with the types of K and V.

    Args:
        dtype: f32, f16, bf16, q8_0, q5_1 or q4_0, or two types for K and V like q8_0/q4_0.  Here ``q8_0`` has 8 bits
            with a scale per token and head.

    Raises:
        ShapeError: A size is not positive, or heads of q5_1 or q4_0 are not divisible by 32.
        UnsupportedError: The types cannot be combined.
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
        """The bytes of one block in every group."""
    @property
    def state_bytes(self) -> int:
        """The bytes of one sequence's recurrent state."""
    def k_block_bytes(self, layer: int) -> int: ...
    def v_block_bytes(self, layer: int) -> int: ...

class BlockPool:
    """The blocks of the cache and the references to them.

    Blocks are numbered from 1.  Block 0 is the null block, which is never allocated and which padding writes to;
    ``n_blocks`` includes it.  A freed block keeps its contents and hash until it is allocated again.  Blocks without a
    hash are reused first, then published ones: the least recently freed one, or with ``reuse="by_address"`` the next
    higher one in the less recently freed half.
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
        """The number of blocks without references, including those that can still be found."""
    @property
    def n_referenced(self) -> int: ...
    @property
    def n_published(self) -> int:
        """The number of blocks that can be found by their hash."""
    @property
    def n_evictions(self) -> int:
        """The number of published blocks that were allocated for other contents so far."""
    @property
    def free_blocks(self) -> list[int]:
        """The free blocks in the order in which they will be allocated."""
    def allocate(self) -> int:
        """Return a block with undefined contents and one reference.  Raises CapacityError if none is free."""
    def retain(self, block: int) -> None:
        """Add a reference, even to a free block."""
    def release(self, block: int) -> None:
        """Drop a reference.  Raises InternalError if there is none."""
    def n_references(self, block: int) -> int: ...
    def publish(self, block: int, hash: bytes) -> bool:
        """Make a full block findable by its hash; return False if the hash already names another block."""
    def unpublish(self, block: int) -> None:
        """Make a block unfindable because its contents are about to change."""
    def find(self, hash: bytes) -> int | None: ...
    def hash(self, block: int) -> bytes | None: ...
    def forget_published(self) -> None:
        """Make all blocks unfindable."""
    def check(self) -> None:
        """Verify every invariant; InternalError names the one that broke."""

class BlockTable:
    """The blocks of one sequence of tokens, in order of position; the destructor releases them.

    ``adapter``, ``media`` and ``salt`` are part of the hashes, so only tables with equal ones share blocks.
    """

    def __init__(self, pool: BlockPool, *, adapter: bytes = b"", media: bytes = b"", salt: bytes = b"") -> None: ...
    @property
    def pool(self) -> BlockPool: ...
    @property
    def blocks(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def slot(self, position: int) -> int:
        """Return ``block * block_tokens + offset``.  Raises ShapeError beyond the table."""
    def match_prefix(self, token_ids: Sequence[int], max_tokens: int | None = None) -> int:
        """Share the longest published prefix, in whole blocks; return its tokens.  The table must be empty."""
    def blocks_needed(self, begin: int, end: int) -> int:
        """Return the free blocks needed to write positions ``begin`` to ``end - 1`` (+1 if the first is shared)."""
    def reserve(self, n_tokens: int) -> None:
        """Grow to ``n_tokens`` positions.  If the pool has too few blocks, raises CapacityError and changes nothing."""
    def ensure_writable(self, position: int) -> tuple[int, int] | None:
        """Make the block of a position private; return (from, to) if its contents must be copied."""
    def publish(self, token_ids: Sequence[int]) -> None:
        """Make the full blocks of these computed tokens, from position 0, findable."""
    def fork(self) -> BlockTable:
        """Return another table of the same blocks, including a partial last one."""
    def release(self) -> None:
        """Release all blocks, the last one first."""

class CacheBytes:
    """Bytes in use: ``held`` by running sequences, or ``cached``: free, but still findable until they are needed."""

    @property
    def held(self) -> int: ...
    @property
    def cached(self) -> int: ...

class CacheStats:
    """The use of a pool's bytes."""

    @property
    def budget_bytes(self) -> int: ...
    @property
    def groups(self) -> list[CacheBytes]: ...
    @property
    def states(self) -> CacheBytes: ...
    @property
    def n_snapshots(self) -> int: ...
