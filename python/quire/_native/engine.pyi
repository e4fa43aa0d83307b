"""Sampling and decoding."""

from collections.abc import Mapping, Sequence
from typing import Literal, final

import numpy as np
import numpy.typing as npt
from quire._native.graph import Executor
from quire._native.kv import CacheStats
from quire._native.scheduler import DynamicWeights

# Sampling

@final
class VocabInfo:
    """What sampling and text output need to know of a vocabulary.

    ``eog_ids`` end a generation.  ``token_bytes [n_vocab]`` are the bytes each token shows, empty for control tokens.
    RequestError where they do not fit together.
    """

    def __init__(self, n_vocab: int, eog_ids: Sequence[int], token_bytes: Sequence[bytes]) -> None: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def eog_ids(self) -> list[int]: ...

@final
class SamplingParams:
    """The native form of ``quire.SamplingParams``, with the same names, defaults and limits; see there."""

    # BEGIN SamplingParams (written by ci/make_params.py)
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    n: int
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    tfs_z: float
    top_n_sigma: float | None
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int | None
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str]
    logit_bias: Sequence[tuple[int, float]]
    allowed_token_ids: Sequence[int] | None
    bad_token_ids: Sequence[int]
    seed: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    processed_logprobs: bool
    samplers: Sequence[str]
    # END SamplingParams
    def __init__(self) -> None: ...
    def validate(self, vocab: VocabInfo | None = None) -> None:
        """RequestError naming the field that does not hold (with ``vocab``: also ids outside the vocabulary)."""

@final
class SampledToken:
    """A token, its log-probability (0 where none was asked for), and the likeliest with theirs."""

    @property
    def id(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top(self) -> list[tuple[int, float]]: ...

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

def log_sum_exp(logits: npt.NDArray[np.float32]) -> float:
    """``log(sum(exp(logits)))`` of one row."""

def log_probs_of(logits: npt.NDArray[np.float32], id: int, n_top: int = 0) -> SampledToken:
    """Log-softmax of one row at ``id`` and at the ``n_top`` likeliest."""

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

def philox4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 (Salmon et al. 2011): four words of counter, two of key, four words out."""

def token_random(seed: int, choice: int, position: int) -> tuple[float, float]:
    """The numbers in [0, 1) for drawing one token, and for deciding about its top choices (XTC)."""

def default_sampling_order() -> list[str]:
    """Names of the stages of the sampling chain."""

# Decoding

@final
class Request:
    """What a decoder is asked for: the ids of a prompt, and how to go on (a copy of ``params``).

    ``salt``: only requests of one salt share cached blocks.  ``key``: requests of one key share their part of the
    machine under the dynamic policy.  ``external_logits``: every row of logits comes out as an event and waits for
    ``Decoder.provide_logits``.  ``prompt_logits``: nothing is generated (``params`` None); the prompt's rows come out.
    ``grammar``: every token is drawn through a mask that ``Decoder.provide_mask`` brings.  ``visible_tokens``: what
    some tokens show in this request's text instead of the vocabulary's ``token_bytes``; stop tokens show nothing still.
    ``embedding``: nothing is generated (``params`` None); the prompt's hidden states come out: each token's, their
    mean, the first token's, or the last's.  ``announced``: its first event tells that it has left the queue, others how
    much of its prompt is read.
    ``snapshot_positions``: ends of messages, where recurrent state is kept for whoever comes back to them.
    ``second_text``: position of the first token of a pair's second text, for encoders with types of tokens.
    ``speculation``: who may propose tokens: a drafter's name, ``auto`` for all, ``off``, or empty for the decoder's
    default.  ``prediction``: what the answer is expected to be; it is looked up unless ``speculation`` says otherwise.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        external_logits: bool = False,
        prompt_logits: bool = False,
        grammar: bool = False,
        visible_tokens: Mapping[int, bytes] = {},
        embedding: Literal["none", "mean", "cls", "last", "taps"] | None = None,
        announced: bool = False,
        snapshot_positions: Sequence[int] = [],
        second_text: int | None = None,
        speculation: str = "",
        prediction: Sequence[int] = [],
    ) -> None: ...

@final
class MaskJob:
    """A mask to be computed: that of generated token number ``position``.

    ``tokens``: generated before it, as far as that is new; whoever was told others in their places forgets those.  The
    last ``n_hoped`` of them may turn out to be others.
    """

    @property
    def request_id(self) -> int: ...
    @property
    def choice(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def n_hoped(self) -> int: ...

@final
class Timings:
    """Seconds in the queue, from there to the first token, and from there to the end."""

    @property
    def queue_s(self) -> float: ...
    @property
    def prefill_s(self) -> float: ...
    @property
    def decode_s(self) -> float: ...

@final
class Event:
    """What happened to a choice of a request.

    ``delta``: ``token_ids`` drawn, ``text`` that may be shown, ``logprobs`` one per token where asked for; the first of
    choice 0 carries ``prompt_logprobs`` (of the prompt's tokens from the second on).  ``logits``: a row ``[n_vocab]``
    that waits for ``provide_logits``.  ``prompt_logits``: rows ``[n, n_vocab]`` from ``first_position`` on.
    ``embedding``: of the prompt.  ``admitted``: it runs from now on.  ``progress``: ``n_read_tokens`` of its prompt
    are read.  ``finish``: the last one of a choice.  ``error``: the last one of a request, all its choices included.
    """

    @property
    def request_id(self) -> int: ...
    @property
    def choice(self) -> int: ...
    @property
    def kind(
        self,
    ) -> Literal["delta", "logits", "prompt_logits", "embedding", "admitted", "progress", "finish", "error"]: ...
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[SampledToken]: ...
    @property
    def prompt_logprobs(self) -> list[SampledToken]: ...
    @property
    def logits(self) -> npt.NDArray[np.float32] | None: ...
    @property
    def embedding(self) -> npt.NDArray[np.float32] | None:
        """``[n_hidden]``, or ``[n_tokens, n_hidden]`` unpooled, in an event of that kind."""
    @property
    def first_position(self) -> int:
        """Position of the token whose row ``logits`` begins with."""
    @property
    def finish_reason(self) -> Literal["stop", "length", "cancelled"] | None: ...
    @property
    def stop_reason(self) -> int | str | None:
        """The token (end of generation or stop token) or the stop string that ended the choice."""
    @property
    def n_prompt_tokens(self) -> int: ...
    @property
    def n_cached_tokens(self) -> int:
        """Tokens of the prompt that were found in the cache."""
    @property
    def n_read_tokens(self) -> int:
        """Tokens of the prompt that are read so far, those found in the cache included."""
    @property
    def n_generated_tokens(self) -> int: ...
    @property
    def n_drafted_tokens(self) -> int:
        """Tokens that were computed because a drafter proposed them; ``n_accepted_tokens`` are in the answer."""
    @property
    def n_accepted_tokens(self) -> int: ...
    @property
    def timings(self) -> Timings: ...
    @property
    def error_kind(self) -> str | None:
        """Name of the class in ``quire.errors``."""
    @property
    def error(self) -> str: ...

@final
class DecoderConfig:
    """``n_ctx``: tokens of a prompt and its answer at most.  The rest as in ``SchedulerConfig``.

    ``max_step_tokens`` and ``max_running`` None: the executor's limits.  ``step_s``: about so long may a step take,
    where fewer tokens (64 at least) make it shorter; None: any time.  ``speculation``: of requests that do not say, see
    ``Request``.  ``draft_max``: tokens of a draft at most (64 or fewer); ``draft_min``: so many whatever they cost.
    ``decoder_start``: of an encoder-decoder model, the token that every answer begins after; the prompt, of ``n_ctx``
    tokens at most, is what the encoder reads.
    """

    def __init__(
        self,
        *,
        n_ctx: int,
        policy: str = "fifo",
        weights: DynamicWeights = ...,
        max_step_tokens: int | None = None,
        max_running: int | None = None,
        kept_back_blocks: int | None = None,
        max_preemptions: int = 4,
        snapshot_tokens: int = 1024,
        step_s: float | None = None,
        speculation: str = "off",
        draft_max: int = 16,
        draft_min: int = 0,
        decoder_start: int | None = None,
    ) -> None: ...
    @property
    def decoder_start(self) -> int | None: ...
    @property
    def step_s(self) -> float | None: ...
    @property
    def speculation(self) -> str: ...
    @property
    def draft_max(self) -> int: ...
    @property
    def draft_min(self) -> int: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def policy(self) -> str: ...
    @property
    def weights(self) -> DynamicWeights: ...
    @property
    def max_step_tokens(self) -> int | None: ...
    @property
    def max_running(self) -> int | None: ...
    @property
    def kept_back_blocks(self) -> int | None: ...
    @property
    def max_preemptions(self) -> int: ...
    @property
    def snapshot_tokens(self) -> int: ...

class Drafter:
    """Proposes tokens that may follow a sequence (docs/speculation.md).  It belongs to the decoder that got it."""

    @property
    def name(self) -> str: ...

@final
class LookupDrafter(Drafter):
    """Proposes what followed the last time the end of the text occurred in prompt, answer or prediction."""

    def __init__(self) -> None: ...

@final
class GrammarDrafter(Drafter):
    """Proposes the tokens that a grammar leaves no choice in, and others what follows them."""

    def __init__(self) -> None: ...

@final
class ModelDrafter(Drafter):
    """Proposes what a smaller model would say (Leviathan et al. 2023, Chen et al. 2023), its likeliest tokens.

    ``n_ctx``: positions that it has.  UnsupportedError for a model with a recurrent state, or without logits.
    """

    def __init__(self, executor: Executor | FakeExecutor, *, n_ctx: int) -> None: ...

@final
class HeadDrafter(Drafter):
    """Proposes what a head predicts that was trained with the model, of the model's own features (DeepSeek-V3 2024,
    EAGLE-3 2025).

    ``n_ctx``: positions that it has.  ``tokens``: the model's token of each one that the head has logits of; empty: the
    same.  ShapeError unless the head leaves features as it reads them, and ``tokens`` are as many as its logits; the
    decoder's model must leave as many features.
    """

    def __init__(
        self,
        executor: Executor | FakeExecutor,
        *,
        n_ctx: int,
        name: str = "mtp",
        tokens: Sequence[int] = (),
    ) -> None: ...

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
class DrafterStats:
    """Of one drafter: drafts and their tokens that were computed, how many of them were right, by position in the draft
    as well, and seconds it took to propose."""

    @property
    def name(self) -> str: ...
    @property
    def n_drafts(self) -> int: ...
    @property
    def n_drafted_tokens(self) -> int: ...
    @property
    def n_accepted_tokens(self) -> int: ...
    @property
    def drafted_at(self) -> list[int]: ...
    @property
    def accepted_at(self) -> list[int]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def failure(self) -> str:
        """Why it is not asked any more; empty while it is."""

@final
class DecoderStats:
    """Figures as of the last step: those of ``SchedulerStats``, the pool's, and the decoder's own totals."""

    @property
    def drafters(self) -> list[DrafterStats]:
        """In the order in which they are asked."""

    @property
    def n_waiting(self) -> int: ...
    @property
    def n_running(self) -> int: ...
    @property
    def n_following(self) -> int: ...
    @property
    def n_paused(self) -> int:
        """Sequences that wait because nobody reads their answers."""
    @property
    def n_preemptions(self) -> int: ...
    @property
    def n_yields(self) -> int:
        """Preemptions that gave the place to another key."""
    @property
    def n_prefix_hit_tokens(self) -> int: ...
    @property
    def n_recovered_tokens(self) -> int: ...
    @property
    def n_computed_tokens(self) -> int: ...
    @property
    def n_recomputed_tokens(self) -> int: ...
    @property
    def n_lost_hit_tokens(self) -> int: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def n_failed_steps(self) -> int: ...
    @property
    def n_step_sequences(self) -> int:
        """Sequences in a step, summed over the steps."""
    @property
    def n_requests(self) -> int:
        """Active now."""
    @property
    def n_generated_tokens(self) -> int: ...
    @property
    def n_masked_tokens(self) -> int:
        """Of the generated ones, drawn through a grammar's mask."""
    @property
    def n_late_masks(self) -> int:
        """Of those, drawn later than they could have been without it."""
    @property
    def n_usable_blocks(self) -> int:
        """As many as the budget holds, of the size of a block in every group; ``n_free_blocks`` are not held."""
    @property
    def n_free_blocks(self) -> int: ...
    @property
    def n_published_blocks(self) -> int:
        """Summed over the groups, as ``n_evictions``."""
    @property
    def n_evictions(self) -> int: ...
    @property
    def cache(self) -> CacheStats:
        """In bytes."""
    @property
    def n_failed_checks(self) -> int:
        """How often the pool's invariants did not hold when the decoder went idle; ``failed_check`` says which."""
    @property
    def failed_check(self) -> str: ...

@final
class Decoder:
    """A native thread that owns an executor: it plans, runs, samples, and never takes the GIL.

    Thread-safe; events go to one consumer, in order: a choice's deltas, then its ``finish``.  ShapeError when the
    vocabulary is not the executor's, CapacityError for a config beyond the executor's limits.  ``drafters``: in the
    order in which they are asked.
    """

    def __init__(
        self,
        executor: Executor | FakeExecutor,
        vocab: VocabInfo,
        config: DecoderConfig,
        drafters: Sequence[Drafter] = [],
    ) -> None: ...
    def submit(self, request: Request) -> int:
        """The request's id.  RequestError or CapacityError for what can never run, and after ``close``."""
    def cancel(self, request_id: int) -> None:
        """Each choice that has not ended finishes as ``cancelled``; an unknown request has ended already."""
    def pause(self, request_id: int) -> None:
        """Take the request's places until ``resume``, as nobody reads its answer."""
    def resume(self, request_id: int) -> None: ...
    def provide_logits(self, request_id: int, choice: int, logits: npt.NDArray[np.float32]) -> None:
        """The answer ``[n_vocab]`` to an event of kind ``logits``.

        ShapeError for another size.  An answer that nobody waits for is an error of its request.
        """
    def wait_mask_job(self, timeout_s: float) -> MaskJob | None:
        """The next mask to compute; None after ``timeout_s`` seconds, and at once after ``close``.

        For any number of threads: a choice has at most one job at a time.
        """
    def provide_mask(
        self,
        request_id: int,
        choice: int,
        position: int,
        mask: npt.NDArray[np.uint32],
        forced: Sequence[int] = [],
    ) -> int | None:
        """The answer to a job, as ``Sampler.sample`` takes it; a request that has ended takes nothing.

        ``forced``: tokens from ``position`` on that are the only ones which their own masks would allow; the mask is of
        the token behind them.  The job goes on with the mask behind the token that is returned, which may turn out to
        be another; None: it is done.

        ShapeError for another size, RequestError for a mask that was not asked for.
        """
    def decline_mask(self, request_id: int, choice: int) -> None:
        """A job is done without the mask behind its hoped tokens; if they are drawn, that is asked for again."""
    def wait(self, timeout_s: float, *, gather_s: float = 0.0) -> list[Event]:
        """All events so far, after at most ``timeout_s`` seconds; empty then, and at once after the last one.

        Less than ``gather_s`` seconds after the last call ended, deltas are let to gather; other events come at once.
        """
    @property
    def event_fd(self) -> int:
        """Readable while events wait, and after ``close``; for event loops.  Never read it: ``wait(0)`` does."""
    @property
    def n_steps(self) -> int:
        """Steps run so far, at any time."""
    @property
    def n_ctx(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def stats(self) -> DecoderStats: ...
    def close(self) -> None:
        """Cancel every request, join the thread, give all blocks back.  The last events still can be waited for."""

@final
class FakeExecutor:
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
