"""What the blocking and the async front end share."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ..errors import RequestError, UnsupportedError
from ..params.call_names import names_its_call
from ..params.engine_options import EngineConfig, FitMode, Kernels, KvDType, LoadMode, Policy, Speculation, SplitMode
from .engine import Engine, EngineRequest, Pooling
from .forks import forbid_in_children
from .loading.loader import open_model
from .loading.model_names import model_path, named_model
from .loading.ranking import is_judged, relevance
from .requests.prompts import Prompt, Prompts, RequestOptions, prompt_list
from .requests.results import Collector
from .requests.texts import Pair, TextOptions, Texts, is_pair, text_list

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native.engine import DecoderStats, Event
    from ..params.structured import StructuredOutputsParams
    from ..tokenizer import Tokenizer

__all__ = ["UNPOOLED", "LLMBase", "Vectors", "collector_of", "normalized", "stacked"]


UNPOOLED = "[embed] pooling must be mean, cls or last but is none: embed_tokens gives every token's vector"


def _with_scale(adapter: str | os.PathLike[str] | tuple[str | os.PathLike[str], float]) -> tuple[str, float]:
    """An adapter as ``EngineConfig`` has it: 1 where no factor is given."""
    if not isinstance(adapter, tuple | list):  # lists come from messages
        return os.fspath(adapter), 1.0
    if len(adapter) != 2:
        raise RequestError(f"[engine] adapters must be paths or pairs (path, number) but one is {adapter!r:.80}")
    return os.fspath(adapter[0]), adapter[1]


def _tuple(name: str, value: object) -> tuple[Any, ...]:
    """The items of an argument that is a sequence.  RequestError naming it where it is none, or a single text."""
    if isinstance(value, str | bytes | os.PathLike) and name == "adapters":
        return (value,)
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise RequestError(f"[engine] {name} is {value!r:.80}: give a list, as in {name}=[...]")
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


class LLMBase:
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
        quantize: str | None = None,
        policy: Policy = "fifo",
        max_step_tokens: int | None = None,
        max_sequences: int | None = None,
        memory_bytes: int | None = None,
        step_s: float | None = None,
        snapshot_tokens: int = 1024,
        draft: str | os.PathLike[str] | None = None,
        speculation: Speculation | None = None,
        draft_max: int = 16,
        draft_min: int = 0,
        taps: Sequence[int] = (),
        adapters: Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]] = (),
    ) -> None:
        named = named_model(model, type(self).__name__)
        self.config = EngineConfig(
            # llama.cpp's -1 and 0 stand for all layers, and for what Quire chooses.
            device="auto" if n_gpu_layers == -1 and device == "default" else device,
            n_gpu_layers=None if n_gpu_layers == -1 else n_gpu_layers,
            n_cpu_moe=n_cpu_moe,
            n_cpu_ffn=n_cpu_ffn,
            override_tensor=_tuple("override_tensor", override_tensor),
            fit=fit,
            fit_target=fit_target,
            fit_ctx=fit_ctx,
            split_mode=split_mode,
            tensor_split=_tuple("tensor_split", tensor_split),
            main_gpu=main_gpu,
            n_ctx=n_ctx or None,
            threads=0 if threads == -1 else threads,
            cpu_mask=cpu_mask,
            kv_dtype=kv_dtype,
            n_blocks=n_blocks,
            kernels=kernels,
            isa=isa,
            deterministic=deterministic,
            load=load,
            packed_cache=None if packed_cache is None else os.fspath(packed_cache),
            quantize=quantize,
            policy=policy,
            max_step_tokens=max_step_tokens,
            max_sequences=max_sequences,
            memory_bytes=memory_bytes,
            step_s=step_s,
            snapshot_tokens=snapshot_tokens,
            draft=None if draft is None else os.fspath(model_path(draft) if isinstance(draft, str) else draft),
            speculation=speculation,
            draft_max=draft_max,
            draft_min=draft_min,
            taps=_tuple("taps", taps),
            adapters=tuple(_with_scale(adapter) for adapter in _tuple("adapters", adapters)),
        )
        self.path = named.path  # None: the package's model
        self.config = named.completed(self.config)
        opened = open_model(named.path, self.config)
        self.config = replace(self.config, device=opened.device)
        self.model_name, self.architecture = opened.model_name, opened.architecture
        self.sizes, self.n_vocab = opened.sizes, opened.n_vocab
        self.n_ctx, self.kv_dtype, self.isa = opened.sizes.n_ctx, opened.kv_dtype, opened.isa
        self.n_ctx_train = opened.n_ctx_train
        # The fields of SamplingParams that the model's makers advise.
        self.advised_sampling: Mapping[str, object] = {**opened.sampling, **named.sampling}
        self._pooling = opened.pooling
        self._advice = opened.advice
        self._reserved_bytes = opened.reserved_bytes
        self._cache_kinds, self._has_state = opened.cache_kinds, opened.has_state
        self._output = opened.output
        self._prompts = Prompts(opened.tokenizer, opened.n_vocab, self.advised_sampling, named.system)
        self._texts = Texts(self._prompts, self.n_ctx, opened.advice)
        self._engine = Engine(opened.decoder, opened.n_vocab, makes_logits=not opened.output.is_encoder)
        # Also at the end of the program, and when nobody holds the model any more.
        self._close_engine = weakref.finalize(self, Engine.close, self._engine)
        forbid_in_children(self)

    def __repr__(self) -> str:
        name, kind = self.model_name, type(self).__name__
        return f"{kind}({name!r}, {self.architecture}, {self.n_ctx} tokens of context, {self.config.device})"

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; UnsupportedError for a file without a vocabulary."""
        return self._prompts.tokenizer

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the chat template reads; empty without a template."""
        return self._prompts.template_variables

    def use_chat_template(self, source: str) -> None:
        """Use a Jinja chat template in place of the model's.  LoadError if it is invalid."""
        self._prompts.use_template(source)

    def stats(self) -> DecoderStats:
        """Counters and gauges of the decoder: steps, preemptions, prefix hits, free blocks."""
        return self._engine.stats()

    def cache_use(self, stats: DecoderStats) -> list[tuple[str, int, int]]:
        """Of each kind of layers (``"full"``, ``"window 512"``, ``"chunk 8192"``, ``"state"``) the bytes in the cache:
        those that sequences hold, and those that are kept to be found again."""
        cache = stats.cache
        uses = [*zip(self._cache_kinds, cache.groups, strict=True), ("state", cache.states)]
        return [(kind, use.held, use.cached) for kind, use in uses if kind != "state" or self._has_state]

    def _embedding_requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: Pooling | None,
        options: RequestOptions,
        text: TextOptions,
    ) -> list[EngineRequest]:
        """Requests to embed one prompt or several; see ``_embedding_request``."""
        return [self._embedding_request(prompt, pooling, options, text) for prompt in prompt_list(prompts)]

    def _class_requests(
        self, prompts: Prompt | Sequence[Prompt | Pair], options: RequestOptions, text: TextOptions
    ) -> list[EngineRequest]:
        """Requests for the scores of classes of texts and pairs; see ``_score_request``."""
        return [self._score_request(prompt, options, text) for prompt in text_list(prompts)]

    def _pair_requests(
        self,
        query: str,
        documents: Sequence[str],
        instruction: str | None,
        options: RequestOptions,
        text: TextOptions,
    ) -> list[EngineRequest]:
        """Requests for the scores of a query with each document; see ``_score_request``."""
        return [self._score_request((query, document), options, text, instruction) for document in documents]

    def _embedding_request(
        self, prompt: Prompt, pooling: Pooling | None, options: RequestOptions, text: TextOptions
    ) -> EngineRequest:
        """A request to embed.  RequestError for an unknown pooling, UnsupportedError where only the file names one."""
        if pooling is None and self._pooling is None:
            raise UnsupportedError("[embed] pooling must be given: that of the model's file is not known")
        if pooling not in ("none", "mean", "cls", "last", None):
            raise RequestError(f"[embed] pooling must be mean, cls or last but is {pooling!r:.40}")
        if self._output.is_encoder and self._output.scores_classes:
            raise UnsupportedError("[embed] the model must give vectors but gives scores of classes: use classify")
        chosen = pooling or self._pooling
        assert chosen is not None
        return self._prompts.embedding_request(self._texts.embedded(prompt, text), chosen, options)

    @property
    def prompts(self) -> Mapping[str, str]:
        """What the makers of an embedding model put before texts, by the names that ``prompt_name`` takes."""
        return self._advice.prompts

    @property
    def shows_raw_scores(self) -> bool:
        """Whether a cross-encoder's makers show its scores as they are: a server does not bring them to 0 to 1 then."""
        return self._advice.is_score_raw

    def _taps_requests(self, prompts: Prompt | Sequence[Prompt], layers: Sequence[int]) -> list[EngineRequest]:
        """Requests for hidden states after layers.  RequestError for layers that were not tapped when it was opened."""
        items = prompt_list(prompts)
        if missing := sorted(set(layers).difference(self.config.taps)):
            raise RequestError(
                f"[hidden_states] layers must be among the taps that the model was opened with, {self.config.taps}, "
                f"but {missing[0]} is not"
            )
        if not layers:
            raise RequestError("[hidden_states] layers must name a layer but are empty")
        return [self._prompts.embedding_request(prompt, "taps", RequestOptions()) for prompt in items]

    def _tapped(self, vectors: Sequence[Vectors], layers: Sequence[int]) -> list[npt.NDArray[np.float32]]:
        """Of each request the layers that were asked for, of rows that hold all taps side by side."""
        taps = [self.config.taps.index(layer) for layer in layers]
        found = [item.vector for item in vectors if item.vector is not None]
        by_tap = [rows.reshape(len(rows), len(self.config.taps), -1) for rows in found]
        return [rows[:, taps].transpose(1, 0, 2) for rows in by_tap]

    @property
    def is_encoder(self) -> bool:
        """Whether the model gives vectors, or scores of classes, and no text."""
        return self._output.is_encoder

    @property
    def scores_classes(self) -> bool:
        """Whether the model has a classifier, as ``classify`` and ``rerank`` need one."""
        return self._output.scores_classes

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes that a classifier's model scores, in order; empty where the file names none."""
        return self._output.labels

    def _score_request(
        self, prompt: Prompt | Pair, options: RequestOptions, text: TextOptions, instruction: str | None = None
    ) -> EngineRequest:
        """A request for the scores of classes, of a text or a pair.  UnsupportedError for a model without them."""
        output = self._output
        if not output.scores_classes:
            raise UnsupportedError("[classify] the model must have a classifier but has none")
        template = output.head.template if output.head else None
        if instruction is not None and (template is None or not is_pair(prompt)):
            raise UnsupportedError("[rerank] the model must have a template to be given an instruction but has none")
        pooling: Pooling = "last" if output.head else "cls"
        if not is_pair(prompt):
            return self._prompts.embedding_request(self._texts.single(cast("Prompt", prompt), text), pooling, options)
        if template is not None:
            judged = self._texts.judged(template, prompt, instruction, text)
            return self._prompts.embedding_request(judged, pooling, options)
        ids, second_text = self._texts.pair(*prompt, text)
        marked = second_text if output.tells_texts_apart else None
        return self._prompts.embedding_request(ids, pooling, options, marked)

    def _scores(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores of classes ``[n, n_classes]`` of what such requests gave."""
        head = self._output.head
        return vectors if head is None else head.scores(vectors)

    def _classes(self, vectors: npt.NDArray[np.float32], *, raw_scores: bool) -> npt.NDArray[np.float32]:
        """What is shown of the scores of classes, or these themselves."""
        scores = self._scores(vectors)
        return scores if raw_scores else self._output.shown(scores)

    def _relevance(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """A score ``[n]`` of each pair."""
        return relevance(self._scores(vectors), self.labels)

    def _class_values(self, vector: npt.NDArray[np.float32]) -> dict[str, object]:
        """What a server tells of the scores of one text or pair (``server.worker.protocol.Score``)."""
        scores = self._scores(vector[None])
        return {
            "scores": scores[0].tolist(),
            "shown": self._output.shown(scores)[0].tolist(),
            "labels": list(self.labels),
            "relevance": float(relevance(scores, self.labels)[0]),
            "is_judged": is_judged(self.labels),
            "is_raw": self.shows_raw_scores,
        }

    def _joined_logits(self, events: Sequence[Event]) -> npt.NDArray[np.float32]:
        import numpy as np

        rows = [event.logits for event in events if event.logits is not None]
        return np.concatenate(rows).reshape(-1, self.n_vocab)


def parser_of(form: StructuredOutputsParams | None) -> Callable[[str], Any] | None:
    """The function that parses an answer of this form as data; None for a form that is not JSON."""
    if form is None or (form.json is None and not form.json_object):
        return None
    return form.parses or json.loads


def collector_of(request: EngineRequest) -> Collector:
    """What joins the answers to a request."""
    params = request.params
    return Collector(
        request.token_ids,
        request.n,
        logprobs=params is not None and params.logprobs is not None,
        prompt_logprobs=params is not None and params.prompt_logprobs is not None,
        parses=None if params is None else parser_of(params.structured_outputs),
    )


class Vectors:
    """Takes the events of one request to embed."""

    def __init__(self) -> None:
        self.vector: npt.NDArray[np.float32] | None = None
        self.complete = False

    def add(self, event: Event) -> None:
        """Take an event of kind ``"embedding"`` or ``"finish"``."""
        if event.kind == "embedding":
            self.vector = event.embedding
        self.complete = self.complete or event.kind == "finish"


def stacked(vectors: Sequence[Vectors], place: str) -> npt.NDArray[np.float32]:
    """The vectors of several requests as one array.  RequestError where there are none."""
    import numpy as np

    if not vectors:
        raise RequestError(f"[{place}] prompts must have a prompt but are empty")
    result: npt.NDArray[np.float32] = np.stack([item.vector for item in vectors if item.vector is not None])
    return result


def normalized(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Vectors ``[..., n]`` of length 1; zeros stay."""
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
