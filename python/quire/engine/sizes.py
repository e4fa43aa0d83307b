"""Sizes that nobody gave: chosen by what the model needs and by the memory at hand."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CapacityError
from .config import EngineConfig

__all__ = ["BLOCK_TOKENS", "MOST_SEQUENCES", "ModelNeeds", "Sizes", "check_weights", "choose_sizes"]

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
    """

    n_ctx: int
    n_blocks: int
    max_sequences: int
    max_step_tokens: int
    n_states: int = 0


@dataclass(frozen=True)
class ModelNeeds:
    """Bytes that a model takes: its weights, a block of its cache, a sequence's recurrent state, and the step's buffer
    for each token.

    ``fixed_bytes``: of its vocabulary and the rows of logits, whatever sizes are chosen.

    ``paged``: how much of the cache a step reads costs no memory of its own, so that a larger one is free until it
    is used; elsewhere every graph is planned for all of it.

    ``n_ctx_advised``: what the makers of an embedding model read of a text at most.

    ``undivided``: an encoder, which computes a prompt in one step, and keeps nothing.
    """

    name: str
    n_ctx_train: int
    weights_bytes: int
    block_bytes: int
    token_bytes: int
    paged: bool = True
    state_bytes: int = 0
    undivided: bool = False
    fixed_bytes: int = 0
    n_ctx_advised: int | None = None

    @property
    def n_ctx_usual(self) -> int:
        return min(self.n_ctx_train, self.n_ctx_advised or self.n_ctx_train)


def choose_sizes(needs: ModelNeeds, config: EngineConfig, available_bytes: int) -> Sizes:
    """The sizes that ``config`` gives, and for the others what fits into ``available_bytes``.

    The cache takes at most half of what the weights leave: one context of the model's training where that is enough
    room, and 1024 tokens for each of 32 sequences.  Before that, recurrent states take at most a quarter: for each
    sequence its own, and a copy for the next one that begins like it.  CapacityError where the weights, or what is
    asked for, do not fit.
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
    fair_blocks, most_blocks = left // _CACHE_PART // needs.block_bytes, left // needs.block_bytes
    n_ctx = config.n_ctx or _context(needs, config, fair_blocks, most_blocks)
    n_blocks = config.n_blocks or _blocks(needs, config, n_ctx, fair_blocks) + 1
    needed = n_blocks if config.n_blocks is not None else _blocks_of(n_ctx) + 1
    if needed > most_blocks:
        asked = f"n_blocks {n_blocks}" if config.n_blocks is not None else f"n_ctx {n_ctx}"
        raise CapacityError(
            f"[memory] {asked} must fit into the {_mib(left)} beside the weights of {needs.name} "
            f"but takes {_mib(needed * needs.block_bytes)}"
        )
    n_sequences = min(MOST_SEQUENCES, n_states // 2) if n_states else MOST_SEQUENCES
    if config.n_blocks is None:
        n_sequences = max(1, min(n_sequences, (n_blocks - 1) * BLOCK_TOKENS // _LEAST_TOKENS_OF_A_SEQUENCE))
    return Sizes(
        n_ctx=n_ctx,
        n_blocks=n_blocks,
        max_sequences=config.max_sequences or n_sequences,
        max_step_tokens=config.max_step_tokens or _step_tokens(needs, left),
        n_states=n_states,
    )


def _undivided(needs: ModelNeeds, config: EngineConfig, left: int) -> Sizes:
    """A step takes a whole context; there is no cache, so that one block but the null block is never used."""
    if config.n_ctx is not None and config.n_ctx > needs.n_ctx_train:
        raise CapacityError(
            f"[memory] n_ctx must be at most the {needs.n_ctx_train} positions of {needs.name} but is {config.n_ctx}"
        )
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


def _blocks_of(n_tokens: int) -> int:
    return -(-n_tokens // BLOCK_TOKENS)


def _context(needs: ModelNeeds, config: EngineConfig, fair_blocks: int, most_blocks: int) -> int:
    """What the model was trained on, as far as the cache reaches; a short one may take more than the cache's part."""
    if config.n_blocks is not None:
        return min(needs.n_ctx_usual, (config.n_blocks - 1) * BLOCK_TOKENS)
    n_ctx = min(needs.n_ctx_usual, (fair_blocks - 1) * BLOCK_TOKENS)
    least = min(needs.n_ctx_usual, _LEAST_N_CTX)
    if n_ctx >= least:
        return n_ctx
    if _blocks_of(least) + 1 > most_blocks:
        raise CapacityError(
            f"[memory] a context of {least} tokens must fit beside the weights of {needs.name} but "
            f"{_mib((_blocks_of(least) + 1) * needs.block_bytes)} are more than the memory at hand"
        )
    return least


def _blocks(needs: ModelNeeds, config: EngineConfig, n_ctx: int, fair_blocks: int) -> int:
    """One context at least; beyond it what 32 usual sequences fill, or two contexts where a large cache costs more."""
    per_context = _blocks_of(n_ctx)
    n_sequences = config.max_sequences or MOST_SEQUENCES
    wanted = n_sequences * _blocks_of(min(n_ctx, _TOKENS_OF_A_SEQUENCE)) if needs.paged else 2 * per_context
    return max(min(wanted, fair_blocks - 1), per_context)


def _step_tokens(needs: ModelNeeds, left: int) -> int:
    n_tokens = _MOST_STEP_TOKENS
    while n_tokens > _LEAST_STEP_TOKENS and n_tokens * needs.token_bytes > left // _STEP_PART:
        n_tokens //= 2
    return n_tokens


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):.0f} MiB"
