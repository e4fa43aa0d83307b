"""The paged KV cache's accounting: sizes, blocks, prefixes.  No memory of the cache itself."""

from collections.abc import Sequence

from quire._native.core import DType

def blake2b(data: bytes, *, digest_size: int = 64, person: bytes = b"") -> bytes:
    """BLAKE2b (RFC 7693) without a key, as ``hashlib.blake2b``; the hash behind ``block_hash``."""

def block_hash(
    token_ids: Sequence[int],
    *,
    parent: bytes | None = None,
    adapter: bytes = b"",
    media: bytes = b"",
    salt: bytes = b"",
) -> bytes:
    """The 32-byte name of a full block of tokens.

    BLAKE2b-256, personal ``quire.kv.block.1``, over parent, tokens (32 bits each), adapter, media and salt, each
    preceded by its length in bytes (64 bits), all little-endian.
    """

class KvLayer:
    """What one layer keeps per token: ``n_kv_head`` heads of ``head_dim`` for K and ``v_head_dim`` for V."""

    def __init__(
        self, n_kv_head: int, head_dim: int, v_head_dim: int | None = None, window: int | None = None
    ) -> None: ...
    @property
    def n_kv_head(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def window(self) -> int | None:
        """The last tokens that are attended to; None: all of them."""

class KvSpec:
    """Sizes of a model's cache.

    Per layer the pool has one array of K and one of V, ``[n_blocks, n_kv_head]`` of the tokens of a block, and of
    scales for ``q8_0``, which is 8 bits with a scale per token and head here.  Raises ShapeError for sizes that are
    not positive.
    """

    def __init__(self, dtype: DType | str, layers: Sequence[KvLayer], block_tokens: int = 32) -> None: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def layers(self) -> list[KvLayer]: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def block_bytes(self) -> int:
        """Bytes of one block, K and V of all layers."""
    @property
    def token_bytes(self) -> int:
        """Bytes of one token, K and V of all layers."""
    def k_block_bytes(self, layer: int) -> int: ...
    def v_block_bytes(self, layer: int) -> int: ...
    def pool_bytes(self, n_blocks: int) -> int:
        """Bytes of a pool; CapacityError when that is no size."""
    def blocks_for_tokens(self, n_tokens: int) -> int: ...
    def blocks_in_bytes(self, size_bytes: int) -> int: ...

class BlockPool:
    """Which blocks of the cache are whose.

    Blocks are numbered from 1; block 0 is the null block, which is never handed out and which padding writes to.
    A freed block keeps its contents and hash until it is handed out again: blocks without a hash first, then published
    ones, least recently freed first.  ``n_blocks`` counts the null block.
    """

    def __init__(self, n_blocks: int, block_tokens: int = 32) -> None: ...
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
