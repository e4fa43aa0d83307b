"""Choose the sizes that the options leave open, from the model's needs and the available memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import CapacityError
from ...params.engine_options import EngineConfig

__all__ = [
    "BLOCK_TOKENS",
    "MOST_SEQUENCES",
    "GroupNeeds",
    "ModelNeeds",
    "Sizes",
    "check_weights",
    "choose_sizes",
    "limited_states",
]

BLOCK_TOKENS = 32
# Fractions of the memory that the weights leave; the rest is for everything else on the machine.
_CACHE_PART, _STEP_PART, _STATE_PART = 2, 8, 4
MOST_SEQUENCES, _TOKENS_OF_A_SEQUENCE, _LEAST_TOKENS_OF_A_SEQUENCE = 32, 1024, 256
_MOST_STEP_TOKENS, _LEAST_STEP_TOKENS = 512, 32
_LEAST_N_CTX = 512
_MOST_UNDIVIDED_TOKENS = 32768


@dataclass(frozen=True)
class Sizes:
    """The sizes of an engine; see ``EngineConfig``.

    ``n_blocks`` includes the null block, ``n_states`` the zero state (0 if no layer has states).  ``cache_bytes``: the
    budget of all blocks together, if that is less than ``n_blocks`` of every group; else 0.
    """

    n_ctx: int
    n_blocks: int
    max_sequences: int
    max_step_tokens: int
    n_states: int = 0
    cache_bytes: int = 0


@dataclass(frozen=True)
class GroupNeeds:
    """Layers that see only the last ``reach`` tokens, and the bytes of a block in all of them."""

    block_bytes: int
    reach: int

    def blocks(self, n_tokens: int, step_tokens: int) -> int:
        """Return the most blocks that a sequence holds with steps of ``step_tokens``, counted as ``CachePool`` does."""
        span = (self.reach - 1) + (BLOCK_TOKENS - 1) + step_tokens
        return min(_blocks_of(n_tokens), (span + BLOCK_TOKENS - 2) // BLOCK_TOKENS + 1)


@dataclass(frozen=True)
class ModelNeeds:
    """The memory that a model needs, in bytes.

    - ``weights_bytes``; ``block_bytes``: a block of its cache in all layers; ``state_bytes``: a sequence's recurrent
      states; ``token_bytes``: each token of a step.
    - ``limited``: the groups of layers with a window or chunks.
    - ``fixed_bytes``: its vocabulary and the rows of logits, which do not depend on the sizes.
    - ``media_bytes``: encoders of images and sounds.
    - ``adapter_bytes``: on a device, adapters that requests choose from, beside its weights.
    - ``paged``: a larger cache costs nothing until it is used.  Otherwise every graph is planned for the whole cache.
    - ``on_device``: a part on a device, whose graphs read only the used part of a cache.
    - ``n_ctx_advised``: the length limit of an embedding model.
    - ``undivided``: an encoder, which computes a prompt in one step and caches nothing.
    - ``reads_source``: an encoder reads the prompt, in one step that also has a row of the answer.
    - ``n_source``: rows of the sound that the encoder reads in place of a prompt; 0: it reads text.
    """

    name: str
    n_ctx_train: int
    weights_bytes: int
    block_bytes: int
    token_bytes: int
    paged: bool = True
    on_device: bool = False
    state_bytes: int = 0
    undivided: bool = False
    reads_source: bool = False
    n_source: int = 0
    fixed_bytes: int = 0
    media_bytes: int = 0
    adapter_bytes: int = 0
    n_ctx_advised: int | None = None
    limited: tuple[GroupNeeds, ...] = ()

    @property
    def n_ctx_usual(self) -> int:
        return min(self.n_ctx_train, self.n_ctx_advised or self.n_ctx_train)

    def context_bytes(self, n_tokens: int, step_tokens: int) -> int:
        """Return the bytes of the blocks of a sequence of ``n_tokens``."""
        limited = self.limited if self.paged else ()
        everywhere = self.block_bytes - sum(group.block_bytes for group in limited)
        return _blocks_of(n_tokens) * everywhere + sum(
            group.blocks(n_tokens, step_tokens) * group.block_bytes for group in limited
        )


def choose_sizes(needs: ModelNeeds, config: EngineConfig, available_bytes: int) -> Sizes:
    """Return the sizes that ``config`` gives, with the others chosen to fit into ``available_bytes``.

    Recurrent states take at most a quarter of the memory that the weights leave: one for each sequence, and a snapshot
    for the next sequence with the same beginning.  The cache takes at most half of the rest: one context as long as in
    training if there is room (only the windows of layers that have one), and 1024 tokens for each of 32 sequences.
    CapacityError if the weights or the requested sizes do not fit.
    """
    if needs.n_source > needs.n_ctx_train:
        # A text of this length needs as much for its source, and for its answer more than a transcript.
        texts = replace(needs, n_ctx_train=needs.n_source, n_source=0)
        sizes = choose_sizes(texts, replace(config, n_ctx=needs.n_source), available_bytes)
        return replace(sizes, n_ctx=min(config.n_ctx or needs.n_ctx_train, needs.n_ctx_train))
    check_weights(needs.name, needs.weights_bytes, available_bytes)
    fixed_bytes = needs.fixed_bytes + needs.media_bytes
    left = available_bytes - needs.weights_bytes - fixed_bytes
    if left <= 0:
        parts = "vocabulary and encoders" if needs.media_bytes else "vocabulary"
        raise CapacityError(
            f"[memory] no room for the {parts} of {needs.name} beside its weights: {_mib(fixed_bytes)} are needed"
        )
    if needs.undivided:
        return _undivided(needs, config, left)
    n_states = _states(needs, config, left)
    left -= n_states * needs.state_bytes
    step_tokens = config.max_step_tokens or _step_tokens(needs, left)
    room = _Room(needs, step_tokens, left // _CACHE_PART, left)
    n_ctx = config.n_ctx or _context(room, config)
    if needs.reads_source:
        n_ctx, step_tokens = _whole_sources(needs, config, n_ctx, step_tokens)
    cache_bytes = _cache_bytes(room, config, n_ctx)
    needed = cache_bytes if config.n_blocks is not None else room.context_bytes(n_ctx)
    if needed + needs.block_bytes > left:
        asked = f"n_blocks {config.n_blocks}" if config.n_blocks is not None else f"n_ctx {n_ctx}"
        raise CapacityError(
            f"[memory] {asked} needs {_mib(needed + needs.block_bytes)}, but {_mib(left)} are left beside the "
            f"weights of {needs.name}"
        )
    n_sequences = min(MOST_SEQUENCES, n_states // 2) if n_states else MOST_SEQUENCES
    if config.n_blocks is None:
        n_sequences = max(1, min(n_sequences, cache_bytes // room.context_bytes(_LEAST_TOKENS_OF_A_SEQUENCE)))
    n_blocks = config.n_blocks or max(_blocks_of(n_ctx), cache_bytes // needs.block_bytes) + 1
    return Sizes(
        n_ctx=n_ctx,
        n_blocks=n_blocks,
        max_sequences=config.max_sequences or n_sequences,
        max_step_tokens=step_tokens,
        n_states=n_states,
        cache_bytes=0 if cache_bytes >= (n_blocks - 1) * needs.block_bytes else cache_bytes,
    )


@dataclass(frozen=True)
class _Room:
    """The memory for the cache: its fair share, and the most that it may take.  Each includes a null block."""

    needs: ModelNeeds
    step_tokens: int
    fair_bytes: int
    most_bytes: int

    def context_bytes(self, n_tokens: int) -> int:
        return self.needs.context_bytes(n_tokens, self.step_tokens)

    @property
    def fair_context(self) -> int:
        """The longest sequence, at most as long as in training, that the fair share holds."""
        low, high = 0, _blocks_of(self.needs.n_ctx_usual)
        while low < high:
            middle = (low + high + 1) // 2
            if self.context_bytes(middle * BLOCK_TOKENS) + self.needs.block_bytes <= self.fair_bytes:
                low = middle
            else:
                high = middle - 1
        return min(low * BLOCK_TOKENS, self.needs.n_ctx_usual)


def _undivided(needs: ModelNeeds, config: EngineConfig, left: int) -> Sizes:
    """Return the sizes of an encoder: a step takes a whole context, and the one block is never used."""
    most = min(_MOST_UNDIVIDED_TOKENS, left // _CACHE_PART // needs.token_bytes)
    n_ctx = config.n_ctx or min(needs.n_ctx_usual, most, config.max_step_tokens or most)
    n_tokens = config.max_step_tokens or max(n_ctx, _step_tokens(needs, left))
    if not 2 <= n_ctx <= most:
        raise CapacityError(
            f"[memory] a step of n_ctx {n_ctx} tokens needs {_mib(n_ctx * needs.token_bytes)}, but {_mib(left)} are "
            f"left beside the weights of {needs.name}"
        )
    if n_ctx > n_tokens:
        raise CapacityError(
            f"[memory] max_step_tokens {n_tokens} is less than n_ctx {n_ctx}: an encoder reads a prompt in one step"
        )
    return Sizes(
        n_ctx=n_ctx, n_blocks=2, max_sequences=config.max_sequences or MOST_SEQUENCES, max_step_tokens=n_tokens
    )


def _whole_sources(needs: ModelNeeds, config: EngineConfig, n_ctx: int, step_tokens: int) -> tuple[int, int]:
    """Return ``n_ctx`` and a step that holds a prompt of this length and a row of the answer."""
    if config.max_step_tokens is None:
        step_tokens = max(step_tokens, min(n_ctx + 1, _MOST_UNDIVIDED_TOKENS))
    if config.n_ctx is None:
        n_ctx = min(n_ctx, step_tokens - 1)
    if not 2 <= n_ctx < step_tokens:
        raise CapacityError(
            f"[memory] max_step_tokens {step_tokens} is too small for n_ctx {n_ctx}: the encoder of {needs.name} needs "
            f"{n_ctx + 1} or more"
        )
    return n_ctx, step_tokens


def check_weights(name: str, n_bytes: int, available_bytes: int) -> None:
    """Check that weights fit into memory.  CapacityError if not."""
    if n_bytes >= available_bytes:
        raise CapacityError(
            f"[memory] the weights of {name} need {_mib(n_bytes)}, but {_mib(available_bytes)} are available"
        )


def _states(needs: ModelNeeds, config: EngineConfig, left: int) -> int:
    if needs.state_bytes == 0:
        return 0
    n_states = 1 + 2 * (config.max_sequences or MOST_SEQUENCES)
    if config.max_sequences is None:
        n_states = max(3, min(n_states, left // _STATE_PART // needs.state_bytes))
    if n_states * needs.state_bytes >= left:
        raise CapacityError(
            f"[memory] the states of {n_states // 2} sequences need {_mib(n_states * needs.state_bytes)}, but "
            f"{_mib(left)} are left beside the weights of {needs.name}"
        )
    return n_states


def limited_states(sizes: Sizes, state_bytes: int, config: EngineConfig, left: int) -> Sizes:
    """Return sizes with as many states, and sequences, as a quarter of ``left`` bytes holds."""
    if state_bytes == 0 or config.max_sequences is not None:
        return sizes
    n_states = max(3, min(sizes.n_states, left // _STATE_PART // state_bytes))
    return replace(sizes, n_states=n_states, max_sequences=min(sizes.max_sequences, n_states // 2))


def _blocks_of(n_tokens: int) -> int:
    return -(-n_tokens // BLOCK_TOKENS)


def _context(room: _Room, config: EngineConfig) -> int:
    """Return the model's context, limited by the cache; a short one may exceed the cache's fair share."""
    needs = room.needs
    if config.n_blocks is not None:
        return min(needs.n_ctx_usual, (config.n_blocks - 1) * BLOCK_TOKENS)
    n_ctx = room.fair_context
    least = min(needs.n_ctx_usual, _LEAST_N_CTX)
    if n_ctx >= least:
        return n_ctx
    needed = room.context_bytes(least) + needs.block_bytes
    if needed > room.most_bytes:
        raise CapacityError(
            f"[memory] no room for a context of {least} tokens beside the weights of {needs.name}: it needs "
            f"{_mib(needed)}"
        )
    return least


def _cache_bytes(room: _Room, config: EngineConfig, n_ctx: int) -> int:
    """Return the bytes for 32 usual sequences, or two contexts if a large cache costs more; at least one context."""
    if config.n_blocks is not None:
        return (config.n_blocks - 1) * room.needs.block_bytes
    one = room.context_bytes(n_ctx)
    usual = room.context_bytes(min(n_ctx, _TOKENS_OF_A_SEQUENCE))
    many = room.needs.paged or room.needs.on_device
    wanted = (config.max_sequences or MOST_SEQUENCES) * usual if many else 2 * one
    return max(min(wanted, room.fair_bytes - room.needs.block_bytes), one)


def _step_tokens(needs: ModelNeeds, left: int) -> int:
    n_tokens = _MOST_STEP_TOKENS
    while n_tokens > _LEAST_STEP_TOKENS and n_tokens * needs.token_bytes > left // _STEP_PART:
        n_tokens //= 2
    return n_tokens


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):.0f} MiB"
