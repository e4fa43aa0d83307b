"""Sampling and decoding."""

from collections.abc import Mapping, Sequence
from typing import Literal, final

import numpy as np
import numpy.typing as npt
from quire._native.graph import ExecutorBase
from quire._native.kv import CacheStats

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
    ``media``: position, digest and rows ``[n, width]`` of images in the prompt, in order.  ``places``: ``[3, tokens]``
    places of the prompt's tokens in time, height and width; None: their positions.
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
        media: Sequence[tuple[int, bytes, npt.NDArray[np.float32]]] = [],
        places: npt.NDArray[np.int32] | None = None,
    ) -> None: ...

@final
class MaskJob:
    """A mask to be computed: that of generated token number ``position``.

    ``tokens``: generated before it, as far as that is new; whoever was told others in their places forgets those.  The
    last ``n_drafted`` of them may turn out to be others.
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
    def n_drafted(self) -> int: ...

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

class DynamicWeights:
    """The weights of the dynamic policy.

    Among the requests of one key, in seconds of waiting: ``priority_s``, one level of priority, and, against it,
    ``token_s``, one pending token.  Between keys ``turn_priority`` levels of priority are worth one turn.
    """

    def __init__(self, *, priority_s: float = 10.0, token_s: float = 0.001, turn_priority: float = 50.0) -> None: ...
    @property
    def priority_s(self) -> float: ...
    @property
    def token_s(self) -> float: ...
    @property
    def turn_priority(self) -> float: ...

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

    def __init__(self, executor: ExecutorBase, *, n_ctx: int) -> None: ...

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
        executor: ExecutorBase,
        *,
        n_ctx: int,
        name: str = "mtp",
        tokens: Sequence[int] = (),
    ) -> None: ...

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
        executor: ExecutorBase,
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
        """A job is done without the mask behind its drafted tokens; if they are drawn, that is asked for again."""
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
