"""The engine: one native decoder, and a thread that delivers its events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from .._native import engine as native
from ..errors import CapacityError, QuireError, RequestError, UnsupportedError
from ..params.sampling import PARAMETERS
from .adapters import NO_LIBRARY, adapter_names
from .failures import Failure, item_of
from .masks import MaskThreads

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    import numpy.typing as npt

    from .._native.engine import Decoder, DecoderStats, Event
    from ..grammar import Grammar, GrammarSource
    from ..params.sampling import ChosenAdapters, ProcessorFunction, SamplingParams
    from .adapters import AdapterLibrary
    from .guidance import Guidance
    from .media import PromptMedia
    from .steering import ControlVectors

__all__ = ["Deliver", "Engine", "EngineRequest", "Failure", "Pooling", "native_params"]

Pooling: TypeAlias = Literal["none", "mean", "cls", "last", "max", "taps"]
"""The hidden states of an embedding: of each token, their mean, of the first or last token, their largest, or taps."""

# A small model makes several tokens in a millisecond; waking a thread for each would slow it down.
_GATHER_S = 0.001


@dataclass(frozen=True)
class EngineRequest:
    """A request of the engine.

    Attributes:
        params: None for a request for logits, or for an ``embedding``.
        salt: Only requests with the same salt share cached prefixes.
        priority: Higher first, under the policies that use it.
        key: Under the dynamic policy, requests with the same key share one part of the machine.
        visible_tokens: Control tokens that appear in the text, with their text.
        grammar: The grammar of every choice; ``form`` is its source until it is compiled.
        embedding: The pooling of an embedding.
        announced: Send an event of kind ``"admitted"`` when the request leaves the queue.
        second_text: Position of the first token of a pair's second text, for models that distinguish the texts.
        prediction: Ids of the expected answer.
        media: The images in the prompt.
        bad_sequences: Tokens that no answer contains in this order.
        adapter: LoRA adapters of a request without params.
        shadow: The request that guidance pushes away from; it follows whatever the answer is.
    """

    token_ids: list[int]
    params: SamplingParams | None
    salt: bytes = b""
    priority: int = 0
    key: str = ""
    visible_tokens: Mapping[int, bytes] = field(default_factory=dict)
    grammar: Grammar | None = None
    form: GrammarSource | None = None
    embedding: Pooling | None = None
    announced: bool = False
    second_text: int | None = None
    prediction: Sequence[int] = ()
    media: PromptMedia | None = None
    bad_sequences: Sequence[Sequence[int]] = ()
    shadow: EngineRequest | None = None
    adapter: ChosenAdapters = None

    @property
    def n(self) -> int:
        return 1 if self.params is None else self.params.n


Deliver = Callable[[Sequence["Event | Failure"]], None]


@dataclass
class _Waiting:
    deliver: Deliver
    n_unfinished: int
    processors: Sequence[ProcessorFunction]
    token_ids: list[list[int]]  # prompt and generated, by choice; only for requests whose rows are processed
    guidance: Guidance | None = None


def native_params(params: SamplingParams) -> native.SamplingParams:
    """Return public parameters in native form, without those that the request itself passes to the decoder."""
    result = native.SamplingParams()
    for name, parameter in PARAMETERS.items():
        if parameter.native:
            value = getattr(params, name)
            setattr(result, name, list(value.items()) if name == "logit_bias" else value)
    return result


class Engine:
    """Owns a decoder.  Thread-safe.

    ``device_lost`` is set once a request failed because its device was lost; all later ones will fail too.  ``submit``
    takes a function that gets the request's events, all of a step at once, on the dispatcher's thread, and must be
    quick.  Every request ends with a ``"finish"`` event for each choice or with one ``Failure``.
    """

    def __init__(
        self,
        decoder: Decoder,
        n_vocab: int,
        *,
        makes_logits: bool = True,
        adapters: AdapterLibrary | None = None,
        control_vectors: ControlVectors | None = None,
    ) -> None:
        self._n_vocab = n_vocab
        self.makes_logits = makes_logits
        self._control_vectors = control_vectors
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # a request has ended
        self._waiting: dict[int, _Waiting] = {}
        self._held: set[int] | None = None  # requests that wait for release(); None: none does
        self._frozen = False
        self._n_decoders = 0
        self._guided: dict[int, int] = {}  # ids of requests by those of their shadows
        self.device_lost = threading.Event()
        self._processing: ThreadPoolExecutor | None = None
        self.use(decoder, adapters)

    def use(self, decoder: Decoder, adapters: AdapterLibrary | None = None) -> None:
        """Go on with another decoder, once ``close`` has freed the one before."""
        self.adapters = adapters
        self._masks = MaskThreads(self._n_vocab, self._fail)
        self._n_decoders += 1
        self._closed_because, self._interruption = "[engine] the engine is closed", ""
        self._decoder: Decoder | None = decoder
        self._thread = threading.Thread(target=self._dispatch, args=(decoder,), name="quire-dispatch", daemon=True)
        self._thread.start()

    def submit(self, request: EngineRequest, deliver: Deliver) -> int:
        """Submit a request and return its id.

        RequestError or CapacityError if it can never run; UnsupportedError if an encoder is asked for text.
        """
        shadow = None if request.shadow is None else self.native_request(request.shadow, is_shadow=True)
        made = self.native_request(request)
        # Prompts has put functions in place of names.
        params = request.params
        processors = cast("Sequence[ProcessorFunction]", () if params is None else params.logits_processors)
        # The lock keeps the dispatcher from seeing the first event before the request is known.
        with self._lock:
            decoder = self._open_decoder()
            grammar = request.grammar
            request_id = decoder.submit(made) if grammar is None else self._masks.submit(decoder, made, grammar)
            guidance = None if shadow is None else self._guidance(decoder, request, request_id, shadow)
            is_processed = bool(processors) or guidance is not None
            token_ids = [list(request.token_ids) for _ in range(request.n if is_processed else 0)]
            self._waiting[request_id] = _Waiting(deliver, request.n, processors, token_ids, guidance)
            if self._held is not None:
                self._held.add(request_id)
                decoder.pause(request_id)
        return request_id

    def _guidance(self, decoder: Decoder, request: EngineRequest, request_id: int, shadow: native.Request) -> Guidance:
        assert request.params is not None
        try:
            shadow_id = decoder.submit(shadow)
        except QuireError:
            decoder.cancel(request_id)
            raise
        from .guidance import Guidance

        self._guided[shadow_id] = request_id
        return Guidance(shadow_id, request.params.guidance_scale, len(request.token_ids))

    def native_request(self, request: EngineRequest, *, is_shadow: bool = False) -> native.Request:
        """Return a request as the decoder takes it."""
        params = request.params
        if request.embedding is None and not self.makes_logits:
            raise UnsupportedError("[engine] the model is an encoder, which gives vectors and no text")
        assert request.form is None or request.grammar is not None, "a form must be compiled"
        choice = request.adapter if params is None else cast("ChosenAdapters", params.adapter)
        if choice and self.adapters is None:
            raise UnsupportedError(NO_LIBRARY)
        return native.Request(
            request.token_ids,
            None if params is None else native_params(params),
            salt=request.salt,
            priority=request.priority,
            key=request.key,
            external_logits=params is not None
            and (bool(params.logits_processors) or request.shadow is not None or is_shadow),
            prompt_logits=params is None and request.embedding is None,
            embedding=request.embedding,
            visible_tokens=request.visible_tokens,
            grammar=request.grammar is not None,
            announced=request.announced,
            second_text=request.second_text,
            speculation="" if params is None else params.speculation or "",
            prediction=request.prediction,
            media=()
            if request.media is None
            else [(begin, digest, rows) for begin, digest, rows in request.media.spans],
            is_causal=() if request.media is None else request.media.is_causal,
            places=None if request.media is None else request.media.places,
            snapshot_positions=() if request.media is None else request.media.ends,
            bad_sequences=request.bad_sequences,
            adapters=() if self.adapters is None else self.adapters.chosen(choice, request.token_ids),
            steering=self._steering(params),
        )

    def _steering(self, params: SamplingParams | None) -> Sequence[float]:
        choice = cast("Sequence[tuple[str, float]] | None", None if params is None else params.control_vectors)
        if self._control_vectors is not None:
            return self._control_vectors.chosen(choice)
        if choice:
            raise RequestError("[control_vectors] the model was opened without control vectors")
        return ()

    def cancel(self, request_id: int) -> None:
        """End a request early.  No-op if it has ended."""
        with self._lock:
            if request_id in self._waiting and self._decoder is not None:
                self._decoder.cancel(request_id)

    def pause(self, request_id: int, paused: bool) -> None:
        """Pause a request whose answer is not being read, so that others can run, or resume it."""
        with self._lock:
            if request_id in self._waiting and self._decoder is not None:
                (self._decoder.pause if paused else self._decoder.resume)(request_id)

    def pin(self, request: EngineRequest) -> tuple[int, int]:
        """Keep what the cache has of a request's prompt from being evicted; return the pin's id and the tokens kept.

        CapacityError if pins would take more than half of the cache.
        """
        made = self.native_request(request)
        with self._lock:
            decoder, number = self._open_decoder(), self._n_decoders
        pin, n_tokens = decoder.pin(made)
        return number << 48 | pin, n_tokens

    def export_prefix(
        self, token_ids: Sequence[int], path: str, salt: bytes, note: bytes, adapter: ChosenAdapters = None
    ) -> int:
        """Write what the cache has of a text to a file, with a note; return the number of tokens.

        RequestError if it has nothing of it; CapacityError if the disk is full or blocks were evicted meanwhile;
        UnsupportedError if the model keeps no prefixes.
        """
        names = adapter_names(self.adapters, adapter, token_ids)
        return self.decoder().export_prefix(token_ids, path, salt=salt, note=note, **names)

    def import_prefix(self, token_ids: Sequence[int], path: str, salt: bytes, adapter: ChosenAdapters = None) -> int:
        """Load what a file has of a text into the cache; return how many tokens the cache has now.

        LoadError if the file is damaged or of another model.
        """
        names = adapter_names(self.adapters, adapter, token_ids)
        return self.decoder().import_prefix(token_ids, path, salt=salt, **names)

    def decoder(self) -> native.Decoder:
        """Return the decoder.  RequestError if the engine is closed or sleeps."""
        with self._lock:
            return self._open_decoder()

    def unpin(self, pin_id: int) -> None:
        """End a pin.  No-op if it has ended, or the engine was closed."""
        with self._lock:
            if self._decoder is not None and pin_id >> 48 == self._n_decoders:
                self._decoder.unpin(pin_id & (1 << 48) - 1)

    def freeze(self, frozen: bool) -> None:
        """Stop computing, once the current step has ended, or go on.  Requests wait meanwhile."""
        self.decoder().freeze(frozen)
        with self._lock:
            self._frozen = frozen
            self._ended.notify_all()

    def forget_prefixes(self) -> None:
        """Let no later request find what is cached."""
        self.decoder().forget_prefixes()

    def stats(self) -> DecoderStats:
        """Return counters and gauges of the decoder."""
        with self._lock:
            return self._open_decoder().stats()

    @property
    def closed(self) -> bool:
        return self._decoder is None

    def hold(self) -> None:
        """Let requests that come from now on wait for ``release``."""
        with self._lock:
            self._held = set() if self._held is None else self._held

    def release(self) -> None:
        """Let the held requests run."""
        with self._lock:
            held, self._held = self._held or set(), None
            for request_id in held.intersection(self._waiting):
                if self._decoder is not None:
                    self._decoder.resume(request_id)
            self._ended.notify_all()

    def wait_until_idle(self) -> None:
        """Wait until all requests but the held ones have ended; stop at ``release`` or ``freeze``."""

        def stops() -> bool:
            return self._held is None or self._frozen or not self._waiting.keys() - self._held

        with self._ended:
            self._ended.wait_for(stops)

    def cancel_all(self) -> None:
        """End all requests early, but not the held ones."""
        with self._lock:
            for request_id in self._waiting.keys() - (self._held or set()):
                if self._decoder is not None:
                    self._decoder.cancel(request_id)

    def close(self, because: str = "[engine] the engine is closed", interruption: str = "") -> None:
        """Stop and free the decoder; later requests fail for this reason.

        Those in flight end as cancelled, or fail because of the ``interruption``.
        """
        with self._lock:
            decoder, self._decoder = self._decoder, None
            self._closed_because, self._frozen = because, False
            self._interruption = interruption or self._interruption
        if decoder is None:
            return
        decoder.close()
        if self.adapters is not None:
            self.adapters.close()
            self.adapters = None
        self._masks.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._processing is not None:
            self._processing.shutdown(wait=False, cancel_futures=True)
            self._processing = None

    def _open_decoder(self) -> Decoder:
        if self._decoder is None:
            raise RequestError(self._closed_because)
        return self._decoder

    def _dispatch(self, decoder: Decoder) -> None:
        error: QuireError = RequestError("[engine] the engine was closed before the answer was complete")
        try:
            while True:
                events = decoder.wait(60.0, gather_s=_GATHER_S)
                self._hand_out(events)
                if self._decoder is None and not events:
                    break
        except QuireError as failed:
            error = failed
        error = RequestError(self._interruption) if self._interruption else error
        with self._lock:
            left, self._waiting = self._waiting, {}
            self._held = None if self._held is None else set()
            self._ended.notify_all()
        for request_id, waiting in left.items():
            _deliver(waiting, [Failure(request_id, error)])

    def _hand_out(self, events: Sequence[Event]) -> None:
        by_request: dict[int, list[Event | Failure]] = {}
        rows = []
        for event in events:
            if event.kind == "logits":
                rows.append(event)
            else:
                by_request.setdefault(event.request_id, []).append(item_of(event, self._interruption))
                if event.error_kind == "DeviceError":
                    self.device_lost.set()
        for request_id, items in by_request.items():
            waiting = self._take(request_id, items)
            if waiting is None:
                self._lose_shadow(request_id, items)
            elif not _deliver(waiting, items):
                self.cancel(request_id)
            elif waiting.guidance is not None:
                for item in items:
                    if not isinstance(item, Failure) and item.kind == "delta":
                        self._process_elsewhere(item)
        # A row comes after the tokens before it, so these are known now.
        for event in rows:
            self._process_elsewhere(event)

    def _take(self, request_id: int, items: Sequence[Event | Failure]) -> _Waiting | None:
        """Return the waiting entry of a request, and remove it if these items end the request."""
        with self._lock:
            waiting = self._waiting.get(request_id)
            if waiting is None:
                return None
            for item in items:
                if isinstance(item, Failure):
                    waiting.n_unfinished = 0
                elif item.kind == "finish":
                    waiting.n_unfinished -= 1
                elif waiting.token_ids:
                    waiting.token_ids[item.choice] += item.token_ids
            if waiting.n_unfinished <= 0:
                del self._waiting[request_id]
                self._ended.notify_all()
                if waiting.guidance is not None:
                    self._guided.pop(waiting.guidance.shadow_id, None)
                    if self._decoder is not None:
                        self._decoder.cancel(waiting.guidance.shadow_id)
                self._masks.forget(request_id)
            return waiting

    def _process_elsewhere(self, event: Event) -> None:
        with self._lock:
            waiting = self._waiting.get(self._guided.get(event.request_id, event.request_id))
            if waiting is None:
                return
            held = event.token_ids if event.kind == "logits" else ()
            token_ids = (*waiting.token_ids[event.choice], *held)
        if self._processing is None:
            from concurrent.futures import ThreadPoolExecutor

            self._processing = ThreadPoolExecutor(1, thread_name_prefix="quire-logits")
        self._processing.submit(self._process, event, waiting, token_ids)

    def _process(self, event: Event, waiting: _Waiting, token_ids: tuple[int, ...]) -> None:
        """Run a request's logits processors over one row."""
        decoder = self._decoder
        main_id = self._guided.get(event.request_id, event.request_id)
        if decoder is None:
            return
        try:
            guidance, logits = waiting.guidance, event.logits
            if guidance is None:
                assert logits is not None
                rows: Iterable[tuple[bool, npt.NDArray[np.float32]]] = [(False, logits)]
            else:
                if logits is not None:
                    guidance.add(event.choice, logits, is_shadow=event.request_id == guidance.shadow_id)
                rows = guidance.answers(event.choice, token_ids)
            for is_shadow, row in rows:
                if is_shadow:
                    assert guidance is not None
                    decoder.provide_logits(guidance.shadow_id, event.choice, row)
                    continue
                processed = row
                for processor in waiting.processors:
                    processed = processor(token_ids, processed)
                decoder.provide_logits(main_id, event.choice, processed)
        except Exception as error:
            failure = error if isinstance(error, QuireError) else RequestError(f"[logits_processors] {error!r:.200}")
            if failure is not error:
                failure.__cause__ = error
            self._fail(main_id, failure)

    def _lose_shadow(self, shadow_id: int, items: Sequence[Event | Failure]) -> None:
        """End a guided request whose shadow has ended before it."""
        request_id = self._guided.get(shadow_id)
        if request_id is None:
            return
        lost = CapacityError("[guidance] the negative prompt and the answer exceed the context")
        for item in items:
            if isinstance(item, Failure) or item.kind == "finish":
                self._fail(request_id, item.error if isinstance(item, Failure) else lost)

    def _fail(self, request_id: int, error: QuireError) -> None:
        """End a request because of an error outside the decoder."""
        items = [Failure(request_id, error)]
        waiting, decoder = self._take(request_id, items), self._decoder
        if waiting is None:
            return
        if decoder is not None:
            decoder.cancel(request_id)
        _deliver(waiting, items)


def _deliver(waiting: _Waiting, items: Sequence[Event | Failure]) -> bool:
    """Deliver items; return False if the receiver is gone (its event loop was closed)."""
    try:
        waiting.deliver(items)
    except RuntimeError:
        return False
    return True
