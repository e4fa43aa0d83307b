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
    """Whether memory that nobody may read yet is not a number: ``QUIRE_POISON=1`` in the environment, for tests."""

class AttentionBatch:
    """The rows of one step: new tokens of some sequences, in order.

    - ``row_begin`` [n_sequences + 1]: the first row of each sequence, then the number of rows.
    - ``n_kv`` [n_sequences]: tokens in the cache when this step's are written.
    - ``tables``: the block ids of each sequence, at least ``n_kv / 32`` of them.
    - ``slots`` [n_rows]: where each row's K and V go, ``block * 32 + offset``.

    Raises ShapeError where they do not agree.
    """

    def __init__(
        self,
        *,
        row_begin: Sequence[int],
        n_kv: Sequence[int],
        tables: Sequence[Sequence[int]],
        slots: Sequence[int],
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
    float32, float16, or uint16 with the bits of bf16.  Pools of an 8-bit cache are int8, [n_blocks, n_kv_head,
    32 * (n + 4)] with n the head's dimensions, rounded up to a multiple of 4: K's codes [n / 4, 32, 4] or V's
    [32, v_head_dim], then at 32 * n the float32 scales of the 32 tokens, largest magnitude / 127.
    Values are rounded to nearest, ties to even.  ``poison_rest``: what the step's last tokens leave of their blocks
    becomes not a number (of an 8-bit cache, the scales).  Without ``v`` and ``v_pool`` (latent attention) there is
    one head whose values are a part of its keys.  Raises ShapeError, and ValueError for a read-only pool.
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
    """Causal attention of ``q`` [rows, n_head, head_dim] to the pools: [rows, n_head, v_head_dim].

    Rows after ``batch.n_rows`` are padding, and zero in the result.  ``window`` w: a row sees the last w
    positions, its own included.  ``soft_cap`` c: scores become ``c * tanh(score / c)``.  ``sinks`` [n_head]: one
    more score per head in the softmax, with no value (as in gpt-oss).  ``bias`` [n_head, n]: added to scores by
    distance, see ``graph.attend``.  Without ``v_pool`` values are the first ``v_head_dim`` dimensions of the keys
    (latent attention).  ``v_head_dim`` must be given then, and for an 8-bit cache; there queries are rounded to 8
    bits too, with a scale per head, for their scores.  A row's bits do not depend on the other rows, on how a
    prompt is cut into steps, on shared blocks, nor on ``n_workers``.  Raises ShapeError.
    """

def rms_norm(
    kernels: KernelSet, x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32] | None, eps: float
) -> npt.NDArray[np.float32]:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""

def layer_norm(
    kernels: KernelSet,
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32] | None,
    bias: npt.NDArray[np.float32] | None,
    eps: float,
) -> npt.NDArray[np.float32]:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` of every row; ShapeError where the sizes do not fit."""

def rotate(
    kernels: KernelSet,
    x: npt.NDArray[np.float32],
    cosines: npt.NDArray[np.float32],
    sines: npt.NDArray[np.float32],
    *,
    interleaved: bool = False,
) -> npt.NDArray[np.float32]:
    """``x * cosines + partner * sines``, all ``[n]``.

    The partner is the number n / 2 away, or with ``interleaved`` the other of a pair of neighbours.
    """

def activate(kernels: KernelSet, x: npt.NDArray[np.float32], activation: str) -> npt.NDArray[np.float32]:
    """``silu``, ``gelu``, ``gelu_tanh`` or ``relu`` of each number."""

def gate(
    kernels: KernelSet, gate: npt.NDArray[np.float32], up: npt.NDArray[np.float32], activation: str
) -> npt.NDArray[np.float32]:
    """``activate(gate) * up``."""

def soft_cap(kernels: KernelSet, x: npt.NDArray[np.float32], cap: float) -> npt.NDArray[np.float32]:
    """``cap * tanh(x / cap)``."""

def largest(kernels: KernelSet, x: npt.NDArray[np.float32]) -> float:
    """The largest number, -inf of none; NaN where one is not finite."""

class PackedMatrix:
    """A matrix [n_out, n_in] in the layout of our own products by ``kernels`` (the default ones), a copy of ``tensor``.

    Raises UnsupportedError for types without a layout.
    """

    def __init__(self, tensor: Tensor, kernels: KernelSet = ..., *, threads: int = 1) -> None: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def size_bytes(self) -> int: ...
    def values(self) -> npt.NDArray[np.float32]:
        """The matrix as float32, as table look-ups read it."""
    def multiply(self, x: npt.NDArray[np.float32], *, n_workers: int = 1, raw: bool = False) -> npt.NDArray[np.float32]:
        """``x [n, n_in] @ matrix.T``, with x rounded to 8 bits in groups of 32 columns (largest magnitude / 127).

        ``raw``: each worker rounds all rows for itself, as for few rows.  A row's bits depend on that row alone.
        Weights of 32 and 16 bits are multiplied with x as it is, in single precision.  The bits of products with
        quantized weights are the same on every instruction set.  Raises ShapeError.
        """

class ThreadTeam:
    """The team of threads that kernels run on (for tests).

    ``cpus``: the logical processors that they may use; CapacityError when this process has none of them.
    """

    def __init__(self, n_workers: int, *, cpus: Sequence[int] = ()) -> None: ...
    @property
    def n_workers(self) -> int: ...
    def count(self, n: int, *, grain: int = 1, repetitions: int = 1) -> list[int]:
        """How often each of ``n`` indexes was handed out in ``repetitions`` rounds."""

# The cache

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

class PoolGroup:
    """A group of layers in a pool: its block ids, the null block included, and how long rows are needed."""

    def __init__(
        self, n_blocks: int, *, block_bytes: int = 1, window: int = 0, chunk: int = 0, of_source: bool = False
    ) -> None: ...

class CacheEdit:
    """A change of contents that the accounting decided on: ``copy`` of source to target, or ``discard`` of source."""

    @property
    def kind(self) -> Literal["copy", "discard"]: ...
    @property
    def group(self) -> int | None:
        """The group of the blocks; None: states."""
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...

class CachePool:
    """Blocks of every group of layers and slots of recurrent state, under one budget in bytes (None: all of them)."""

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
        """Of blocks and states that someone refers to."""
    @property
    def filled_bytes(self) -> int:
        """Of those, and of free ones that still have contents."""
    @property
    def stats(self) -> CacheStats: ...
    def take_edits(self) -> list[CacheEdit]:
        """Edits since the last call, in their order."""
    def check(self) -> None:
        """Verify every invariant; InternalError names the one that broke."""

class SequenceCache:
    """What one sequence keeps between steps: a table of blocks in each group, and a slot of state.

    It computes at most ``step_tokens`` tokens at a time.
    """

    def __init__(self, pool: CachePool, *, step_tokens: int, salt: bytes = b"") -> None: ...
    @property
    def tables(self) -> list[list[int]]: ...
    @property
    def state(self) -> int | None: ...
    def match(self, token_ids: Sequence[int], max_tokens: int) -> int:
        """Tokens of the longest prefix for which every group has what it needs."""
    def take(self, token_ids: Sequence[int], max_tokens: int) -> int | None:
        """Share that prefix and reserve what the rest needs; None, and no change, when there is no room."""
    def has_room_to_write(self, begin: int, end: int) -> bool: ...
    def prepare(self, begin: int, end: int) -> None:
        """Have private blocks for these positions; CapacityError when there is no room."""
    def advance(self, token_ids: Sequence[int], n_computed: int) -> None:
        """So many are computed: full blocks can be found, and what no later token needs is dropped."""
    def snapshot(self, token_ids: Sequence[int], *, rolling: bool = False) -> None:
        """Keep the state, which is that after these tokens: whole blocks."""
    @property
    def can_fork(self) -> bool: ...
    def fork(self) -> SequenceCache: ...
    def release(self) -> None: ...

# Scheduling on the caller's clock

class SchedulerConfig:
    """Who comes first, and how much fits into a step.

    ``policy``: ``fifo`` (arrival), ``shortest-first`` (length of prompt), ``priority`` (priority, then arrival) or
    ``dynamic`` (fair between keys; of one key by age, length and priority).  ``max_step_*`` are the budgets of a step,
    ``max_running`` that of sequences which hold blocks.  ``kept_back_blocks`` stay free when a sequence is admitted
    (None: one per running sequence), in each group.  After ``max_preemptions`` a sequence is not preempted again for
    want of blocks.  It computes ``turn_tokens`` new tokens before it yields its place to another key.
    Snapshots of recurrent state are at most ``snapshot_tokens`` apart.  ``undivided_prompts``: tokens attend to later
    ones, so that a prompt is computed in one step.
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
    """Tokens of one sequence in one step: ``n_tokens`` from position ``first``, logits of the last ``n_logit_rows``.

    The last ``n_drafted`` may turn out not to be the sequence's.
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
        """Tokens of the sequence's source, which are encoded before the step's rows."""

class Plan:
    """What a step runs.  ``edits`` of the cache's contents are to be made before, in this order."""

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
    """What a sequence was when it was asked for.  ``queue``: ``waiting``, ``running`` or ``following``."""

    @property
    def id(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def drafted(self) -> list[int]:
        """Tokens that may follow: for the next plan, or computed by the last one."""
    @property
    def n_prompt(self) -> int: ...
    @property
    def n_computed(self) -> int: ...
    @property
    def n_cached(self) -> int: ...
    @property
    def n_preemptions(self) -> int:
        """Preemptions for lack of blocks."""
    @property
    def n_yields(self) -> int:
        """Preemptions that gave the place to another key, and pauses."""
    @property
    def has_work(self) -> bool: ...
    @property
    def queue(self) -> str: ...
    @property
    def tables(self) -> list[list[int]]:
        """Blocks of each group; 0 where a block is not needed any more."""
    @property
    def state(self) -> int | None:
        """Its slot, while it runs and layers have a state."""

class SchedulerStats:
    """Sequences in each queue now, and totals since the beginning."""

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
        """Tokens of new sequences that were in the cache."""
    @property
    def n_recovered_tokens(self) -> int:
        """Tokens of preempted sequences that still were in the cache when they came back."""
    @property
    def n_computed_tokens(self) -> int: ...
    @property
    def n_recomputed_tokens(self) -> int:
        """Of those, computed before a preemption."""
    @property
    def n_lost_hit_tokens(self) -> int:
        """Tokens of admitted sequences that layers with full attention still had in the cache, but others had not."""
    @property
    def n_drafted_tokens(self) -> int:
        """Drafted tokens that were computed; ``n_accepted_tokens`` of them were right."""
    @property
    def n_accepted_tokens(self) -> int: ...

class Scheduler:
    """Decides which tokens of which sequences run in a step.  The clock and the tokens come from outside.

    ``Decoder`` has its own; this one is for simulation.  Not thread-safe.
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
    ) -> list[int]:
        """One sequence per choice; the first computes the prompt for all.  ``max_tokens``: prompt and generated.

        ``snapshot_positions``: ends of messages, where recurrent state is kept for whoever comes back to them.
        ``source``: what an encoder reads, where the pool has a group of source texts.

        CapacityError for what can never fit, RequestError for an empty prompt.
        """
    def plan(self, now_s: float) -> Plan: ...
    def commit(self, plan: Plan) -> None:
        """The step ran.  InternalError when anything happened since the plan."""
    def append(self, sequence_id: int, token: int) -> None:
        """The sampled token of a sequence that has no work without it.

        Where it is the next drafted one, which is computed already, the sequence still has no work: the next row of
        logits of its item is that after the token.  Otherwise the rest of the draft is taken back.
        """
    def draft_limit(self, sequence_id: int) -> int:
        """How many drafted tokens the sequence can use in the next plan at most."""
    def draft(self, sequence_id: int, tokens: Sequence[int]) -> None:
        """Tokens that may follow, at most ``draft_limit`` of them; the next plan takes as many as there is room for."""
    def pause(self, sequence_id: int) -> None:
        """Take the sequence's place and blocks until ``resume``: nobody reads its answer."""
    def resume(self, sequence_id: int) -> None: ...
    def remove(self, sequence_id: int) -> None:
        """Finished, cancelled or failed: the sequence's blocks are free."""
    def sequence(self, sequence_id: int) -> SequenceState: ...
    def __contains__(self, sequence_id: int) -> bool: ...
    def batch(self, plan: Plan) -> dict[str, Any]:
        """The plan as the flat arrays that an executor reads; ``groups`` is a list of such."""
    def source_batch(self, plan: Plan) -> dict[str, Any]:
        """The same of the source texts that are encoded before."""
    @property
    def stats(self) -> SchedulerStats: ...
    def check(self) -> None:
        """Verify every invariant; InternalError names the one that broke."""

# Sampling

@final
class Sampler:
    """Draws the tokens of one choice.  A draw depends on logits, tokens and (seed, choice, position) alone.

    RequestError for parameters that do not fit the vocabulary.
    """

    def __init__(self, params: SamplingParams, vocab: VocabInfo, choice: int = 0) -> None: ...
    def sample(
        self,
        logits: npt.NDArray[np.float32],
        tokens: Sequence[int],
        n_prompt: int,
        mask: npt.NDArray[np.uint32] | None = None,
        maxima: npt.NDArray[np.float32] | None = None,
    ) -> SampledToken:
        """The next token after ``tokens``, of which the first ``n_prompt`` are the prompt.

        ``logits [n_vocab]``; ``-inf`` excludes.  ``mask [(n_vocab + 31) // 32]``: bit ``i % 32`` of word ``i // 32``
        says whether token i may be drawn.  ``maxima [(n_vocab + 63) // 64]``: the largest of every 64 logits, NaN where
        one is not finite, where that is known; it saves looking at all of them.  RequestError for NaN or ``+inf``, or
        when no token is left; ShapeError for another size.
        """
    def distribution(
        self,
        logits: npt.NDArray[np.float32],
        tokens: Sequence[int],
        n_prompt: int,
        mask: npt.NDArray[np.uint32] | None = None,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """What ``sample`` would draw from: ids and probabilities of the tokens that survive the chain."""

@final
class StopMatcher:
    """Turns the bytes of tokens into text that is safe to show.

    Holds back incomplete characters and what may become one of the ``stop`` strings.  Ill-formed UTF-8 becomes U+FFFD
    as with ``errors="replace"``.  The stop string whose end comes first wins, of those that end together the longest.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool = False) -> None: ...
    def push(self, data: bytes) -> str:
        """More bytes; the text that may be shown now.  Nothing after a stop."""
    def finish(self) -> str:
        """The end of the bytes: what was held back."""
    @property
    def stopped(self) -> bool: ...
    @property
    def matched(self) -> int | None:
        """Index of the stop string that ended the text."""

def log_sum_exp(logits: npt.NDArray[np.float32]) -> float:
    """``log(sum(exp(logits)))`` of one row."""

def log_probs_of(logits: npt.NDArray[np.float32], id: int, n_top: int = 0) -> SampledToken:
    """Log-softmax of one row at ``id`` and at the ``n_top`` likeliest."""

def philox4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 (Salmon et al. 2011): four words of counter, two of key, four words out."""

def token_random(seed: int, choice: int, position: int) -> tuple[float, float]:
    """The numbers in [0, 1) for drawing one token, and for deciding about its top choices (XTC)."""

# Drafting and made-up models

@final
class StepCost:
    """Seconds of a step by its number of rows, as they were lately."""

    def __init__(self) -> None: ...
    def took(self, n_rows: int, seconds: float, all_have_logits: bool = True) -> None:
        """A step of so many rows took so long; one with rows of a prompt has no logits of them and is cheaper."""
    def seconds(self, n_rows: int) -> float:
        """What is expected: never less for more rows; little more for more than were ever seen."""

@final
class Speculator:
    """How deep drafts are.  A decoder has its own; this one is for simulation."""

    def __init__(self, drafters: Sequence[Drafter], *, draft_max: int = 16, draft_min: int = 0) -> None: ...
    def propose(
        self,
        texts: Sequence[tuple[int, Sequence[int]]],
        n_rows: int,
        forced: Sequence[Sequence[int]] = [],
        masks: Sequence[Sequence[int]] = [],
        n_prompt: int = 0,
    ) -> list[list[int]]:
        """Drafts for sequences (id, text) that are in a step of ``n_rows`` rows; all of them are planned.

        ``forced``, ``masks``: of each, what a grammar forces, and the words of the mask behind that.  ``n_prompt``:
        tokens of each text that are its prompt; at most 1000 more follow.
        """
    def forget(self, sequence_id: int, answer: Sequence[int]) -> None:
        """A sequence has ended."""
    def judge(self, sequence_id: int, is_right: bool) -> None:
        """Whether the next token of the sequence's draft was the one; nothing more after a wrong one."""
    def took(self, n_rows: int, seconds: float, all_have_logits: bool = True) -> None:
        """A step of so many rows took so long, as for :class:`StepCost`."""

@final
class SuffixAutomaton:
    """A growing text (Blumer et al. 1985)."""

    def __init__(self) -> None: ...
    def append(self, token: int) -> None: ...
    @property
    def match(self) -> tuple[int, int]:
        """Length of the longest end of the text that occurred before, and the position of what followed there."""
    @property
    def n_states(self) -> int: ...

@final
class AnswerCursor:
    """How far a text was looked up in an ``AnswerStore``."""

    def __init__(self) -> None: ...

@final
class AnswerStore:
    """Earlier answers, ``most_tokens`` at most, those of a salt for its own texts alone."""

    def __init__(self, most_tokens: int) -> None: ...
    def add(self, salt: bytes, answer: Sequence[int]) -> None: ...
    def find(self, salt: bytes, tokens: Sequence[int], cursor: AnswerCursor) -> tuple[int, list[int]]:
        """How much of the end of ``tokens`` occurs in an answer, and what followed there: -1 is the end of an answer.

        ``cursor``: of the same text, as far as it was before.
        """
    @property
    def n_tokens(self) -> int: ...

@final
class ScriptedDrafter(Drafter):
    """Proposes what follows in the first of ``scripts`` (prompt and answer) that begins with the sequence.

    Each position is right with the probability ``agreement``, decided by a hash; wrong tokens are the next id.  To test
    and measure speculation.  ``token_read_s``: it tells that reading a token takes so long, once for each sequence.
    RequestError where ``agreement`` is not from 0 to 1.
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
    """A model without weights, for tests: its logits are a hash of the tokens that its layers see through the cache.

    ``layers``: (window, chunk) of each layer that keeps rows, 0 for none.  A layer's hash of what it sees: h = 0; for
    each token h = mix(h * 31 + token + 1).  With ``n_state`` numbers a recurrent layer keeps that of all tokens in one
    of ``n_states`` slots.  The row's hash r is the layer's; of several, in the order of the cache's groups and the
    recurrent one last, r = 0; for each r = mix(r * 31 + h + 1).  Logit v is the upper 24 bits of mix(r + v) over 2^21,
    with the finalizer of SplitMix64 as mix.  ``fail_on``: a step with this token throws CapacityError; ``nan_after``:
    the logits of a sequence that has it are NaN; ``step_s``: how long a step takes; ``fail_copy``: this copy of a block
    or state throws CapacityError.  ``reads_source``: one more layer sees all of a source text.  ``shows_features``: it
    leaves r of every row for a head; ``reads_features``: it is a head, whose r is mix(r' * 31 + token + 1) of the r'
    that comes with the token.
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
    ) -> None: ...
