"""Messages between the listener and a worker: msgspec structs, encoded as MessagePack arrays."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

__all__ = [
    "Admitted",
    "Answer",
    "Ask",
    "Beat",
    "CallDelta",
    "Cancel",
    "Chat",
    "Delta",
    "Embed",
    "Failed",
    "Finished",
    "FromEngine",
    "Generate",
    "Logprob",
    "ModelInfo",
    "Open",
    "Pause",
    "Ready",
    "SchedulingHints",
    "Score",
    "Segment",
    "Started",
    "Tag",
    "TextRules",
    "ToEngine",
    "Transcribe",
    "Work",
]

JsonObject: TypeAlias = dict[str, Any]


class SchedulingHints(msgspec.Struct, frozen=True, array_like=True):
    """How to schedule a request; see ``quire.engine.EngineRequest``.

    ``n_bytes`` is the size of its body, by which it queues for the threads that prepare it.  ``adapter``: LoRA adapters
    of a request for vectors or scores.
    """

    salt: bytes = b""
    priority: int = 0
    key: str = ""
    n_bytes: int = 0
    adapter: tuple[tuple[str, float], ...] | None = None


# To the engine


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """The first message: the model to load (None: the package's) and the fields of ``EngineConfig`` that are set.

    ``sampling`` has fields of ``SamplingParams`` that take precedence over the model file's advice.  ``system`` is the
    system message of chats that begin without one.  ``defaults`` are other defaults for requests: ``seed``,
    ``grammar``, ``pooling``, and fields of ``ChatOptions`` (``chat``).  ``chat_template`` replaces the model's.
    ``adapters``: names, paths and scales of LoRA adapters in place of those in ``config``, as clients have left them.
    ``paused`` and ``asleep``: begin paused, and with these parts asleep.
    ``peers``: URLs of servers that are asked for blocks of the cache, with ``peer_key``.  ``saves_blocks``: clients may
    save what the cache has of their texts.
    """

    path: str | None
    config: JsonObject
    sampling: JsonObject = {}
    system: str | None = None
    defaults: JsonObject = {}
    chat_template: str | None = None
    adapters: list[tuple[str, str, float]] | None = None
    paused: bool = False
    asleep: list[str] = []
    peers: tuple[str, ...] = ()
    peer_key: str = ""
    saves_blocks: bool = False


class Generate(msgspec.Struct, frozen=True, array_like=True, tag="generate"):
    """Complete a prompt.  ``params`` has the fields of ``quire.SamplingParams`` that differ from the defaults.

    ``wants_prompt_ids``: return the prompt's token ids in ``Started``.  ``wants_progress``: report in deltas how much
    of the prompt has been processed.  ``predict_s``: time limit from the first token on, after which the answer ends
    with the next complete line.  ``max_prompt_tokens``: cut a longer prompt after its first ``keep_tokens``.
    ``media``: images and sounds in base64, for which ``mark`` stands in the prompt.  ``embeds``: a file of embeddings,
    in place of the prompt.
    """

    id: int
    prompt: str | list[int]
    params: JsonObject
    hints: SchedulingHints = SchedulingHints()
    wants_prompt_ids: bool = False
    wants_progress: bool = False
    predict_s: float | None = None
    max_prompt_tokens: int | None = None
    keep_tokens: int = 0
    media: list[str] = []
    mark: str = ""
    embeds: bytes = b""


class Chat(msgspec.Struct, frozen=True, array_like=True, tag="chat"):
    """Answer a conversation.

    ``options`` has fields of ``engine.requests.chat.ChatOptions``.  ``wants_progress``: report in deltas how much of
    the prompt has been processed.
    """

    id: int
    messages: list[JsonObject]
    options: JsonObject
    params: JsonObject
    hints: SchedulingHints = SchedulingHints()
    wants_progress: bool = False
    wants_prompt_ids: bool = False


class Transcribe(msgspec.Struct, frozen=True, array_like=True, tag="transcribe"):
    """Transcribe the recording in ``audio``, a file.  ``speech`` has the fields of ``TranscribeOptions``.

    ``Started`` tells the recording's duration, and ``Delta`` the segments of the transcript; ``Finished`` its language.
    """

    id: int
    audio: bytes
    speech: JsonObject
    params: JsonObject
    hints: SchedulingHints = SchedulingHints()


class TextRules(msgspec.Struct, frozen=True, array_like=True):
    """How to read texts; the fields of ``engine.texts.TextOptions``."""

    truncate: bool | int = False
    side: Literal["left", "right"] = "right"
    prompt_name: str | None = None
    input_type: str | None = None
    kind: Literal["query", "document"] | None = None


class Embed(msgspec.Struct, frozen=True, array_like=True, tag="embed"):
    """Embed a prompt.

    ``Answer`` has ``vector`` (little-endian float32), ``n_tokens``, ``n_cached_tokens`` (the cached part of them), and
    ``seconds``, the time to process the others.

    ``n_dimensions``: keep only the first ones (None: all).  ``norm``: divide by the p-norm, 0 by the largest absolute
    value, None not at all.  ``pooling``: as in ``LLM.embed``; ``none`` returns ``n_rows`` vectors.

    ``output``: as in ``LLM.encode``; ``sparse`` returns ``indices`` (little-endian int32) and ``values`` (float32) in
    place of ``vector``, and ``multi`` returns ``n_rows`` vectors.  ``classes``: the probabilities of a classifier, of
    each token if it scores these.  ``tokens``: ``multi``, or if the model makes none, each token's hidden state.
    ``auto``: what the model makes.  ``messages``: embed this conversation, in the model's chat template, in place of
    ``prompt``; ``begins_answer``: with the beginning of an answer.  ``precisions``: return the vector in these too, by
    name; see ``quantize_embeddings``.  ``layers``: return the hidden states after these layers instead, and their
    ``shape``.
    """

    id: int
    prompt: str | list[int]
    n_dimensions: int | None
    norm: int | None
    hints: SchedulingHints = SchedulingHints()
    rules: TextRules = TextRules()
    pooling: Literal["none", "mean", "cls", "last"] | None = None
    output: Literal["dense", "sparse", "multi", "classes", "tokens", "auto"] = "dense"
    precisions: tuple[Literal["int8", "uint8", "binary", "ubinary"], ...] = ()
    messages: list[dict[str, Any]] = []
    begins_answer: bool = False
    layers: list[int] | None = None


class Tag(msgspec.Struct, frozen=True, array_like=True, tag="tag"):
    """Find the entities of a text; ``Answer`` has ``entities`` as ``LLM.tag`` returns them."""

    id: int
    text: str
    aggregation: Literal["none", "simple", "first", "average", "max"] = "simple"
    ignored: tuple[str, ...] = ("O",)
    hints: SchedulingHints = SchedulingHints()
    rules: TextRules = TextRules()


class Score(msgspec.Struct, frozen=True, array_like=True, tag="score"):
    """Score the classes of a text, or of a pair of texts.

    ``Answer`` has these values, and those of ``Embed`` besides the vector:

    - ``scores`` of the classes, and their ``labels``, empty if the file names none
    - ``shown``: the result of ``LLM.classify``
    - ``relevance``: a single number as in ``LLM.rerank``; ``is_judged`` if it compares "yes" with "no", ``is_raw`` if
      the model's authors use it without an activation
    - ``is_product`` if it is one of vectors, and ``logit``, that of a text and an image, or None

    ``messages`` and ``second_messages`` have an image in place of a text, for models that compare vectors.
    """

    id: int
    text: str | list[int]
    second: str | None = None
    instruction: str | None = None
    hints: SchedulingHints = SchedulingHints()
    rules: TextRules = TextRules()
    messages: list[dict[str, Any]] = []
    second_messages: list[dict[str, Any]] = []


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A question that is answered at once, with ``Answer`` or ``Failed``; ``values`` are the verb's arguments.

    ``encoded``: return the value as JSON, so that the listener need not encode large answers.
    """

    id: int
    verb: Literal[
        "tokenize", "detokenize", "render", "count", "infill", "describe", "pin", "unpin", "load_adapter",
        "unload_adapter", "scale_adapters", "control", "await_written", "save_blocks", "restore_blocks",
    ]  # fmt: skip
    values: JsonObject
    hints: SchedulingHints = SchedulingHints()
    encoded: bool = False


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Cancel a request; no further messages are sent about it."""

    id: int


class Pause(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """Pause a request whose client does not read, so that others get its place; ``paused`` false resumes it."""

    id: int
    paused: bool = True


Work: TypeAlias = Generate | Chat | Transcribe | Embed | Score | Tag | Ask
ToEngine: TypeAlias = Open | Generate | Chat | Transcribe | Embed | Score | Tag | Ask | Cancel | Pause


# From the engine


class ModelInfo(msgspec.Struct, frozen=True, array_like=True):
    """A loaded model's properties.

    ``advised`` are sampling parameters that its authors advise.  ``memory_bytes`` is what its process may come to use
    with a full cache.  ``n_ctx_train`` is the number of positions it was trained on.  ``adapters`` are file names and
    scales; ``loras`` are their names in requests, which choose among them, or empty if the adapters are fixed.
    ``media`` lists what it reads besides text: image, audio.  ``taps``: layers whose hidden states can be read.
    """

    name: str
    architecture: str
    n_ctx: int
    n_vocab: int
    n_usable_blocks: int
    max_sequences: int
    max_step_tokens: int
    advised: JsonObject
    chat_template: str | None
    bos: str
    eos: str
    version: str
    memory_bytes: int = 0
    n_ctx_train: int = 0
    adapters: list[tuple[str, float]] = []
    media: list[str] = []
    loras: list[str] = []
    taps: list[int] = []


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The model is loaded."""

    info: ModelInfo


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """The engine has accepted a request, which waits or runs.

    ``ignored``: see ``engine.requests.chat.ChatRequest``.  ``duration``: seconds of a recording.
    """

    id: int
    n_prompt_tokens: int
    prompt_ids: list[int] | None = None
    ignored: list[str] = []
    duration: float = 0.0


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag="admitted"):
    """A request has left the queue and runs, with this many prompt tokens found in the cache."""

    id: int
    n_cached_tokens: int = 0


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """A token with its bytes, its log-probability, and the most likely tokens as (id, bytes, log-probability)."""

    token_id: int
    shown: bytes
    logprob: float
    top: list[tuple[int, bytes, float]]


class CallDelta(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a tool call; see ``quire.chat.ToolCallDelta``."""

    index: int
    id: str | None
    name: str | None
    arguments: str


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A part of a transcript; see ``engine.requests.transcripts.Segment``."""

    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Delta(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    """A piece of a choice.  A chat has ``content``, ``reasoning`` and ``calls``; otherwise ``content`` is the text.

    ``n_read`` is set only in progress deltas, which come before the first token: prompt tokens processed so far.
    """

    id: int
    choice: int
    content: str
    token_ids: list[int]
    reasoning: str = ""
    calls: list[CallDelta] = []
    logprobs: list[Logprob] = []
    prompt_logprobs: list[Logprob] = []
    n_read: int | None = None
    segments: list[Segment] = []


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """The end of a choice.  Times are seconds: in the queue, from there to the first token, from there to the last."""

    id: int
    choice: int
    reason: str
    stop_reason: str | int | None
    n_prompt_tokens: int
    n_cached_tokens: int
    n_generated_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    n_drafted_tokens: int = 0
    n_accepted_tokens: int = 0
    language: str | None = None
    n_host_tokens: int = 0
    n_disk_tokens: int = 0


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The last message of a request that failed.

    ``kind`` is the name of a class in ``quire.errors``, or ``"Lost"`` if the worker went away.  ``id`` 0 means that the
    model could not be loaded.  ``retry_after_s`` tells when to retry.
    """

    id: int
    kind: str
    message: str
    retry_after_s: int | None = None


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """The answer to a question."""

    id: int
    value: Any


class DrafterFigures(msgspec.Struct, frozen=True, array_like=True):
    """Figures of one drafter: its verified tokens, and the accepted ones among them, in total and by draft position."""

    n_drafts: int
    n_drafted: int
    n_accepted: int
    drafted_at: list[int]
    accepted_at: list[int]
    seconds: float


class CacheUse(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of the cache that one kind of layer uses: held by sequences, and kept for the prefix cache."""

    kind: str
    held_bytes: int
    cached_bytes: int


class TierUse(msgspec.Struct, frozen=True, array_like=True):
    """Figures of one tier of the cache below the pool of blocks: ``"host"`` or ``"disk"``."""

    name: str
    budget_bytes: int
    used_bytes: int
    hit_tokens: int
    written_bytes: int
    read_bytes: int
    n_dropped: int
    n_damaged: int
    n_evicted: int


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """A heartbeat with the decoder's figures; totals are since the model was loaded."""

    n_steps: int
    n_waiting: int
    n_running: int
    n_requests: int
    n_computed_tokens: int
    n_generated_tokens: int
    n_prefix_hit_tokens: int
    n_preemptions: int
    n_usable_blocks: int
    n_free_blocks: int
    n_published_blocks: int
    n_evictions: int
    n_failed_checks: int
    rss_bytes: int
    anonymous_bytes: int
    n_step_sequences: int = 0
    drafters: dict[str, DrafterFigures] = {}
    cache: tuple[CacheUse, ...] = ()
    n_paused: int = 0
    n_pins: int = 0
    n_pinned_bytes: int = 0
    n_most_pinned_bytes: int = 0
    n_pins_given_way: int = 0
    tiers: tuple[TierUse, ...] = ()
    n_waiting_tokens: int = 0
    n_peer_tokens: int = 0
    n_peer_failures: int = 0


FromEngine: TypeAlias = Ready | Started | Admitted | Delta | Finished | Failed | Answer | Beat
