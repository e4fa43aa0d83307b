"""Native parts by themselves, for tests and benchmarks.  Wheels are built without this module (QUIRE_TESTING=OFF)."""

from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from .core import Tensor
from .engine import Drafter, DynamicWeights, SampledToken, SamplingParams, VocabInfo
from .graph import ExecutorBase
from .kernels import KernelSet
from .kv import BlockPool, CacheStats

# Kernels on arrays

def poisons() -> bool:
    """Return True if memory that must not be read yet is filled with NaN (``QUIRE_POISON=1``, for tests)."""

class AttentionBatch:
    """The rows of one step: new tokens of some sequences, in order.

    Args:
        row_begin: [n_sequences + 1], the first row of each sequence, then the number of rows.
        n_kv: [n_sequences], tokens in the cache, including this step's.
        tables: The block ids of each sequence, at least ``n_kv / 32``.
        slots: [n_rows], the slot for each row's K and V, ``block * 32 + offset``.
        last_visible: [n_rows], the last position that each row sees, ascending within a sequence; empty for its own.

    Raises:
        ShapeError: The arguments are inconsistent.
    """

    def __init__(
        self,
        *,
        row_begin: Sequence[int],
        n_kv: Sequence[int],
        tables: Sequence[Sequence[int]],
        slots: Sequence[int],
        last_visible: Sequence[int] = [],
    ) -> None: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def n_sequences(self) -> int: ...

def kv_write(
    kernels: KernelSet,
    k: npt.NDArray[np.float32],
    v: npt.NDArray[np.float32] | None,
    k_pool: npt.NDArray[Any],
    v_pool: npt.NDArray[Any] | None,
    batch: AttentionBatch,
    n_workers: int = 1,
    poison_rest: bool = False,
) -> None:
    """Write ``k`` [n_rows, n_kv_head, head_dim] and ``v`` [n_rows, n_kv_head, v_head_dim] to their slots.

    Pools are C-contiguous, K [n_blocks, n_kv_head, head_dim, 32] and V [n_blocks, n_kv_head, 32, v_head_dim], of
    float32, float16, or uint16 with the bits of bf16.  Pools of an 8-bit cache are int8
    [n_blocks, n_kv_head, 32 * (n + 4)], where n is the head's dimensions rounded up to a multiple of 4: the codes
    of K [n / 4, 32, 4] or V [32, v_head_dim], then at 32 * n the float32 scales of the 32 tokens, the largest
    magnitude / 127.  Values are rounded to nearest, ties to even.  Without ``v`` and ``v_pool`` (latent attention)
    there is one head, and its values are part of its keys.

    Args:
        poison_rest: Fill the rest of the blocks after the step's last tokens with NaN (for an 8-bit cache, only the
            scales).

    Raises:
        ShapeError: Shapes are inconsistent.
        ValueError: A pool is read-only.
    """

def paged_attention(
    kernels: KernelSet,
    q: npt.NDArray[np.float32],
    k_pool: npt.NDArray[Any],
    v_pool: npt.NDArray[Any] | None,
    batch: AttentionBatch,
    *,
    scale: float,
    soft_cap: float | None = None,
    window: int | None = None,
    sinks: npt.NDArray[np.float32] | None = None,
    bias: npt.NDArray[np.float32] | None = None,
    v_head_dim: int | None = None,
    n_workers: int = 1,
) -> npt.NDArray[np.float32]:
    """Compute causal attention of ``q`` [rows, n_head, head_dim] with the pools: [rows, n_head, v_head_dim].

    A row's bits do not depend on other rows, on how a prompt is cut into steps, on shared blocks or on
    ``n_workers``.  With an 8-bit cache, queries are rounded to 8 bits with a scale per head.

    Args:
        q: Queries; rows after ``batch.n_rows`` are padding, and zero in the result.
        v_pool: None for latent attention, whose values are the first ``v_head_dim`` dimensions of the keys.
        soft_cap: c caps scores to ``c * tanh(score / c)``.
        window: w limits a row to the last w positions, including its own.
        sinks: [n_head], a score without a value in each head's softmax (as in gpt-oss).
        bias: [n_head, n], added to scores by distance; see ``graph.attend``.
        v_head_dim: Required for an 8-bit cache and without ``v_pool``.

    Raises:
        ShapeError: Shapes are inconsistent.
    """

def rms_norm(
    kernels: KernelSet, x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32] | None, eps: float
) -> npt.NDArray[np.float32]:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""

def layer_norm(
    kernels: KernelSet,
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32] | None,
    bias: npt.NDArray[np.float32] | None,
    eps: float,
) -> npt.NDArray[np.float32]:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` of every row.  Raises ShapeError."""

def rotate(
    kernels: KernelSet,
    x: npt.NDArray[np.float32],
    cosines: npt.NDArray[np.float32],
    sines: npt.NDArray[np.float32],
    *,
    interleaved: bool = False,
) -> npt.NDArray[np.float32]:
    """Return ``x * cosines + partner * sines``, all ``[n]``.

    The partner is the number n / 2 away, or with ``interleaved`` the other one of a pair of neighbours.
    """

def activate(kernels: KernelSet, x: npt.NDArray[np.float32], activation: str) -> npt.NDArray[np.float32]:
    """Apply ``silu``, ``gelu``, ``gelu_tanh`` or ``relu`` to each number."""

def gate(
    kernels: KernelSet, gate: npt.NDArray[np.float32], up: npt.NDArray[np.float32], activation: str
) -> npt.NDArray[np.float32]:
    """Return ``activate(gate) * up``."""

def soft_cap(kernels: KernelSet, x: npt.NDArray[np.float32], cap: float) -> npt.NDArray[np.float32]:
    """Return ``cap * tanh(x / cap)``."""

def largest(kernels: KernelSet, x: npt.NDArray[np.float32]) -> float:
    """Return the largest number, -inf for an empty array, NaN if a number is not finite."""

class PackedMatrix:
    """A copy of a matrix [n_out, n_in] in the packed layout for the products of ``kernels``.

    Raises:
        UnsupportedError: The type has no packed layout.
    """

    def __init__(self, tensor: Tensor, kernels: KernelSet = ..., *, threads: int = 1) -> None: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def size_bytes(self) -> int: ...
    def values(self) -> npt.NDArray[np.float32]:
        """Return the matrix as float32, with the values that row lookups get."""
    def multiply(self, x: npt.NDArray[np.float32], *, n_workers: int = 1, raw: bool = False) -> npt.NDArray[np.float32]:
        """Return ``x [n, n_in] @ matrix.T``.

        For quantized weights, x is rounded to 8 bits in groups of 32 columns (largest magnitude / 127), and the bits
        are the same on every instruction set.  Weights of 32 and 16 bits are multiplied in single precision, without
        rounding x.  A row's bits depend on that row alone.

        Args:
            raw: Each worker rounds all rows itself, like with few rows.

        Raises:
            ShapeError: Shapes are inconsistent.
        """

class ThreadTeam:
    """The team of threads that kernels run on (for tests).

    ``cpus`` are the logical processors they may use.  Raises CapacityError if this process may use none of them.
    """

    def __init__(self, n_workers: int, *, cpus: Sequence[int] = ()) -> None: ...
    @property
    def n_workers(self) -> int: ...
    def count(self, n: int, *, grain: int = 1, repetitions: int = 1) -> list[int]:
        """Return how often each of ``n`` indices was handed out in ``repetitions`` rounds."""

# The cache

def blake2b(data: bytes, *, digest_size: int = 64, person: bytes = b"") -> bytes:
    """Return the BLAKE2b hash (RFC 7693) without a key, equal to ``hashlib.blake2b``; used by ``block_hash``."""

def block_hash(
    token_ids: Sequence[int],
    *,
    parent: bytes | None = None,
    adapter: bytes = b"",
    media: bytes = b"",
    salt: bytes = b"",
) -> bytes:
    """Return the 32-byte name of a full block of tokens.

    BLAKE2b-256, personal ``quire.kv.block.1``, over parent, tokens (32 bits each), adapter, media and salt, each
    preceded by its length in bytes (64 bits), all little-endian.
    """

class PoolGroup:
    """A group of layers in a pool: its number of blocks, including the null block, and how long rows are needed."""

    def __init__(
        self,
        n_blocks: int,
        *,
        block_bytes: int = 1,
        window: int = 0,
        chunk: int = 0,
        of_source: bool = False,
        bidirectional_media: bool = False,
    ) -> None: ...

class CacheEdit:
    """A change of memory that the accounting requires: ``copy`` source to target, or ``discard`` source."""

    @property
    def kind(self) -> Literal["copy", "discard"]: ...
    @property
    def group(self) -> int | None:
        """The group of the blocks; None for states."""
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...

class CachePool:
    """Blocks of every group of layers and slots of recurrent state, with one budget in bytes (None: no limit)."""

    def __init__(
        self,
        groups: Sequence[PoolGroup],
        *,
        block_tokens: int = 32,
        n_states: int = 0,
        state_bytes: int = 0,
        budget_bytes: int | None = None,
        reuse: str = "by_age",
    ) -> None: ...
    @property
    def groups(self) -> list[BlockPool]: ...
    @property
    def states(self) -> BlockPool | None: ...
    @property
    def held_bytes(self) -> int:
        """The bytes of referenced blocks and states."""
    @property
    def filled_bytes(self) -> int:
        """The bytes of referenced blocks and states, and of free ones that still have contents."""
    @property
    def stats(self) -> CacheStats: ...
    def take_edits(self) -> list[CacheEdit]:
        """Return the edits since the last call, in order."""
    def check(self) -> None:
        """Verify every invariant; InternalError names the one that broke."""

class SequenceCache:
    """The cache of one sequence: a block table in each group, and a state slot.

    ``step_tokens`` is the most tokens computed at a time.
    """

    def __init__(self, pool: CachePool, *, step_tokens: int, salt: bytes = b"") -> None: ...
    @property
    def tables(self) -> list[list[int]]: ...
    @property
    def state(self) -> int | None: ...
    def match(self, token_ids: Sequence[int], max_tokens: int) -> int:
        """Return the tokens of the longest prefix for which every group has the blocks it needs."""
    def take(self, token_ids: Sequence[int], max_tokens: int) -> int | None:
        """Share that prefix and reserve blocks for the rest; return None and change nothing if there is no room."""
    def has_room_to_write(self, begin: int, end: int) -> bool: ...
    def prepare(self, begin: int, end: int) -> None:
        """Make the blocks of these positions private.  Raises CapacityError if there is no room."""
    def advance(self, token_ids: Sequence[int], n_computed: int) -> None:
        """Record computed tokens: publish full blocks, and drop blocks that no later token needs."""
    def snapshot(self, token_ids: Sequence[int], *, rolling: bool = False) -> None:
        """Store a snapshot of the state after these tokens, which must be whole blocks."""
    @property
    def can_fork(self) -> bool: ...
    def fork(self) -> SequenceCache: ...
    def release(self) -> None: ...

# Scheduling on the caller's clock

class SchedulerConfig:
    """The order of sequences and the limits of a step.

    Attributes:
        policy: ``fifo`` (arrival), ``shortest-first`` (prompt length), ``priority`` (priority, then arrival) or
            ``dynamic`` (fair between keys; within a key by age, length and priority).
        max_step_tokens, max_step_logit_rows, max_step_kv_tokens: The limits of a step.
        max_running: The most sequences that hold blocks.
        kept_back_blocks: Blocks that stay free in each group when a sequence is admitted; None means one per running
            sequence.
        max_preemptions: After this many preemptions for lack of blocks, a sequence is not preempted again.
        turn_tokens: New tokens that a sequence computes before it yields its place to another key.
        snapshot_tokens: The largest distance of snapshots of recurrent state, in tokens.
        undivided_prompts: Tokens attend to later ones, so a prompt is computed in one step.
    """

    def __init__(
        self,
        *,
        policy: str = "fifo",
        weights: DynamicWeights = ...,
        max_step_tokens: int = 512,
        max_step_logit_rows: int = 512,
        max_step_kv_tokens: int | None = None,
        max_running: int = 64,
        kept_back_blocks: int | None = None,
        max_preemptions: int = 4,
        turn_tokens: int = 32,
        snapshot_tokens: int = 1024,
        undivided_prompts: bool = False,
    ) -> None: ...
    @property
    def policy(self) -> str: ...
    @property
    def weights(self) -> DynamicWeights: ...
    @property
    def max_step_tokens(self) -> int: ...
    @property
    def max_step_logit_rows(self) -> int: ...
    @property
    def max_step_kv_tokens(self) -> int | None: ...
    @property
    def max_running(self) -> int: ...
    @property
    def kept_back_blocks(self) -> int | None: ...
    @property
    def max_preemptions(self) -> int: ...
    @property
    def turn_tokens(self) -> int: ...
    @property
    def snapshot_tokens(self) -> int: ...

class PlanItem:
    """The tokens of one sequence in one step: ``n_tokens`` from position ``first``, with logits of the last
    ``n_logit_rows``.

    The last ``n_drafted`` tokens are a draft, which may be wrong.
    """

    @property
    def sequence_id(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_logit_rows(self) -> int: ...
    @property
    def n_drafted(self) -> int: ...
    @property
    def n_encoded(self) -> int:
        """Tokens of the sequence's source, which is encoded before the step's rows."""

class Plan:
    """The work of a step.  The ``edits`` of the cache must be applied before it, in order."""

    @property
    def items(self) -> list[PlanItem]: ...
    @property
    def edits(self) -> list[CacheEdit]: ...
    @property
    def admitted(self) -> list[int]: ...
    @property
    def preempted(self) -> list[int]:
        """Sequences that gave their blocks to others."""
    @property
    def yielded(self) -> list[int]:
        """Sequences that gave their places to another key."""
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_logit_rows(self) -> int: ...

class SequenceState:
    """A snapshot of a sequence.  ``queue`` is ``waiting``, ``running`` or ``following``."""

    @property
    def id(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def drafted(self) -> list[int]:
        """The draft: tokens for the next plan, or computed by the last one."""
    @property
    def n_prompt(self) -> int: ...
    @property
    def n_computed(self) -> int: ...
    @property
    def n_cached(self) -> int: ...
    @property
    def n_preemptions(self) -> int:
        """The number of preemptions for lack of blocks."""
    @property
    def n_yields(self) -> int:
        """The number of preemptions that gave the place to another key, and of pauses."""
    @property
    def has_work(self) -> bool: ...
    @property
    def queue(self) -> str: ...
    @property
    def tables(self) -> list[list[int]]:
        """The blocks of each group; 0 for blocks that are no longer needed."""
    @property
    def state(self) -> int | None:
        """Its state slot while it runs, if layers have a state."""

class SchedulerStats:
    """The current number of sequences in each queue, and totals since the start."""

    @property
    def n_waiting(self) -> int: ...
    @property
    def n_running(self) -> int: ...
    @property
    def n_following(self) -> int: ...
    @property
    def n_paused(self) -> int:
        """Waiting sequences whose answers nobody reads."""
    @property
    def n_preemptions(self) -> int: ...
    @property
    def n_yields(self) -> int:
        """Preemptions that gave the place to another key."""
    @property
    def n_prefix_hit_tokens(self) -> int:
        """Tokens of new sequences that were found in the cache."""
    @property
    def n_recovered_tokens(self) -> int:
        """Tokens of preempted sequences that were still in the cache when they were admitted again."""
    @property
    def n_computed_tokens(self) -> int: ...
    @property
    def n_recomputed_tokens(self) -> int:
        """The computed tokens that had been computed before a preemption."""
    @property
    def n_lost_hit_tokens(self) -> int:
        """Tokens of admitted sequences that only the layers with full attention still had in the cache."""
    @property
    def n_drafted_tokens(self) -> int:
        """Drafted tokens that were computed, ``n_accepted_tokens`` of which were right."""
    @property
    def n_accepted_tokens(self) -> int: ...

class Scheduler:
    """Decides which tokens of which sequences run in a step.  The caller provides time and tokens.

    ``Decoder`` has its own scheduler; this class is for simulations.  It is not thread-safe.
    """

    def __init__(self, config: SchedulerConfig, pool: CachePool) -> None: ...
    def submit(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        now_s: float,
        n_choices: int = 1,
        priority: int = 0,
        key: str = "",
        salt: bytes = b"",
        every_logit_row: bool = False,
        snapshot_positions: Sequence[int] = [],
        source: Sequence[int] = [],
        media: Sequence[tuple[int, int, bool]] = [],
    ) -> list[int]:
        """Add a sequence per choice, the first of which computes the prompt for all; return their ids.

        Args:
            token_ids: The prompt.
            max_tokens: The most tokens of prompt and answer together.
            now_s: The current time.
            snapshot_positions: Ends of messages, where recurrent state is kept for later turns.
            source: The source text for an encoder, if the pool has a group for it.
            media: First position and rows of each image, and whether its rows attend to later ones.

        Raises:
            CapacityError: The request can never fit.
            RequestError: The prompt is empty.
        """
    def plan(self, now_s: float) -> Plan: ...
    def plan_within(self, now_s: float, step_tokens: int) -> Plan:
        """Plan at most ``step_tokens`` tokens, but for an image whose rows are computed together."""
    def commit(self, plan: Plan) -> None:
        """Record that the step ran.  Raises InternalError if anything changed since the plan."""
    def append(self, sequence_id: int, token: int) -> None:
        """Append the sampled token to a sequence that waits for it.

        If it equals the next drafted token, which is already computed, the sequence still has no work, and the next
        logit row of its item is the one after the token.  Otherwise the rest of the draft is discarded.
        """
    def draft_limit(self, sequence_id: int) -> int:
        """Return the most drafted tokens that the sequence can use in the next plan."""
    def draft(self, sequence_id: int, tokens: Sequence[int]) -> None:
        """Set the draft, at most ``draft_limit`` tokens; the next plan takes as many as fit."""
    def pause(self, sequence_id: int) -> None:
        """Take away the sequence's place and blocks until ``resume``, because nobody reads its answer."""
    def resume(self, sequence_id: int) -> None: ...
    def remove(self, sequence_id: int) -> None:
        """Remove a finished, cancelled or failed sequence and free its blocks."""
    def sequence(self, sequence_id: int) -> SequenceState: ...
    def __contains__(self, sequence_id: int) -> bool: ...
    def batch(self, plan: Plan) -> dict[str, Any]:
        """Return the plan as flat arrays for an executor; ``groups`` is a list of such arrays."""
    def source_batch(self, plan: Plan) -> dict[str, Any]:
        """Return the arrays for the source texts that are encoded before the step."""
    @property
    def stats(self) -> SchedulerStats: ...
    def check(self) -> None:
        """Verify every invariant; InternalError names the one that broke."""

# Sampling

@final
class Sampler:
    """Samples the tokens of one choice.  A sample depends only on logits, tokens and (seed, choice, position).

    Raises:
        RequestError: Parameters do not fit the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, vocab: VocabInfo, choice: int = 0, bad_sequences: Sequence[Sequence[int]] = []
    ) -> None: ...
    def sample(
        self,
        logits: npt.NDArray[np.float32],
        tokens: Sequence[int],
        n_prompt: int,
        mask: npt.NDArray[np.uint32] | None = None,
        maxima: npt.NDArray[np.float32] | None = None,
    ) -> SampledToken:
        """Sample the token after ``tokens``, the first ``n_prompt`` of which are the prompt.

        Args:
            logits: [n_vocab]; ``-inf`` excludes a token.
            mask: [(n_vocab + 31) // 32]; token i is allowed if bit ``i % 32`` of word ``i // 32`` is set.
            maxima: [(n_vocab + 63) // 64], the largest of every 64 logits, NaN if one is not finite; optional, and
                saves reading all logits.

        Raises:
            RequestError: A logit is NaN or ``+inf``, or no token is left.
            ShapeError: An array has another size.
        """
    def distribution(
        self,
        logits: npt.NDArray[np.float32],
        tokens: Sequence[int],
        n_prompt: int,
        mask: npt.NDArray[np.uint32] | None = None,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return the distribution of ``sample``: ids and probabilities of the tokens that survive the chain."""

@final
class StopMatcher:
    """Turns the bytes of tokens into text that is safe to show.

    It holds back incomplete characters and text that may become one of the ``stop`` strings.  Ill-formed UTF-8 becomes
    U+FFFD as with ``errors="replace"``.  The stop string that ends first wins, and of several that end together the
    longest.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool = False) -> None: ...
    def push(self, data: bytes) -> str:
        """Add bytes; return the text that is now safe to show, "" after a stop."""
    def finish(self) -> str:
        """End the input; return the text held back."""
    @property
    def stopped(self) -> bool: ...
    @property
    def matched(self) -> int | None:
        """The index of the stop string that ended the text."""

def log_sum_exp(logits: npt.NDArray[np.float32]) -> float:
    """Return ``log(sum(exp(logits)))`` of one row."""

def log_probs_of(logits: npt.NDArray[np.float32], id: int, n_top: int = 0) -> SampledToken:
    """Return the log-softmax of one row for ``id`` and the ``n_top`` most likely tokens."""

def philox4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Return the four words of Philox4x32-10 (Salmon et al. 2011) for four counter words and two key words."""

def token_random(seed: int, choice: int, position: int) -> tuple[float, float]:
    """Return the random numbers in [0, 1) for sampling a token and for excluding top choices (XTC)."""

# Drafting and made-up models

@final
class StepCost:
    """The recent duration of steps, by their number of rows."""

    def __init__(self) -> None: ...
    def took(self, n_rows: int, seconds: float, all_have_logits: bool = True) -> None:
        """Record the duration of a step.  Prompt rows have no logits and are cheaper."""
    def seconds(self, n_rows: int) -> float:
        """Return the expected duration, which grows with the rows, but only slightly beyond the most rows ever seen."""

@final
class Speculator:
    """Decides the depth of drafts.  A decoder has its own; this class is for simulations."""

    def __init__(self, drafters: Sequence[Drafter], *, draft_max: int = 16, draft_min: int = 0) -> None: ...
    def propose(
        self,
        texts: Sequence[tuple[int, Sequence[int]]],
        n_rows: int,
        forced: Sequence[Sequence[int]] = [],
        masks: Sequence[Sequence[int]] = [],
        n_prompt: int = 0,
    ) -> list[list[int]]:
        """Return a draft for each sequence (id, text) of a step with ``n_rows`` rows, as if all drafts were computed.

        Args:
            forced: The tokens that a grammar forces, for each sequence.
            masks: The words of the mask after the forced tokens, for each sequence.
            n_prompt: Number of tokens of each text that are its prompt; an answer has at most 1000.
        """
    def forget(self, sequence_id: int, answer: Sequence[int]) -> None:
        """Record that a sequence has ended."""
    def judge(self, sequence_id: int, is_right: bool) -> None:
        """Record if the next token of the sequence's draft was right; do not call it again after a wrong one."""
    def took(self, n_rows: int, seconds: float, all_have_logits: bool = True) -> None:
        """Record the duration of a step, like :meth:`StepCost.took`."""

@final
class SuffixAutomaton:
    """A suffix automaton of a growing text (Blumer et al. 1985)."""

    def __init__(self) -> None: ...
    def append(self, token: int) -> None: ...
    @property
    def match(self) -> tuple[int, int]:
        """Return the length of the longest suffix that occurred before, and the position after that occurrence."""
    @property
    def n_states(self) -> int: ...

@final
class AnswerCursor:
    """The progress of looking up a text in an ``AnswerStore``."""

    def __init__(self) -> None: ...

@final
class AnswerStore:
    """Earlier answers, at most ``most_tokens`` in total; a text finds only answers with its own salt."""

    def __init__(self, most_tokens: int) -> None: ...
    def add(self, salt: bytes, answer: Sequence[int]) -> None: ...
    def find(self, salt: bytes, tokens: Sequence[int], cursor: AnswerCursor) -> tuple[int, list[int]]:
        """Return how many of the last ``tokens`` occur in an answer, and what followed there (-1 for the answer's end).

        ``cursor`` keeps the progress between calls for one growing text.
        """
    @property
    def n_tokens(self) -> int: ...

@final
class ScriptedDrafter(Drafter):
    """Proposes the continuation of the first of ``scripts`` (prompt and answer) that begins with the sequence.

    It serves to test and measure speculation.

    Args:
        agreement: Probability that a proposed token is right, decided by a hash of the position; a wrong token is the
            next id.
        token_read_s: The seconds per token that it reports for reading a sequence for the first time.

    Raises:
        RequestError: ``agreement`` is outside 0 to 1.
    """

    def __init__(
        self,
        scripts: Sequence[Sequence[int]],
        *,
        agreement: float,
        seed: int = 0,
        n_vocab: int,
        token_read_s: float = 0.0,
    ) -> None: ...

@final
class FakeExecutor(ExecutorBase):
    """A model without weights for tests, whose logits are a hash of the tokens that its layers see through the cache.

    A layer hashes the tokens that it sees: h = 0, then h = mix(h * 31 + token + 1) for each token, with the finalizer
    of SplitMix64 as mix.  The hash r of a row is that of its only layer.  Several layers are combined in the order of
    the cache's groups, the recurrent one last: r = 0, then r = mix(r * 31 + h + 1) for each.  Logit v is the upper 24
    bits of mix(r + v), divided by 2^21.

    Args:
        step_s: Duration of a step in seconds.
        fail_on: A step with this token raises CapacityError.
        nan_after: The logits of a sequence that contains this token are NaN.
        layers: (window, chunk) of each attention layer, 0 for none.
        n_state: Size of the state of a recurrent layer, which hashes all tokens; 0 for no such layer.
        n_states: Number of slots for recurrent states.
        fail_copy: The number of the copy of a block or state that raises CapacityError.
        reads_source: Add a layer that sees a whole source text.
        shows_features: Leave r of every row as features for a head.
        reads_features: Be a head: r = mix(r' * 31 + token + 1), where r' comes with the token.
        media_width: Numbers of a row of an image, all of which its rows see; 0 for text only.  Layers see ``n_vocab``
            plus the first number in the place of its token.
    """

    def __init__(
        self,
        *,
        n_vocab: int = 64,
        n_blocks: int = 65,
        block_tokens: int = 32,
        max_rows: int = 256,
        max_logit_rows: int = 64,
        max_sequences: int = 64,
        max_kv_tokens: int = 0,
        step_s: float = 0.0,
        fail_on: int | None = None,
        nan_after: int | None = None,
        layers: Sequence[tuple[int, int]] = [(0, 0)],
        n_state: int = 0,
        n_states: int = 17,
        budget_bytes: int | None = None,
        undivided_prompts: bool = False,
        fail_copy: int | None = None,
        reads_source: bool = False,
        shows_features: bool = False,
        reads_features: bool = False,
        media_width: int = 0,
    ) -> None: ...
