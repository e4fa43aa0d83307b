"""An open model: its engine, its properties, and the requests that its files decide on."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ..errors import RequestError, UnsupportedError
from ..params.call_names import names_its_call
from ..params.engine_options import (
    FitMode,
    Kernels,
    KvDType,
    LoadMode,
    Policy,
    RopeScaling,
    Speculation,
    SplitMode,
    config_of,
)
from .adapters import NO_LIBRARY, AdapterInfo, AdapterLibrary
from .controls import ControlState, ModelControls
from .engine import Engine, EngineRequest, Pooling
from .forks import forbid_in_children
from .loading.loader import open_model
from .loading.model_names import model_path, named_model
from .loading.ranking import is_judged, relevance
from .processors import ProcessorRegistry
from .requests.encoded import VectorMaker
from .requests.media_prompts import image_vector, is_media_prompt
from .requests.prompts import Prompt, Prompts, RequestOptions
from .requests.texts import Pair, TextKind, TextOptions, Texts, is_pair
from .requests.transcripts import ChatTranscription
from .requests.vectors import Vectors, normalized

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native.engine import DecoderStats
    from ..media.audio import Samples
    from ..tokenizer import Tokenizer
    from .loading.retrieval import Output
    from .requests.entities import Aggregation, Tagger
    from .requests.transcripts import TranscribeOptions, Transcription

__all__ = ["LLMBase"]


class LLMBase(ModelControls):
    """A model that was opened, with the engine that runs it."""

    @names_its_call
    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        device: str = "default",
        n_gpu_layers: int | None = None,
        n_cpu_moe: int = 0,
        n_cpu_ffn: int = 0,
        override_tensor: Sequence[tuple[str, str]] = (),
        fit: FitMode = "on",
        fit_target: int = 1024,
        fit_ctx: int = 4096,
        split_mode: SplitMode = "auto",
        tensor_split: Sequence[float] = (),
        main_gpu: int = 0,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        n_ctx: int | None = None,
        threads: int = 0,
        cpu_mask: int | None = None,
        kv_dtype: KvDType = "auto",
        n_blocks: int | None = None,
        kernels: Kernels = "auto",
        isa: str | None = None,
        deterministic: bool | None = None,
        load: LoadMode = "mmap",
        packed_cache: str | os.PathLike[str] | None = None,
        cache_disk: str | os.PathLike[str] | None = None,
        cache_disk_size: int | str = 16 << 30,
        cache_ram: int | str = 0,
        quantize: str | None = None,
        policy: Policy = "fifo",
        max_step_tokens: int | None = None,
        max_sequences: int | None = None,
        memory_bytes: int | None = None,
        step_s: float | None = None,
        snapshot_tokens: int = 1024,
        mmproj: str | os.PathLike[str] | None = "auto",
        draft: str | os.PathLike[str] | None = None,
        speculation: Speculation | None = None,
        draft_max: int = 16,
        draft_min: int = 0,
        override_kv: Mapping[str, bool | int | float | str] | Sequence[str] = (),
        hf_overrides: str | Mapping[str, Any] | None = None,
        rope_scaling: RopeScaling | None = None,
        rope_scale: float | None = None,
        rope_freq_base: float | None = None,
        rope_freq_scale: float | None = None,
        yarn_orig_ctx: int | None = None,
        yarn_ext_factor: float | None = None,
        yarn_attn_factor: float | None = None,
        yarn_beta_slow: float | None = None,
        yarn_beta_fast: float | None = None,
        taps: Sequence[int] = (),
        adapters: Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]] = (),
        lora_modules: Mapping[str, str | os.PathLike[str]] | Sequence[str | tuple[str, str]] = (),
        max_loras: int = 32,
        lora_cache_size: int | str = 0,
        max_lora_rank: int | None = None,
        control_vectors: Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]] = (),
        control_vector_layers: Sequence[int] = (),
        enable_prompt_embeds: bool = False,
        logits_processors: Sequence[str] = (),
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "model")}
        named = named_model(model, type(self).__name__, projector=mmproj == "auto")
        if isinstance(draft, str):
            given["draft"] = model_path(draft)
        self.config = config_of(given)
        self.path = named.path  # None: the package's model
        self.config = named.completed(self.config)
        processors = ProcessorRegistry(self.config.logits_processors)
        opened = open_model(named.path, self.config)
        self.config = replace(self.config, device=opened.device)
        self.model_name, self.architecture = opened.model_name, opened.architecture
        self.sizes, self.n_vocab = opened.sizes, opened.n_vocab
        self.n_ctx, self.kv_dtype, self.isa = opened.sizes.n_ctx, opened.kv_dtype, opened.isa
        self.n_ctx_train = opened.n_ctx_train
        # The fields of SamplingParams that the model's makers advise.
        self.advised_sampling: Mapping[str, object] = {**opened.sampling, **named.sampling}
        # Kinds of input besides text: "audio", "image".
        self.media: list[str] = [] if opened.media is None else sorted(opened.media.encoders)
        self._n_source = opened.n_source
        self._pooling = opened.pooling
        self._advice = opened.advice
        self._reserved_bytes = opened.reserved_bytes
        self._cache_kinds, self._has_state = opened.cache_kinds, opened.has_state
        self._output = opened.output
        self._prompts = Prompts(
            opened.tokenizer,
            opened.n_vocab,
            self.advised_sampling,
            named.system,
            opened.media,
            n_ctx=self.n_ctx,
            processors=processors,
            embeds=opened.embeds,
        )
        if named.template is not None:
            self._prompts.use_template(named.template)
        self._texts = Texts(self._prompts, self.n_ctx, opened.advice)
        self._vectors = VectorMaker(opened.retrieval, self._prompts, self._texts)
        self._engine = Engine(
            opened.decoder,
            opened.n_vocab,
            makes_logits=not opened.output.is_encoder,
            adapters=opened.adapters,
            control_vectors=opened.control_vectors,
        )
        self._controls = ControlState()
        # Also at the end of the program, and when nobody holds the model any more.
        self._close_engine = weakref.finalize(self, Engine.close, self._engine)
        forbid_in_children(self)

    @property
    def _adapters(self) -> AdapterLibrary | None:
        return self._engine.adapters

    def __repr__(self) -> str:
        name, kind = self.model_name, type(self).__name__
        return f"{kind}({name!r}, {self.architecture}, {self.n_ctx} tokens of context, {self.config.device})"

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.  UnsupportedError if the file has no vocabulary."""
        return self._prompts.tokenizer

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the chat template reads; empty without a template."""
        return self._prompts.template_variables

    @property
    def adapters(self) -> list[AdapterInfo]:
        """The LoRA adapters that requests may choose."""
        return [] if self._adapters is None else self._adapters.infos

    @property
    def takes_adapters(self) -> bool:
        """True if requests may choose adapters; otherwise they are fixed."""
        return self._adapters is not None

    def load_adapter(
        self, path: str | os.PathLike[str], name: str | None = None, *, scale: float = 0.0, replace: bool = False
    ) -> AdapterInfo:
        """Load a LoRA adapter beside the running model.

        Args:
            path: A GGUF file or a PEFT folder.
            name: What requests call it; None: the name of its file or folder.
            scale: The scale for requests that choose no adapters; 0: they do without it.
            replace: Take the place of an adapter of that name; requests that run with it go on.

        Raises:
            LoadError: The adapter is missing or malformed, or does not fit the model.
            UnsupportedError: The adapter has something that Quire does not compute, or the device has no
                products with a matrix per row.
            RequestError: The name is taken, or the rank is more than ``max_lora_rank``.
        """
        return self._library().add(os.fspath(path), name, scale, replace=replace)

    def unload_adapter(self, name: str) -> None:
        """Forget a LoRA adapter.  Requests that run with it go on.  RequestError if there is none of that name."""
        self._library().remove(name)

    def scale_adapters(self, scales: Mapping[str, float]) -> None:
        """Set the scales of adapters, by name, for requests that choose none.  RequestError for an unknown name."""
        self._library().set_scales(scales)

    def _library(self) -> AdapterLibrary:
        self._require_open()
        if self.is_sleeping:
            raise RequestError("[adapter] the model sleeps: call wake_up")
        if self._adapters is None:
            raise UnsupportedError(NO_LIBRARY)
        return self._adapters

    def use_chat_template(self, source: str) -> None:
        """Use a Jinja chat template in place of the model's.  LoadError if it is invalid."""
        self._prompts.use_template(source)

    def stats(self) -> DecoderStats:
        """Return counters and gauges of the decoder: steps, preemptions, prefix hits, free blocks."""
        return self._engine.stats()

    def cache_use(self, stats: DecoderStats) -> list[tuple[str, int, int]]:
        """Return the bytes in the cache by kind of layer, as ``(kind, held, cached)``.

        Kinds are ``"full"``, ``"window 512"``, ``"chunk 8192"``, ``"state"``.  Sequences hold the first number of
        bytes; the second is kept for later prefix hits.
        """
        cache = stats.cache
        uses = [*zip(self._cache_kinds, cache.groups, strict=True), ("state", cache.states)]
        return [(kind, use.held, use.cached) for kind, use in uses if kind != "state" or self._has_state]

    def _image_vector(self, prompt: Prompt) -> Vectors | None:
        """Return the vector of an image if the model has separate encoders of texts and images; None for a text."""
        media = self._prompts.media
        if media is None or not media.gives_vectors or not is_media_prompt(prompt):
            return None
        found = image_vector(prompt, media)
        return None if found is None else Vectors(found)

    @property
    def _embeds_images(self) -> bool:
        """True if the model has separate encoders of texts and images."""
        media = self._prompts.media
        return media is not None and media.gives_vectors

    @property
    def _compares(self) -> bool:
        """True if a query and a document are scored by their vectors, and not by a classifier."""
        return not self.scores_classes and ("multi" in self.outputs or self._embeds_images)

    def _compared(
        self, prompt: Prompt, kind: TextKind, options: RequestOptions, text: TextOptions
    ) -> EngineRequest | Vectors:
        """Return the request for the vectors of a query or a document, or those of an image that are known."""
        if self._embeds_images:
            return self._image_vector(prompt) or self._embedding_request(prompt, None, options, text)
        return self._vectors.request(prompt, "multi", options, replace(text, kind=kind))

    def _comparable(
        self, ids: Sequence[int], hidden: npt.NDArray[np.float32], kind: TextKind
    ) -> npt.NDArray[np.float32]:
        """Return vectors ``[n, n_dimensions]`` of length 1 from what such a request returned."""
        return normalized(hidden[None]) if self._embeds_images else self._vectors.multi(ids, hidden, kind)

    def _embedding_request(
        self, prompt: Prompt, pooling: Pooling | None, options: RequestOptions, text: TextOptions
    ) -> EngineRequest:
        """Return a request to embed.  RequestError for an unknown pooling; UnsupportedError if there is none."""
        if pooling is None and self._pooling is None:
            raise UnsupportedError("[embed] pooling of the model's file is unknown: give mean, cls or last")
        if pooling not in ("none", "mean", "cls", "last", "max", None):
            raise RequestError(f"[embed] pooling {pooling!r:.40} is unknown: give mean, max, cls or last")
        if self._output.is_encoder and (self._output.scores_classes or self._output.scores_tokens):
            verb = "tag" if self._output.scores_tokens else "classify"
            raise UnsupportedError(f"[embed] the model gives scores of classes, no vectors: use {verb}")
        if pooling != "none":
            self._vectors.retrieval.check("dense")
        chosen = pooling or self._pooling
        assert chosen is not None
        return self._prompts.embedding_request(self._texts.embedded(prompt, text), chosen, options)

    def _transcription(self, samples: Samples, speech: TranscribeOptions, options: RequestOptions) -> Transcription:
        """Return the steps to a transcript.  UnsupportedError if the model does not hear."""
        if "audio" not in self.media:
            raise UnsupportedError("[transcribe] the model does not hear: it has no encoder of sounds")
        media = self._prompts.media
        if self._n_source and media is not None:
            from .requests.whisper import Listener, WhisperTranscription

            never = cast("Sequence[int]", self.advised_sampling.get("bad_token_ids", ()))
            model = Listener(media, self.tokenizer, self.n_ctx, self.n_vocab, never)
            return WhisperTranscription(model, samples, speech, options)
        return ChatTranscription(self._prompts, samples, speech, options)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The kinds of vectors that ``encode`` returns."""
        return self._vectors.retrieval.outputs

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts that the makers of an embedding model put before inputs, by ``prompt_name``."""
        return self._advice.prompts

    @property
    def shows_raw_scores(self) -> bool:
        """True if the makers of a cross-encoder show raw scores; a server then does not map them to 0..1."""
        return self._advice.is_score_raw

    def _checked_layers(self, layers: Sequence[int]) -> Sequence[int]:
        """Return layers whose hidden states can be read.  RequestError if one of them is not tapped, or for none."""
        if isinstance(layers, str | bytes) or not isinstance(layers, Sequence):
            raise RequestError(f"[hidden_states] layers {layers!r:.40} is no list of layers")
        for layer in layers:
            if layer not in self.config.taps:
                raise RequestError(
                    f"[hidden_states] layers has {layer!r:.40}, but the model was opened with taps={self.config.taps}"
                )
        if not layers:
            raise RequestError("[hidden_states] layers is empty: name one or more of the taps")
        return layers

    def _tap_requests(
        self, prompts: Sequence[Prompt], layers: Sequence[int], options: RequestOptions | None = None
    ) -> list[EngineRequest]:
        """Return requests for hidden states after layers.  RequestError if one of them is not tapped, or for none."""
        self._checked_layers(layers)
        return [self._prompts.embedding_request(prompt, "taps", options or RequestOptions()) for prompt in prompts]

    def _tapped(self, vectors: Sequence[Vectors], layers: Sequence[int]) -> list[npt.NDArray[np.float32]]:
        """Return the given layers of each request, whose rows hold all taps side by side."""
        taps = [self.config.taps.index(layer) for layer in layers]
        found = [item.vector for item in vectors if item.vector is not None]
        by_tap = [rows.reshape(len(rows), len(self.config.taps), -1) for rows in found]
        return [rows[:, taps].transpose(1, 0, 2) for rows in by_tap]

    @property
    def is_encoder(self) -> bool:
        """True if the model gives vectors or scores of classes, and no text."""
        return self._output.is_encoder

    @property
    def scores_classes(self) -> bool:
        """True if the model has a classifier, which ``classify`` and ``rerank`` need."""
        return self._output.scores_classes

    @property
    def scores_tokens(self) -> bool:
        """True if the model classifies tokens, which ``tag`` needs."""
        return self._output.scores_tokens

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes of a classifier, in order; empty if the file names none."""
        return self._output.labels

    def _score_request(
        self, prompt: Prompt | Pair, options: RequestOptions, text: TextOptions, instruction: str | None = None
    ) -> EngineRequest:
        """Return a request for the class scores of a text or a pair.  UnsupportedError if there is no classifier."""
        output = self._output
        if not output.scores_classes:
            raise UnsupportedError("[classify] the model has no classifier")
        template = output.head.template if output.head else None
        if instruction is not None and (template is None or not is_pair(prompt)):
            raise UnsupportedError("[rerank] the model has no template with a place for an instruction: leave it out")
        pooling = output.score_pooling
        if not is_pair(prompt):
            return self._prompts.embedding_request(self._texts.single(cast("Prompt", prompt), text), pooling, options)
        if template is not None:
            judged = self._texts.judged(template, prompt, instruction, text)
            return self._prompts.embedding_request(judged, pooling, options)
        ids, second_text = self._texts.pair(*prompt, text)
        marked = second_text if output.tells_texts_apart else None
        return self._prompts.embedding_request(ids, pooling, options, marked)

    def _tagger(self, aggregation: Aggregation) -> Tagger:
        """Return what joins tokens into entities.  RequestError for an unknown aggregation."""
        from .requests.entities import Tagger, check_aggregation

        check_aggregation(aggregation)
        return Tagger(self.tokenizer, self.labels, aggregation)

    def _tag_request(self, prompt: Prompt, options: RequestOptions, text: TextOptions) -> EngineRequest:
        """Return a request for the class scores of each token.  UnsupportedError if the model has none."""
        if not self._output.scores_tokens:
            raise UnsupportedError("[tag] the model has no classifier of tokens")
        return self._prompts.embedding_request(self._texts.single(prompt, text), "none", options)

    def _scores(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the class scores ``[n, n_classes]`` of the vectors of such requests."""
        head = self._output.head
        return vectors if head is None else head.scores(vectors)

    def _classes(self, vectors: npt.NDArray[np.float32], raw_scores: bool) -> npt.NDArray[np.float32]:
        """Return class scores as the model's makers show them, or raw."""
        scores = self._scores(vectors)
        return scores if raw_scores else self._output.shown(scores)

    def _relevance(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a score ``[n]`` for each pair."""
        return relevance(self._scores(vectors), self.labels)

    def _class_values(self, vector: npt.NDArray[np.float32]) -> dict[str, object]:
        """Return the values that a server needs of one text or pair (``server.worker.protocol.Score``)."""
        scores = self._scores(vector[None])
        return {
            "scores": scores[0].tolist(),
            "shown": self._output.shown(scores)[0].tolist(),
            "labels": list(self.labels),
            "relevance": float(relevance(scores, self.labels)[0]),
            "is_judged": is_judged(self.labels),
            "is_raw": self.shows_raw_scores,
        }
