"""Sampling and decoding."""

from collections.abc import Mapping, Sequence
from typing import Literal, final

import numpy as np
import numpy.typing as npt
from quire._native.graph import ExecutorBase, LowRankAdapter
from quire._native.kv import CacheStats

# Sampling

@final
class VocabInfo:
    """The vocabulary for sampling and text output.

    Args:
        eog_ids: Tokens that end an answer.
        token_bytes: [n_vocab], the bytes of each token, b"" for control tokens.

    Raises:
        RequestError: The arguments are inconsistent.
    """

    def __init__(self, n_vocab: int, eog_ids: Sequence[int], token_bytes: Sequence[bytes]) -> None: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def eog_ids(self) -> list[int]: ...

@final
class SamplingParams:
    """The native form of ``quire.SamplingParams``, with the same names, defaults and limits."""

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
    adaptive_target: float | None
    adaptive_decay: float
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
    banned_strings: Sequence[str]
    seed: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    processed_logprobs: bool
    samplers: Sequence[str]
    # END SamplingParams
    def __init__(self) -> None: ...
    def validate(self, vocab: VocabInfo | None = None) -> None:
        """Raise RequestError naming an invalid field; with ``vocab`` also check that ids are in the vocabulary."""

@final
class SampledToken:
    """A token, its log-probability (0 if not requested), and the most likely tokens with theirs."""

    @property
    def id(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top(self) -> list[tuple[int, float]]: ...

def default_sampling_order() -> list[str]:
    """Return the names of the stages of the sampling chain."""

# Decoding

@final
class Request:
    """A request to a decoder.

    Args:
        token_ids: The prompt.
        params: Sampling parameters, copied; None if nothing is generated.
        salt: Only requests with the same salt share cached blocks.
        priority: Higher runs first, under policies with priorities.
        key: Requests with the same key share one part of the machine under the dynamic policy.
        external_logits: Return each row of logits as an event and wait for ``Decoder.provide_logits``.
        prompt_logits: Generate nothing and return the prompt's logits; needs ``params`` None.
        grammar: Sample each token with a mask from ``Decoder.provide_mask``.
        visible_tokens: Bytes that replace the vocabulary's ``token_bytes`` in this request's text.  Stop tokens stay
            invisible.
        embedding: Generate nothing and return hidden states of the prompt: "none" for those of each token, their
            mean, those of the first ("cls") or last token, or for each token those after all tapped layers ("taps");
            needs ``params`` None.
        announced: Send an event when the request leaves the queue, and progress while its prompt is processed.
        snapshot_positions: Where recurrent state is kept, besides ends of messages, so that other prompts can continue
            there.
        second_text: Position of the first token of a pair's second text, for encoders with token types.
        speculation: The drafters that may propose tokens: one drafter's name, ``auto`` for all, ``off``, or "" for the
            decoder's default.
        prediction: The expected answer; drafts are looked up in it unless ``speculation`` excludes that.
        media: Position, digest and rows ``[n, width]`` of each image in the prompt, in order.
        is_causal: For each of ``media``: its rows see earlier ones only, also in layers with ``bidirectional_media``;
            empty: none of them.
        places: ``[3, tokens]``, the position of each prompt token in time, height and width; None if all three are its
            position.
        bad_sequences: Tokens that no answer contains in this order.
        steering: Numbers that the model reads beside each token, after those of media.
        adapters: Low-rank adapters with their scales and the first position that each changes, in the order in which
            they are added.
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
        embedding: Literal["none", "mean", "cls", "last", "max", "taps"] | None = None,
        announced: bool = False,
        snapshot_positions: Sequence[int] = [],
        second_text: int | None = None,
        speculation: str = "",
        prediction: Sequence[int] = [],
        media: Sequence[tuple[int, bytes, npt.NDArray[np.float32]]] = [],
        is_causal: Sequence[bool] = [],
        places: npt.NDArray[np.int32] | None = None,
        bad_sequences: Sequence[Sequence[int]] = [],
        adapters: Sequence[tuple[LowRankAdapter, float, int]] = [],
        steering: Sequence[float] = [],
    ) -> None: ...

@final
class MaskJob:
    """A request for the mask of generated token number ``position``.

    ``tokens`` are the generated tokens before it that are new since the choice's last job; they replace any that were
    sent before for the same positions.  The last ``n_drafted`` of them are drafted and may still be rejected.
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
    """An event of a choice of a request.

    Kinds:

    - ``delta``: sampled ``token_ids``, ``text`` that is safe to show, and one of ``logprobs`` per token if requested.
      The first delta of choice 0 has ``prompt_logprobs`` for the prompt's tokens from the second on.
    - ``logits``: a row ``[n_vocab]`` that waits for ``provide_logits``.
    - ``prompt_logits``: rows ``[n, n_vocab]``, starting at ``first_position``.
    - ``embedding``: the prompt's embedding.
    - ``admitted``: the request has left the queue.
    - ``progress``: ``n_read_tokens`` tokens of the prompt are processed.
    - ``finish``: the last event of a choice.
    - ``error``: the last event of a request; it ends all its choices.
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
        """The embedding ``[n_hidden]``, or ``[n_tokens, n_hidden]`` unpooled, in an event of this kind."""
    @property
    def first_position(self) -> int:
        """The position of the token for the first row of ``logits``."""
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
        """Tokens of the prompt that are processed so far, including those found in the cache."""
    @property
    def n_host_tokens(self) -> int:
        """finish: of ``n_cached_tokens``, those found in memory of the host; ``n_disk_tokens`` were found on disk."""
    @property
    def n_disk_tokens(self) -> int: ...
    @property
    def n_generated_tokens(self) -> int: ...
    @property
    def n_drafted_tokens(self) -> int:
        """Drafted tokens that were computed, ``n_accepted_tokens`` of which are in the answer."""
    @property
    def n_accepted_tokens(self) -> int: ...
    @property
    def timings(self) -> Timings: ...
    @property
    def error_kind(self) -> str | None:
        """The name of the class in ``quire.errors``."""
    @property
    def error(self) -> str: ...

class DynamicWeights:
    """The weights of the dynamic policy.

    Attributes:
        priority_s: A level of priority among requests of one key, in seconds of waiting.
        token_s: The penalty of a pending token, in seconds of waiting.
        turn_priority: The levels of priority that are worth one turn between keys.
    """

    def __init__(self, *, priority_s: float = 10.0, token_s: float = 0.001, turn_priority: float = 50.0) -> None: ...
    @property
    def priority_s(self) -> float: ...
    @property
    def token_s(self) -> float: ...
    @property
    def turn_priority(self) -> float: ...

@final
class CacheTiersConfig:
    """The tiers below the pool of blocks: memory of the host, then files in a folder (docs/cache.md).

    Args:
        ram_bytes: Budget of the host's memory; 0 for no such tier.
        disk_folder: Folder of files; "" for no such tier.
        disk_bytes: Budget of the folder, for the files of all models.
        model: Names all that the cache's contents depend on beside their names: weights, adapters, changed keys,
            kernels.  The types, the layout and the version of the format are added to it.
        always_reads: Read contents even if computing them is faster.
    """

    def __init__(
        self,
        *,
        ram_bytes: int = 0,
        disk_folder: str = "",
        disk_bytes: int = 0,
        model: bytes = b"",
        always_reads: bool = False,
    ) -> None: ...

@final
class DecoderConfig:
    """The configuration of a decoder; arguments not listed here are those of ``SchedulerConfig``.

    Args:
        n_ctx: Maximum number of tokens of a prompt and its answer together.
        max_step_tokens: None for the executor's limit.
        max_running: None for the executor's limit.
        step_s: Target duration of a step in seconds, reached by processing fewer tokens (at least 64); None for none.
        speculation: Default for requests without their own, see ``Request``.
        draft_max: Maximum number of tokens of a draft, at most 64.
        draft_min: Number of tokens drafted regardless of their cost.
        decoder_start: The token before every answer of an encoder-decoder model, whose encoder reads the prompt of at
            most ``n_ctx`` tokens.
        tiers: Tiers of the cache below the pool of blocks.
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
        tiers: CacheTiersConfig = ...,
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
    """Proposes tokens that may follow a sequence (docs/speculation.md).  A decoder takes it over."""

    @property
    def name(self) -> str: ...

@final
class LookupDrafter(Drafter):
    """Proposes the tokens that followed the last occurrence of the text's end in prompt, answer or prediction."""

    def __init__(self) -> None: ...

@final
class GrammarDrafter(Drafter):
    """Proposes the tokens that a grammar forces; other drafters propose the tokens after them."""

    def __init__(self) -> None: ...

@final
class ModelDrafter(Drafter):
    """Proposes a smaller model's most likely tokens (Leviathan et al. 2023, Chen et al. 2023).

    ``n_ctx`` is the number of positions it has; ``tiers`` are below its own cache.  Raises UnsupportedError for a model
    with recurrent state or without logits.
    """

    def __init__(self, executor: ExecutorBase, *, n_ctx: int, tiers: CacheTiersConfig = ...) -> None: ...
    @property
    def tiers(self) -> CacheTiersStats | None:
        """The tiers below its cache; None if there are none."""

@final
class HeadDrafter(Drafter):
    """Proposes the predictions of a head trained on the model's features (DeepSeek-V3 2024, EAGLE-3 2025).

    The decoder's model must produce as many features as the head reads.

    Args:
        n_ctx: The number of positions the head has.
        tokens: The model's token for each of the head's logits; empty if both have the same vocabulary.

    Raises:
        ShapeError: The head produces another number of features than it reads, or ``tokens`` does not have one entry
            per logit.
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
    """Statistics of one drafter: computed drafts and tokens, how many were right (also by position in the draft), and
    the time spent on proposing."""

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
        """The reason why it is no longer used, or ""."""

@final
class TierStats:
    """Figures of one tier of the cache; numbers are of entries: blocks of a group, or recurrent states."""

    @property
    def budget_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int:
        """On a disk, bytes of all models, as far as this process knows."""
    @property
    def n_entries(self) -> int:
        """On a disk, entries that this process wrote or read."""
    @property
    def n_written(self) -> int: ...
    @property
    def n_read(self) -> int: ...
    @property
    def n_dropped(self) -> int:
        """Entries that found no room, on the disk or in the queue of those to be written."""
    @property
    def n_damaged(self) -> int:
        """Files that were not what their names said; they were removed."""
    @property
    def n_evicted(self) -> int: ...
    @property
    def written_bytes(self) -> int: ...
    @property
    def read_bytes(self) -> int: ...

@final
class CacheTiersStats:
    """Figures of the tiers below the pool; None for a tier that is not used."""

    @property
    def host(self) -> TierStats | None: ...
    @property
    def disk(self) -> TierStats | None: ...
    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be written."""
    @property
    def n_refused(self) -> int:
        """Prefixes that were not read because computing them is faster."""
    @property
    def read_bytes_per_s(self) -> float:
        """Speed of the disk; 0 while it is unknown, like ``compute_tokens_per_s``."""
    @property
    def compute_tokens_per_s(self) -> float: ...

@final
class DecoderStats:
    """Statistics after the last step: those of ``SchedulerStats``, of the pool, and the decoder's own totals."""

    @property
    def drafters(self) -> list[DrafterStats]:
        """The drafters in the order in which they are used."""

    @property
    def n_waiting(self) -> int: ...
    @property
    def n_waiting_tokens(self) -> int: ...
    @property
    def n_running(self) -> int: ...
    @property
    def n_following(self) -> int: ...
    @property
    def n_paused(self) -> int:
        """Sequences that are paused because nobody reads their answers."""
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
    def n_host_hit_tokens(self) -> int:
        """Tokens of admitted sequences that were in memory of the host; ``n_disk_hit_tokens`` were on disk."""
    @property
    def n_disk_hit_tokens(self) -> int: ...
    @property
    def tiers(self) -> CacheTiersStats | None:
        """The tiers below the pool; None if there are none."""
    @property
    def n_steps(self) -> int: ...
    @property
    def n_failed_steps(self) -> int: ...
    @property
    def n_step_sequences(self) -> int:
        """The number of sequences per step, summed over all steps."""
    @property
    def n_requests(self) -> int:
        """The number of active requests."""
    @property
    def n_generated_tokens(self) -> int: ...
    @property
    def n_masked_tokens(self) -> int:
        """Generated tokens that were sampled with a grammar's mask."""
    @property
    def n_late_masks(self) -> int:
        """Tokens that had to wait for their mask."""
    @property
    def n_usable_blocks(self) -> int:
        """The blocks that the budget holds, counted as a block in every group; ``n_free_blocks`` of them are free."""
    @property
    def n_free_blocks(self) -> int: ...
    @property
    def n_published_blocks(self) -> int:
        """The published blocks of all groups; ``n_evictions`` is summed likewise."""
    @property
    def n_evictions(self) -> int: ...
    @property
    def cache(self) -> CacheStats:
        """The use of the cache in bytes."""
    @property
    def n_pins(self) -> int:
        """Pinned prefixes, which hold ``n_pinned_bytes`` of at most ``n_most_pinned_bytes``."""
    @property
    def n_pinned_bytes(self) -> int: ...
    @property
    def n_most_pinned_bytes(self) -> int: ...
    @property
    def n_pins_given_way(self) -> int:
        """Pins that were dropped so that a request could run."""
    @property
    def n_failed_checks(self) -> int:
        """How often the pool's invariants were broken when the decoder went idle; ``failed_check`` names one."""
    @property
    def failed_check(self) -> str: ...

def prefix_note(path: str) -> bytes:
    """Return the note in a file of ``Decoder.export_prefix``.  LoadError if it is missing or damaged."""

@final
class Decoder:
    """A native thread that owns an executor: it plans, runs and samples, and never takes the GIL.

    It is thread-safe.  Events go to one consumer, in order: a choice's deltas, then its ``finish``.  ``drafters`` are
    used in the given order.

    Raises:
        ShapeError: The vocabulary is not the executor's.
        CapacityError: The configuration exceeds the executor's limits.
    """

    def __init__(
        self,
        executor: ExecutorBase,
        vocab: VocabInfo,
        config: DecoderConfig,
        drafters: Sequence[Drafter] = [],
    ) -> None: ...
    def submit(self, request: Request) -> int:
        """Submit a request and return its id.  Raises RequestError or CapacityError if it can never run or after
        ``close``."""
    def cancel(self, request_id: int) -> None:
        """Finish each choice that has not ended as ``cancelled``; a no-op for unknown requests, which have ended."""
    def pause(self, request_id: int) -> None:
        """Take away the request's places until ``resume``, because nobody reads its answer."""
    def resume(self, request_id: int) -> None: ...
    def pin(self, request: Request) -> tuple[int, int]:
        """Keep what the cache has of the request's prompt from being evicted; return the pin's id and the tokens.

        Raises CapacityError if pins would take more than half of the cache, RequestError for a request that can never
        run or after ``close``.
        """
    def unpin(self, pin_id: int) -> None:
        """End a pin; a no-op for unknown ones, which were dropped so that a request could run."""
    def freeze(self, frozen: bool) -> None:
        """Stop running steps once the current one has ended, or go on.  RequestError after ``close``."""
    def forget_prefixes(self) -> None:
        """Let no later request find what is cached, and end all pins.  RequestError after ``close``."""
    def provide_logits(self, request_id: int, choice: int, logits: npt.NDArray[np.float32]) -> None:
        """Answer an event of kind ``logits`` with a row ``[n_vocab]``.

        An unexpected answer fails its request.

        Raises:
            ShapeError: The row has another size.
        """
    def wait_mask_job(self, timeout_s: float) -> MaskJob | None:
        """Return the next mask job; None after ``timeout_s`` seconds, and at once after ``close``.

        Any number of threads may call it, as a choice has at most one job at a time.
        """
    def provide_mask(
        self,
        request_id: int,
        choice: int,
        position: int,
        mask: npt.NDArray[np.uint32],
        forced: Sequence[int] = [],
    ) -> int | None:
        """Answer a mask job; ignored if the request has ended.

        Args:
            mask: The mask as for ``Sampler.sample``, for the token after ``forced``.
            forced: Tokens from ``position`` on that are each the only one allowed there.

        Returns:
            The token after which the job continues with the next mask (the decoder may still reject it), or None if the
            job is done.

        Raises:
            ShapeError: The mask has another size.
            RequestError: No such mask was requested.
        """
    def decline_mask(self, request_id: int, choice: int) -> None:
        """End a job without the mask after its drafted tokens.  If they are accepted, the mask is requested again."""
    def wait(self, timeout_s: float, *, gather_s: float = 0.0) -> list[Event]:
        """Wait up to ``timeout_s`` seconds and return all events so far; returns [] at once after the last event.

        Within ``gather_s`` seconds of the last call, deltas are collected first; other events are returned at once.
        """
    @property
    def event_fd(self) -> int:
        """A file descriptor for event loops, readable while events wait and after ``close``.  ``wait(0)`` reads it."""
    @property
    def n_steps(self) -> int:
        """The number of steps run so far."""
    @property
    def n_ctx(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def stats(self) -> DecoderStats: ...
    def export_prefix(
        self,
        token_ids: Sequence[int],
        path: str,
        *,
        salt: bytes = b"",
        adapter: bytes = b"",
        late_adapters: Sequence[tuple[bytes, int]] = [],
        media: Sequence[tuple[int, int, bytes]] = [],
        note: bytes = b"",
        model: bytes = b"",
    ) -> int:
        """Save the longest prefix of a text that the cache has to a file; return its number of tokens.

        The file is private, and replaced as a whole.  ``salt``, ``adapter``, ``late_adapters`` (name and first position
        of each) and ``media`` (first row, end and digest of each) are those of the requests that computed it; ``note``
        is kept in the file for ``prefix_note``.  ``model`` names the weights as ``CacheTiersConfig`` does, which it
        replaces here.

        Raises:
            RequestError: The cache has nothing of the text.
            CapacityError: The disk is full, or parts of the text were evicted meanwhile.
            LoadError: The file cannot be made.
            UnsupportedError: The model keeps no prefixes.
        """
    def import_prefix(
        self,
        token_ids: Sequence[int],
        path: str,
        *,
        salt: bytes = b"",
        adapter: bytes = b"",
        late_adapters: Sequence[tuple[bytes, int]] = [],
        media: Sequence[tuple[int, int, bytes]] = [],
        model: bytes = b"",
    ) -> int:
        """Load what a file of ``export_prefix`` has of a text into the pool; return how many of its tokens are cached.

        Contents that were saved under another salt or for other tokens are left out.

        Raises:
            LoadError: The file is missing, damaged, or of another model, adapter, type, kernel or version.
        """
    def find_missing(self, request: Request, held: Sequence[str] | None = None) -> tuple[int, list[str]]:
        """Return what cache and tiers lack of a request's prompt, and how many tokens it would save.

        Without ``held``: all entries that a peer may have.  With it: those of use, where the peer holds these.  Waits
        for the current step.
        """
    def keep_record(self, record: bytes) -> bool:
        """Keep an entry that a peer sent in the tiers.  False: there is no room for now.

        A header alone is checked, so that nobody reads contents of another size.

        Raises:
            LoadError: It is damaged, or of another model.
        """
    @property
    def cache_identity(self) -> str:
        """The name of the folder of the disk's entries."""
    def close(self) -> None:
        """Cancel all requests, join the thread and release all blocks.  The last events can still be waited for."""
