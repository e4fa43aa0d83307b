"""Sizes that nobody gave: chosen by what the model needs and by the memory at hand."""

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
# Of what the weights leave: the rest is for everything else on the machine.
_CACHE_PART, _STEP_PART, _STATE_PART = 2, 8, 4
MOST_SEQUENCES, _TOKENS_OF_A_SEQUENCE, _LEAST_TOKENS_OF_A_SEQUENCE = 32, 1024, 256
_MOST_STEP_TOKENS, _LEAST_STEP_TOKENS = 512, 32
_LEAST_N_CTX = 512
_MOST_UNDIVIDED_TOKENS = 32768


@dataclass(frozen=True)
class Sizes:
    """How large an engine is: ``n_blocks`` with the null block, ``n_states`` with the zero state (0 where no layer has
    one); see ``EngineConfig`` for the rest.

    ``cache_bytes``: of all blocks together, where that is less than ``n_blocks`` of every group; else 0.
    """

    n_ctx: int
    n_blocks: int
    max_sequences: int
    max_step_tokens: int
    n_states: int = 0
    cache_bytes: int = 0


@dataclass(frozen=True)
class GroupNeeds:
    """Layers that see only their last ``reach`` tokens, and the bytes of a block in all of them."""

    block_bytes: int
    reach: int

    def blocks(self, n_tokens: int, step_tokens: int) -> int:
        """What a sequence holds at most while it computes up to ``step_tokens`` at a time, as ``CachePool`` counts."""
        span = (self.reach - 1) + (BLOCK_TOKENS - 1) + step_tokens
        return min(_blocks_of(n_tokens), (span + BLOCK_TOKENS - 2) // BLOCK_TOKENS + 1)


@dataclass(frozen=True)
class ModelNeeds:
    """Bytes that a model takes: its weights, a block of its cache, a sequence's recurrent state, and the step's buffer
    for each token.

    ``block_bytes``: in all layers; ``limited``: the groups among them whose layers have a window or chunks.

    ``fixed_bytes``: of its vocabulary and the rows of logits, whatever sizes are chosen.

    ``paged``: how much of the cache a step reads costs no memory of its own, so that a larger one is free until it
    is used; elsewhere every graph is planned for all of it.

    ``on_device``: a part on a device, whose graphs read what is there of a cache, however large it is.

    ``n_ctx_advised``: what the makers of an embedding model read of a text at most.

    ``undivided``: an encoder, which computes a prompt in one step, and keeps nothing.

    ``reads_source``: an encoder reads the prompt, in one step that also has a row of the answer.
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
    fixed_bytes: int = 0
    n_ctx_advised: int | None = None
    limited: tuple[GroupNeeds, ...] = ()

    @property
    def n_ctx_usual(self) -> int:
        return min(self.n_ctx_train, self.n_ctx_advised or self.n_ctx_train)

    def context_bytes(self, n_tokens: int, step_tokens: int) -> int:
        """Blocks of one sequence of so many tokens."""
        limited = self.limited if self.paged else ()
        everywhere = self.block_bytes - sum(group.block_bytes for group in limited)
        return _blocks_of(n_tokens) * everywhere + sum(
            group.blocks(n_tokens, step_tokens) * group.block_bytes for group in limited
        )


def choose_sizes(needs: ModelNeeds, config: EngineConfig, available_bytes: int) -> Sizes:
    """The sizes that ``config`` gives, and for the others what fits into ``available_bytes``.

    The cache takes at most half of what the weights leave: one context of the model's training where that is enough
    room (of layers with a window only what it reaches), and 1024 tokens for each of 32 sequences.  Before that,
    recurrent states take at most a quarter: for each sequence its own, and a copy for the next one that begins like
    it.  CapacityError where the weights, or what is asked for, do not fit.
    """
    check_weights(needs.name, needs.weights_bytes, available_bytes)
    left = available_bytes - needs.weights_bytes - needs.fixed_bytes
    if left <= 0:
        raise CapacityError(
            f"[memory] the vocabulary of {needs.name} must fit beside its weights but "
            f"{_mib(needs.fixed_bytes)} are more than the memory at hand"
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
            f"[memory] {asked} must fit into the {_mib(left)} beside the weights of {needs.name} "
            f"but takes {_mib(needed + needs.block_bytes)}"
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
    """What there is for the cache: its fair part, and the most that it may take.  A null block comes off each."""

    needs: ModelNeeds
    step_tokens: int
    fair_bytes: int
    most_bytes: int

    def context_bytes(self, n_tokens: int) -> int:
        return self.needs.context_bytes(n_tokens, self.step_tokens)

    @property
    def fair_context(self) -> int:
        """Tokens of the longest sequence, at most a context of the training, that the fair part holds."""
        low, high = 0, _blocks_of(self.needs.n_ctx_usual)
        while low < high:
            middle = (low + high + 1) // 2
            if self.context_bytes(middle * BLOCK_TOKENS) + self.needs.block_bytes <= self.fair_bytes:
                low = middle
            else:
                high = middle - 1
        return min(low * BLOCK_TOKENS, self.needs.n_ctx_usual)


def _undivided(needs: ModelNeeds, config: EngineConfig, left: int) -> Sizes:
    """A step takes a whole context; there is no cache, so that one block but the null block is never used."""
    most = min(_MOST_UNDIVIDED_TOKENS, left // _CACHE_PART // needs.token_bytes)
    n_ctx = config.n_ctx or min(needs.n_ctx_usual, most, config.max_step_tokens or most)
    n_tokens = config.max_step_tokens or max(n_ctx, _step_tokens(needs, left))
    if not 2 <= n_ctx <= most:
        raise CapacityError(
            f"[memory] a step of n_ctx {n_ctx} tokens must fit into the {_mib(left)} beside the weights of "
            f"{needs.name} but takes {_mib(n_ctx * needs.token_bytes)}"
        )
    if n_ctx > n_tokens:
        raise CapacityError(
            f"[memory] max_step_tokens must be at least n_ctx, {n_ctx}, for an encoder but is {n_tokens}"
        )
    return Sizes(
        n_ctx=n_ctx, n_blocks=2, max_sequences=config.max_sequences or MOST_SEQUENCES, max_step_tokens=n_tokens
    )


def _whole_sources(needs: ModelNeeds, config: EngineConfig, n_ctx: int, step_tokens: int) -> tuple[int, int]:
    """A context and a step that holds as long a prompt, and a row of the answer."""
    if config.max_step_tokens is None:
        step_tokens = max(step_tokens, min(n_ctx + 1, _MOST_UNDIVIDED_TOKENS))
    if config.n_ctx is None:
        n_ctx = min(n_ctx, step_tokens - 1)
    if not 2 <= n_ctx < step_tokens:
        raise CapacityError(
            f"[memory] max_step_tokens must be more than n_ctx, {n_ctx}, for the encoder of {needs.name} "
            f"but is {step_tokens}"
        )
    return n_ctx, step_tokens


def check_weights(name: str, n_bytes: int, available_bytes: int) -> None:
    """CapacityError for weights that leave no memory."""
    if n_bytes >= available_bytes:
        raise CapacityError(
            f"[memory] the weights of {name} must fit into the memory at hand, {_mib(available_bytes)}, "
            f"but take {_mib(n_bytes)}"
        )


def _states(needs: ModelNeeds, config: EngineConfig, left: int) -> int:
    if needs.state_bytes == 0:
        return 0
    n_states = 1 + 2 * (config.max_sequences or MOST_SEQUENCES)
    if config.max_sequences is None:
        n_states = max(3, min(n_states, left // _STATE_PART // needs.state_bytes))
    if n_states * needs.state_bytes >= left:
        raise CapacityError(
            f"[memory] the states of {n_states // 2} sequences must fit into the {_mib(left)} beside the weights of "
            f"{needs.name} but take {_mib(n_states * needs.state_bytes)}"
        )
    return n_states


def limited_states(sizes: Sizes, state_bytes: int, config: EngineConfig, left: int) -> Sizes:
    """With as many states of so many bytes, and sequences, as a quarter of ``left`` bytes holds."""
    if state_bytes == 0 or config.max_sequences is not None:
        return sizes
    n_states = max(3, min(sizes.n_states, left // _STATE_PART // state_bytes))
    return replace(sizes, n_states=n_states, max_sequences=min(sizes.max_sequences, n_states // 2))


def _blocks_of(n_tokens: int) -> int:
    return -(-n_tokens // BLOCK_TOKENS)


def _context(room: _Room, config: EngineConfig) -> int:
    """What the model was trained on, as far as the cache reaches; a short one may take more than the cache's part."""
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
            f"[memory] a context of {least} tokens must fit beside the weights of {needs.name} but "
            f"{_mib(needed)} are more than the memory at hand"
        )
    return least


def _cache_bytes(room: _Room, config: EngineConfig, n_ctx: int) -> int:
    """One context at least; beyond it what 32 usual sequences fill, or two contexts where a large cache costs more."""
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
