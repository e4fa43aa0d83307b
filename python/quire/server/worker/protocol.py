"""Messages between the listener and the process that holds a model: msgspec structs, as arrays of MessagePack."""

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
    "Started",
    "TextRules",
    "ToEngine",
    "Work",
]

JsonObject: TypeAlias = dict[str, Any]


class SchedulingHints(msgspec.Struct, frozen=True, array_like=True):
    """How a request is scheduled beside others; see ``quire.engine.EngineRequest``.

    ``n_bytes``: of its body, by which it waits for threads that prepare it.
    """

    salt: bytes = b""
    priority: int = 0
    key: str = ""
    n_bytes: int = 0


# To the engine


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """The first message: which model (None: the package's), and the fields of ``EngineConfig`` that are set.

    ``sampling``: fields of ``SamplingParams`` that are advised before what the model's file advises.  ``system``: the
    system message of chats that begin without one.  ``defaults``: what else requests get that do not say: ``seed``,
    ``grammar``, ``pooling``, and fields of ``ChatOptions`` (``chat``).  ``chat_template``: in place of the model's.
    """

    path: str | None
    config: JsonObject
    sampling: JsonObject = {}
    system: str | None = None
    defaults: JsonObject = {}
    chat_template: str | None = None


class Generate(msgspec.Struct, frozen=True, array_like=True, tag="generate"):
    """Complete a prompt.  ``params``: the fields of ``quire.SamplingParams`` that are not its defaults.

    ``wants_prompt_ids``: ``Started`` brings the prompt's token ids.  ``wants_progress``: deltas tell how much of the
    prompt is read.  ``predict_s``: an answer that takes longer, from its first token on, ends with a complete line.
    ``max_prompt_tokens``: a longer prompt loses tokens behind its first ``keep_tokens``.
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


class Chat(msgspec.Struct, frozen=True, array_like=True, tag="chat"):
    """Answer a conversation.  ``options``: fields of ``engine.requests.chat.ChatOptions``.  ``wants_progress``: deltas
    tell how much of the prompt is read."""

    id: int
    messages: list[JsonObject]
    options: JsonObject
    params: JsonObject
    hints: SchedulingHints = SchedulingHints()
    wants_progress: bool = False


class TextRules(msgspec.Struct, frozen=True, array_like=True):
    """How texts are read; the fields of ``engine.texts.TextOptions``."""

    truncate: bool | int = False
    side: Literal["left", "right"] = "right"
    prompt_name: str | None = None
    input_type: str | None = None


class Embed(msgspec.Struct, frozen=True, array_like=True, tag="embed"):
    """Embed a prompt; ``Answer`` has ``vector``, little-endian float32, ``n_tokens``, ``n_cached_tokens`` of them, and
    the ``seconds`` that reading the others took.

    ``n_dimensions``: the first so many are kept (None: all).  ``norm``: the vector is divided by its p-norm, 0 by its
    largest absolute value, None by nothing.  ``pooling``: as for ``LLM.embed``; ``none`` gives ``n_rows`` vectors.
    """

    id: int
    prompt: str | list[int]
    n_dimensions: int | None
    norm: int | None
    hints: SchedulingHints = SchedulingHints()
    rules: TextRules = TextRules()
    pooling: Literal["none", "mean", "cls", "last"] | None = None


class Score(msgspec.Struct, frozen=True, array_like=True, tag="score"):
    """Score the classes of a text, or of a pair of texts.

    ``Answer`` has ``scores`` of the classes and their ``labels``, empty where the file names none; ``shown``, what
    ``LLM.classify`` makes of them; ``relevance``, one number of them as ``LLM.rerank`` gives it, ``is_judged``, whether
    it is of yes against no, and ``is_raw``, whether the model's makers show it as it is; and what that of ``Embed`` has
    beside its vector.
    """

    id: int
    text: str | list[int]
    second: str | None = None
    instruction: str | None = None
    hints: SchedulingHints = SchedulingHints()
    rules: TextRules = TextRules()


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A question that is answered at once, by ``Answer`` or ``Failed``; ``values`` are the verb's arguments.

    ``encoded``: the answer's value is JSON, which the listener need not make of what may be large.
    """

    id: int
    verb: Literal["tokenize", "detokenize", "render", "count", "infill", "describe"]
    values: JsonObject
    hints: SchedulingHints = SchedulingHints()
    encoded: bool = False


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Nobody waits for this request any more; nothing further is sent about it."""

    id: int


class Pause(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """The client of this request does not read: it gives its place to others.  ``paused`` false: it reads again."""

    id: int
    paused: bool = True


Work: TypeAlias = Generate | Chat | Embed | Score | Ask
ToEngine: TypeAlias = Open | Generate | Chat | Embed | Score | Ask | Cancel | Pause


# From the engine


class ModelInfo(msgspec.Struct, frozen=True, array_like=True):
    """What the listener knows of an open model.  ``advised``: sampling parameters that its makers advise.
    ``memory_bytes``: what its process may come to take, its cache full.  ``n_ctx_train``: positions that it was trained
    on.  ``adapters``: names of their files, and what each is multiplied by."""

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


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The model is open."""

    info: ModelInfo


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """The engine has taken a request: it waits, or runs.  ``ignored``: see ``engine.requests.chat.ChatRequest``."""

    id: int
    n_prompt_tokens: int
    prompt_ids: list[int] | None = None
    ignored: list[str] = []


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag="admitted"):
    """A request has left the queue and runs; so many tokens of its prompt were found in the cache."""

    id: int
    n_cached_tokens: int = 0


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """A token with what it shows, its log-probability, and the likeliest ones: (id, bytes, log-probability)."""

    token_id: int
    shown: bytes
    logprob: float
    top: list[tuple[int, bytes, float]]


class CallDelta(msgspec.Struct, frozen=True, array_like=True):
    """What is new of a tool call; see ``quire.chat.ToolCallDelta``."""

    index: int
    id: str | None
    name: str | None
    arguments: str


class Delta(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    """What is new of a choice.  Of a chat, ``content``, ``reasoning`` and ``calls``; else ``content`` is the text.

    ``n_read``: tokens of the prompt that are read so far, in deltas before the first token that have nothing else.
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


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """The end of a choice.  Times in seconds: in the queue, from there to the first token, from there to the last."""

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


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The last message of a request that failed.  ``kind``: the name of a class of ``quire.errors``, or ``"Lost"``
    where the worker went away.  ``id`` 0: the model could not be opened.  ``retry_after_s``: when the same may pass."""

    id: int
    kind: str
    message: str
    retry_after_s: int | None = None


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """The answer to a question."""

    id: int
    value: Any


class DrafterFigures(msgspec.Struct, frozen=True, array_like=True):
    """Of one drafter: tokens that were computed because it proposed them, and those of them that were right; by their
    position in the draft, as far as there were any."""

    n_drafts: int
    n_drafted: int
    n_accepted: int
    drafted_at: list[int]
    accepted_at: list[int]
    seconds: float


class CacheUse(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that one kind of layers has in the cache: held by sequences, and kept to be found again."""

    kind: str
    held_bytes: int
    cached_bytes: int


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """A sign of life, with the decoder's figures; totals since the model was opened."""

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


FromEngine: TypeAlias = Ready | Started | Admitted | Delta | Finished | Failed | Answer | Beat
