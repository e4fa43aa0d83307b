"""The worker's main class: takes messages, runs them on a model, and sends the results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..._native import __version__
from ...engine.llm_base import LLMBase
from ...engine.prefix_blocks import PrefixBlocks
from ...engine.requests.chat import ChatCollector
from ...engine.requests.media_prompts import prompt_of_parts
from ...engine.requests.prompts import RequestOptions
from ...engine.requests.results import collector_of
from ...engine.requests.texts import TextOptions
from ...errors import BusyError, InternalError, QuireError, RequestError
from ...params.chat_options import ChatOptions
from ..fair_pool import FairPool
from . import protocol as wire
from .adapters import adapter_verbs, adapters_of, restore_adapters, with_kept_adapters
from .controls import control
from .defaults import Defaults
from .event_encoder import Emit, EventEncoder, WorkerContext
from .figures import beat_of
from .memory_share import check_share, committed_bytes, with_share_of_model
from .message_kinds import cut_prompt, message_has_form, message_has_media
from .params import params_of
from .peers import Peers, await_written
from .pins import Pins
from .questions import Questions
from .saved_blocks import SavedBlocks

if TYPE_CHECKING:
    from ...engine.engine import Deliver, EngineRequest
    from ...engine.requests.chat import ChatRequest
    from ...engine.requests.prompts import Prompt
    from ...grammar import Grammar, GrammarSource
    from .embedding import Array
    from .vectors import LateScores, Values

__all__ = ["Emit", "ModelWorker"]

# One of them is kept free for small jobs.
_PREPARING_THREADS = 3
_ENCODING_THREADS = 4
_WRITING_THREADS = 16  # they only wait
_BETWEEN_FIGURES_S = 0.02
_MOST_SAID = 1000  # characters; an error may quote its input


@dataclass
class _Running:
    """A request in progress: being prepared (``native_id`` None), its form ``compiling``, or in the decoder."""

    native_id: int | None = None
    compiling: Future[Grammar] | None = None
    cancelled: bool = False
    paused: bool = False


class ModelWorker(LLMBase):
    """A model that takes messages.  Thread-safe; ``emit`` is called on other threads and must be quick.

    A few threads tokenize texts and render templates, so that a long prompt does not delay the cancellation of other
    requests.  Another thread reads forms, and no thread waits while they are compiled.  Each request ends with a
    ``Finished`` for each of its choices, an ``Answer``, or one ``Failed``.  A cancelled request gets no further
    messages.
    """

    def __init__(self, opened: wire.Open, emit: Emit) -> None:
        super().__init__(
            None if opened.path is None else Path(opened.path), **with_share_of_model(with_kept_adapters(opened))
        )
        restore_adapters(self, opened)
        self._sampling, self._system = opened.sampling, opened.system
        self._chat_template = opened.chat_template
        if opened.chat_template is not None and not self.is_encoder:
            self.use_chat_template(opened.chat_template)
        self._defaults = Defaults(opened.defaults, self._prompts)
        self._emit = emit
        self._lock = threading.Lock()
        self._running: dict[int, _Running] = {}
        self._told_s = 0.0
        self._preparing = FairPool(_PREPARING_THREADS, "quire-prepare")
        # Forms may be as long as prompts, and reading them holds the GIL.  Requests without one need not wait for them.
        self._forming = FairPool(1, "quire-form")
        # Encoding an image takes long.  Texts do not wait for it, nor do images that are encoded already.
        self._encoding = FairPool(_ENCODING_THREADS, "quire-encode")
        # Loading takes long.  Pauses that wait for requests in flight have a thread of their own, so others end them.
        self._controlling, self._pausing = FairPool(1, "quire-control"), FairPool(1, "quire-pause")
        # Waiting for the disk must not keep requests from being prepared.
        self._writing = FairPool(_WRITING_THREADS, "quire-written")
        shown = self.tokenizer.all_token_bytes()
        shown += [b""] * (self.n_vocab - len(shown))
        self._context = WorkerContext(emit, self._end, self._running.__contains__, self._engine.cancel, shown)
        self._memory_bytes = committed_bytes(self.n_vocab, self._reserved_bytes)
        check_share(self._memory_bytes, opened.config.get("memory_bytes"))
        self._questions = Questions(self.tokenizer, shown, self._drafted, opened.path)
        self._questions.add(adapter_verbs(self))
        pins = Pins(self._engine, self._prompts, self._drafted)
        self._questions.add({**pins.verbs(), "control": partial(control, self)})
        if opened.saves_blocks:
            self._questions.add(SavedBlocks(self, self._engine, pins.request).verbs())
        blocks = PrefixBlocks(self._engine)
        self._questions.add({"await_written": partial(await_written, blocks)})
        self._peers = Peers(opened.peers, opened.peer_key, blocks) if opened.peers else None
        self._last_stats = self.stats()

    def info(self) -> wire.ModelInfo:
        """Return the model's properties for the listener."""
        tokenizer, texts = self.tokenizer, self.tokenizer.special_texts
        return wire.ModelInfo(
            name=self.model_name,
            architecture=self.architecture,
            n_ctx=self.n_ctx,
            n_vocab=self.n_vocab,
            n_usable_blocks=self.stats().n_usable_blocks,
            max_sequences=self.sizes.max_sequences,
            max_step_tokens=self.sizes.max_step_tokens,
            advised={**self.advised_sampling, **self._sampling},
            chat_template=self._chat_template or tokenizer.chat_template,
            bos=texts.get("bos_token", ""),
            eos=texts.get("eos_token", ""),
            version=__version__,
            memory_bytes=self._memory_bytes,
            n_ctx_train=self.n_ctx_train,
            media=self.media,
            taps=list(self.config.taps),
            **adapters_of(self),
        )

    def beat(self) -> wire.Beat:
        """Return a heartbeat with the current figures.

        The decoder itself counts steps, so progress proves it is alive.
        """
        with suppress(RequestError):  # it sleeps
            self._last_stats = self.stats()
        use, rests = self.cache_use(self._last_stats), self.is_paused or self.is_sleeping
        return beat_of(self._last_stats, use, rests=rests, peers=self._peers)

    @property
    def device_lost(self) -> threading.Event:
        """Set when a request failed because the model's device is lost."""
        return self._engine.device_lost

    def handle(self, message: wire.ToEngine) -> None:
        """Handle a message; returns at once."""
        if isinstance(message, wire.Cancel):
            self._cancel(message.id)
        elif isinstance(message, wire.Pause):
            self._pause(message)
        elif isinstance(
            message, wire.Generate | wire.Chat | wire.Transcribe | wire.Embed | wire.Score | wire.Tag | wire.Ask
        ):
            with self._lock:
                self._running[message.id] = _Running()
            hints = message.hints
            pool = self._forming if message_has_form(message) else self._preparing
            if isinstance(message, wire.Ask) and message.verb == "control" and message.values["verb"] != "state":
                pool = self._pausing if message.values["values"].get("mode") == "wait" else self._controlling
            if isinstance(message, wire.Ask) and message.verb in ("await_written", "save_blocks", "restore_blocks"):
                pool = self._writing
            if message_has_media(message):
                pool = self._encoding
            pool.submit(hints.key, hints.n_bytes, partial(self._prepare, message))
        else:
            raise InternalError(f"[worker] unexpected message {type(message).__name__}")

    def warm_up(self) -> None:
        """Prepare what would delay the first request: read the chat template."""
        self._preparing.submit("", 0, self._read_template)

    def close(self) -> None:
        """Stop the model and free its memory; requests in flight fail."""
        self._engine.release()  # ends what waits for requests in flight
        for pool in (self._writing, self._pausing, self._controlling, self._encoding, self._forming, self._preparing):
            pool.close()
        if self._peers is not None:
            self._peers.close()
        self._close_engine()

    def _cancel(self, id_: int) -> None:
        with self._lock:
            running = self._running.pop(id_, None)
            if running is None:
                return
            running.cancelled = True
            native_id, compiling = running.native_id, running.compiling
        if native_id is not None:
            self._engine.cancel(native_id)
        elif compiling is not None:
            compiling.cancel()

    def _pause(self, message: wire.Pause) -> None:
        with self._lock:
            running = self._running.get(message.id)
            if running is None:
                return
            running.paused, native_id = message.paused, running.native_id
            if native_id is not None:
                self._engine.pause(native_id, message.paused)

    def _prepare(self, message: wire.Work) -> None:
        with self._lock:
            running = self._running.get(message.id)
        if running is None:
            return
        with self._failing(message.id):
            if isinstance(message, wire.Ask):
                value = self._questions.answer(message.verb, message.values)
                if message.encoded:
                    value = msgspec.json.encode(value)
                self._end(message.id, [wire.Answer(message.id, value)])
            elif isinstance(message, wire.Embed | wire.Score | wire.Tag):
                self._embed(message, running)
            elif isinstance(message, wire.Transcribe):
                self._transcribe(message, running)
            else:
                self._submit(message, running)

    @contextmanager
    def _failing(self, id_: int) -> Iterator[None]:
        """End the request if anything inside fails."""
        try:
            yield
        except QuireError as error:
            retry_after_s = error.retry_after_s if isinstance(error, BusyError) else None
            said = str(error)[:_MOST_SAID]
            self._end(id_, [wire.Failed(id_, type(error).__name__, said, retry_after_s)])
        except Exception as error:
            text = f"[worker] unexpected {type(error).__name__}: {error}"
            self._end(id_, [wire.Failed(id_, "InternalError", text[:500])])

    def _end(self, id_: int, messages: Sequence[wire.FromEngine]) -> None:
        """Send the last messages of a request, unless it was cancelled."""
        with self._lock:
            if self._running.pop(id_, None) is not None:
                self._emit(messages)
                return
        # A cancelled request has freed its blocks; report that before the next regular heartbeat.
        if (now := time.monotonic()) - self._told_s > _BETWEEN_FIGURES_S:
            self._told_s = now
            self._emit([self.beat()])

    def _submit(self, message: wire.Generate | wire.Chat, running: _Running) -> None:
        hints = message.hints
        options = RequestOptions(salt=hints.salt, priority=hints.priority, key=hints.key)
        params = params_of(self._defaults.params(message.params))
        has_tools = isinstance(message, wire.Chat) and bool(message.options.get("tools"))
        form = self._defaults.form(params, has_tools=has_tools)
        if form is not params.structured_outputs:
            params = replace(params, structured_outputs=form)
        answer: EventEncoder
        ignored: tuple[str, ...] = ()
        if isinstance(message, wire.Chat):
            messages = self._with_system(message.messages)
            wanted = ChatOptions(**self._defaults.chat(message.options))
            chat = self._prompts.chat_draft(messages, params, options, wanted)
            request, ignored = chat.engine, chat.ignored
            answer = EventEncoder(message.id, request, ChatCollector(chat, collector_of(request)), self._context)
            answer.wants_progress = message.wants_progress
        else:
            request, ignored = cut_prompt(self._prompts.draft(_prompt_of(message), params, options), message)
            answer = EventEncoder(message.id, request, None, self._context)
            answer.follow(message)
        wants_ids = message.wants_prompt_ids

        def submit(grammar: Grammar | None) -> None:
            made = replace(request, announced=True, grammar=grammar)

            def go_on() -> None:
                native_id = answer.native_id = self._engine.submit(made, answer.deliver)
                notes = () if request.form is None else request.form.notes
                answer.announce(request.token_ids if wants_ids else None, (*ignored, *notes))
                self._know(running, native_id)

            if self._peers is None:
                go_on()
            else:
                self._peers.before(made, hints.key, self._failing(message.id), go_on)

        if request.form is None:
            submit(None)
        else:
            self._compile(message.id, request.form, hints.key, running, submit)

    def _with_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages, with the server's default system message if they begin without one."""
        if self._system is None or (messages and messages[0].get("role") in ("system", "developer")):
            return messages
        return [{"role": "system", "content": self._system}, *messages]

    def _drafted(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> ChatRequest:
        """Build a conversation's request without submitting it."""
        chat = ChatOptions(**self._defaults.chat(options))
        return self._prompts.chat_draft(self._with_system(messages), None, RequestOptions(), chat)

    def _compile(
        self, id_: int, form: GrammarSource, key: str, running: _Running, submit: Callable[[Grammar], None]
    ) -> None:
        """Compile a form and then continue, without blocking a thread that prepares other requests."""
        compiling = running.compiling = self._prompts.begin_grammar(form, key)

        def go_on() -> None:
            with self._failing(id_):
                submit(compiling.result())

        def compiled(_: Future[Grammar]) -> None:
            if not compiling.cancelled():
                self._preparing.submit(key, 0, go_on)

        if compiling.done():  # it was cached
            go_on()
            return
        compiling.add_done_callback(compiled)
        if running.cancelled:
            compiling.cancel()

    def _know(self, running: _Running, native_id: int) -> None:
        """Record a request's id in the decoder, and cancel it if it was cancelled before."""
        with self._lock:
            running.native_id = native_id
            cancelled = running.cancelled
            if running.paused:
                self._engine.pause(native_id, paused=True)
        if cancelled:
            self._engine.cancel(native_id)

    def _embed(self, message: wire.Embed | wire.Score | wire.Tag, running: _Running) -> None:
        from .embedding import Scoring

        hints, rules = message.hints, message.rules
        options = RequestOptions(salt=hints.salt, priority=hints.priority, key=hints.key, adapter=hints.adapter)
        text = TextOptions(
            truncate=rules.truncate,
            side=rules.side,
            prompt_name=rules.prompt_name,
            input_type=rules.input_type,
            kind=rules.kind,
        )
        if isinstance(message, wire.Score) and message.second is not None and self._compares:
            self._late.score(
                message, options, text,
                submit=lambda request, deliver: self._know(running, self._engine.submit(request, deliver)),
                end=self._end, failing=partial(self._failing, message.id),
            )  # fmt: skip
            return
        if isinstance(message, wire.Embed) and message.messages:
            message, vector = self._laid_out(message)
            if vector is not None:
                from .vectors import encoded_values

                known: Values = {"n_tokens": 0, "n_cached_tokens": 0, "seconds": 0.0}
                self._end(message.id, [wire.Answer(message.id, {**encoded_values(vector, message), **known})])
                return
        if isinstance(message, wire.Embed) and message.layers is not None:
            request, values = self._state_request(message, message.layers, options)
        else:
            request, values = self._vector_request(message, options, text)
        answer = Scoring(message.id, len(request.token_ids), self._end, values)
        self._know(running, self._engine.submit(request, answer.deliver))

    def _laid_out(self, message: wire.Embed) -> tuple[wire.Embed, Array | None]:
        """Return a request to embed a conversation whose text alone is left, or the vector of its image."""
        media = self._prompts.media
        if media is None or not media.gives_vectors:
            return message, None
        parts = prompt_of_parts(message.messages)
        found = self._image_vector(parts)
        alone = msgspec.structs.replace(message, prompt=str(parts["prompt"]), messages=[])
        return alone, None if found is None else found.vector

    def _state_request(
        self, message: wire.Embed, layers: Sequence[int], options: RequestOptions
    ) -> tuple[EngineRequest, Callable[[Array], Values]]:
        from .vectors import state_values

        (request,) = self._tap_requests([message.prompt], layers, options)
        return request, partial(state_values, self, layers)

    def _vector_request(
        self, message: wire.Embed | wire.Score | wire.Tag, options: RequestOptions, text: TextOptions
    ) -> tuple[EngineRequest, Callable[[Array], Values]]:
        """Return a request, and a function that makes its answer's values of the hidden states."""
        from . import vectors as made

        if isinstance(message, wire.Score):
            if message.messages or message.second_messages:
                raise RequestError("[rerank] the model scores texts, no images")
            given = message.text
            pair = (given, message.second) if isinstance(given, str) and message.second is not None else given
            return self._score_request(pair, options, text, message.instruction), self._class_values
        if isinstance(message, wire.Tag):
            request, tagger = self._tag_request(message.text, options, text), self._tagger(message.aggregation)
            tags = partial(tagger.entities, message.text, request.token_ids, ignored=message.ignored)
            return request, lambda hidden: {"entities": tags(self._scores(hidden))}
        output, pooling = message.output, self._defaults.pooling(message.pooling)
        if output == "auto":
            output = "classes" if self.scores_tokens or self.scores_classes else self.outputs[0]
        if output == "tokens":
            output = "multi" if "multi" in self.outputs else "dense"
            pooling = "none" if output == "dense" else None
        shown: Any = message.prompt
        if message.messages and output == "multi" and self._vectors.retrieval.pages is not None:
            shown = prompt_of_parts(message.messages)
        elif message.messages and output != "dense":
            raise RequestError("[embed] conversations are embedded as one vector each: ask for embeddings")
        if output == "dense":
            prompt: Any = message.prompt
            if message.messages:
                drafted = self._drafted(message.messages, {"add_generation_prompt": message.begins_answer}).engine
                prompt = drafted.token_ids
            request = self._embedding_request(prompt, pooling, options, text)
            if message.messages:
                request = replace(request, token_ids=drafted.token_ids, media=drafted.media)  # never cut
            finished = self._vectors.retrieval.finished
            if request.embedding == "none":
                return request, partial(made.encoded_values, asked=message)
            return request, lambda vector: made.encoded_values(finished(vector[None])[0], message)
        if output == "classes":
            return self._classes_request(message, options, text)
        request = self._vectors.request(shown, output, options, text)
        make = (
            made.sparse_values
            if output == "sparse"
            else partial(made.multi_values, kind=self._vectors.kind_of(text), asked=message)
        )
        return request, partial(make, self._vectors, request.token_ids)

    def _classes_request(
        self, message: wire.Embed, options: RequestOptions, text: TextOptions
    ) -> tuple[EngineRequest, Callable[[Array], Values]]:
        """Return a request for the probabilities of a text, or of each of its tokens."""
        from .vectors import token_values

        if self.scores_tokens:
            request = self._tag_request(message.prompt, options, text)
            return request, lambda hidden: token_values(self._output.shown(self._scores(hidden)))
        request = self._score_request(message.prompt, options, text)
        return request, lambda vector: token_values(self._classes(vector[None], raw_scores=False))

    @cached_property
    def _late(self) -> LateScores:
        from .vectors import LateScores

        logits_of = None if self._vectors.retrieval.logits is None else self._vectors.retrieval.logits_of
        return LateScores(self._compared, self._comparable, self._engine.submit, logits_of)

    def _transcribe(self, message: wire.Transcribe, running: _Running) -> None:
        from ...engine.requests.transcripts import TranscribeOptions, samples_of
        from .speech import SpeechEncoder

        hints = message.hints
        options = RequestOptions(salt=hints.salt, priority=hints.priority, key=hints.key)
        params = params_of(self._defaults.params(message.params))
        speech = TranscribeOptions(**message.speech, sampling=params)
        steps = self._transcription(samples_of(message.audio, "file"), speech, options)

        def submit(request: EngineRequest, deliver: Deliver) -> None:
            with self._lock:
                running.native_id = None  # that of an earlier request, which has ended
            self._know(running, self._engine.submit(request, deliver))

        def go_on(step: Callable[[], None]) -> None:
            with self._failing(message.id):
                step()

        def later(step: Callable[[], None]) -> None:
            self._encoding.submit(hints.key, 0, partial(go_on, step))

        SpeechEncoder(message.id, steps, self._context, submit, later).begin()

    def _read_template(self) -> None:
        with suppress(Exception):  # there may be no template, or it may reject this conversation
            self._drafted([{"role": "user", "content": "?"}], {})


def _prompt_of(message: wire.Generate) -> Prompt:
    if message.embeds:
        return {"prompt_embeds": message.embeds}
    if not message.media:
        return message.prompt
    return {"prompt": message.prompt, "multimodal_data": message.media, "mark": message.mark}
