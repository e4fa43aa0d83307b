"""vLLM's ``LLM``, on Quire's engine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from math import exp
from typing import TYPE_CHECKING, Any

from ... import engine
from ...engine.loading.ranking import is_judged, relevance
from ...engine.requests.chat import conversations
from ...engine.requests.vectors import normalized
from ...errors import RequestError, UnsupportedError
from ..ignored import note_ignored, refuse_set, refuse_unknown
from .lora import LoRARequest, with_adapters
from .outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    request_output,
)
from .pooling_params import PoolingParams
from .prompts import Given, prompts_of
from .sampling_params import SamplingParams, default_params

if TYPE_CHECKING:
    from ...chat import Messages
    from ...params import sampling
    from ...tokenizer import Tokenizer

__all__ = ["LLM"]

_PLACE = "vllm.LLM"
# Arguments without effect here, with vLLM's defaults.
_IGNORED: Mapping[str, object] = {
    "tokenizer_mode": "auto", "skip_tokenizer_init": False, "trust_remote_code": False, "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1, "dtype": "auto", "gpu_memory_utilization": 0.9, "swap_space": 4, "cpu_offload_gb": 0,
    "enforce_eager": False, "max_seq_len_to_capture": 8192, "disable_custom_all_reduce": False, "task": "auto",
    "runner": "auto", "convert": "auto", "enable_prefix_caching": None, "enable_chunked_prefill": None, "seed": 0,
    "max_num_batched_tokens": None, "disable_log_stats": True, "download_dir": None, "load_format": "auto",
    "compilation_config": None, "block_size": None, "distributed_executor_backend": None, "revision": None,
    "tokenizer_revision": None, "structured_outputs_config": None, "guided_decoding_backend": "auto",
    "limit_mm_per_prompt": None, "disable_async_output_proc": False, "device": "auto", "async_scheduling": None,
    "enable_lora": False, "max_loras": 1, "max_lora_rank": 16, "max_cpu_loras": None, "lora_dtype": "auto",
}  # fmt: skip
# Arguments that would change what the model computes.
_REFUSED: Mapping[str, object] = {
    "rope_scaling": None, "speculative_config": None,
    "override_pooler_config": None, "pooler_config": None, "allowed_local_media_path": "", "mm_processor_kwargs": None,
}  # fmt: skip
# Values of ``task``, ``runner`` and ``convert`` that ask a decoder for vectors.
_FOR_VECTORS = frozenset({"embed", "embedding", "score", "pooling"})
_KV_DTYPES = {"auto": "auto", "float16": "f16", "bfloat16": "bf16"}


class LLM:
    """A model, ready to answer prompts in batches.  Arguments and methods are those of vLLM's class of this name.

    ``model``: a name such as ``org/name``, a GGUF file or a checkpoint folder.  A quantization is the file's own.
    What the engine has no use for is noted in the log; what would change the answer and is not there is refused by
    name.
    """

    def __init__(self, model: str | os.PathLike[str], tokenizer: str | None = None, **options: Any) -> None:
        known = {"max_model_len", "max_num_seqs", "kv_cache_dtype", "quantization", "hf_overrides", "rope_theta"}
        refuse_unknown("LLM", options, {*known, *_IGNORED, *_REFUSED})
        refuse_set(_PLACE, options, _REFUSED)
        note_ignored(_PLACE, {**options, "tokenizer": tokenizer}, {**_IGNORED, "tokenizer": None})
        kv_dtype = options.get("kv_cache_dtype", "auto")
        if kv_dtype not in _KV_DTYPES:
            known_types = ", ".join(_KV_DTYPES)
            raise UnsupportedError(f"[{_PLACE}] kv_cache_dtype {kv_dtype!r:.40} is unsupported: expected {known_types}")
        if options.get("quantization") not in (None, "gguf"):
            raise UnsupportedError(
                f"[{_PLACE}] quantization {options['quantization']!r} is not supported: the file's own is used"
            )
        self._llm = engine.LLM(
            model,
            n_ctx=options.get("max_model_len"),
            max_sequences=options.get("max_num_seqs"),
            kv_dtype=_KV_DTYPES[kv_dtype],  # type: ignore[arg-type]
            hf_overrides=options.get("hf_overrides") or None,
            rope_freq_base=options.get("rope_theta"),
        )
        asked = (options.get("task"), options.get("runner"), options.get("convert"))
        self._gives_vectors = self._llm.is_encoder or not _FOR_VECTORS.isdisjoint(asked)
        self._numbers = itertools.count()

    def generate(
        self,
        prompts: Given | Sequence[Given],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts in one batch; results are in the order of the prompts."""
        given = prompts_of(prompts)
        if priority is not None:
            raise UnsupportedError(f"[{_PLACE}] priority is not supported: leave it out")
        results = self._llm.generate(given, self._params(sampling_params, len(given), lora_request))
        texts = [prompt["prompt"] if isinstance(prompt, Mapping) else prompt for prompt in given]
        shown = [text if isinstance(text, str) else None for text in texts]
        tokenizer = self._llm.tokenizer
        return [
            request_output(next(self._numbers), prompt, result, tokenizer)
            for prompt, result in zip(shown, results, strict=True)
        ]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        *,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several; ``.outputs[0].text`` is the answer as generated."""
        usual = {"add_generation_prompt": True, "continue_final_message": False, "mm_processor_kwargs": None}
        given = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "mm_processor_kwargs": mm_processor_kwargs,
        }
        refuse_set(_PLACE, given, usual)
        all_messages, _ = conversations(messages)
        params = self._params(sampling_params, len(all_messages), lora_request)
        if chat_template is not None:
            return self._rendered(all_messages, params, chat_template, tools, chat_template_kwargs or {})
        results = self._llm.chat(
            all_messages, params, tools=tools, tool_format="none", template_values=chat_template_kwargs
        )
        tokenizer = self._llm.tokenizer
        return [
            request_output(
                next(self._numbers), tokenizer.decode(result.prompt_token_ids, skip_special=False), result, tokenizer
            )
            for result in results
        ]

    def _rendered(
        self,
        all_messages: Sequence[Messages],
        params: Sequence[sampling.SamplingParams],
        template: str,
        tools: Sequence[Mapping[str, Any]] | None,
        values: Mapping[str, Any],
    ) -> list[RequestOutput]:
        """Answer with another template than the model's."""
        from ...chat import ChatTemplate

        tokenizer = self._llm.tokenizer
        made = ChatTemplate(template, tokenizer.special_texts, tokenizer.control_tokens)
        prompts = [
            tokenizer.encode_segments(made.render_segments(messages, tools, True, **values))
            for messages in all_messages
        ]
        results = self._llm.generate(prompts, params)
        shown = [tokenizer.decode(ids, skip_special=False) for ids in prompts]
        return [
            request_output(next(self._numbers), prompt, result, tokenizer)
            for prompt, result in zip(shown, results, strict=True)
        ]

    def embed(
        self, prompts: Given | Sequence[Given], use_tqdm: bool = True, pooling_params: PoolingParams | None = None
    ) -> list[EmbeddingRequestOutput]:
        """Return the vector of each prompt, scaled to length 1."""
        params = pooling_params or PoolingParams()
        params.check(_PLACE, {"truncate_prompt_tokens": None})
        ids = self._ids(prompts)
        rows = self._llm.embed(ids, normalize=False)
        if params.dimensions is not None:
            if not 1 <= params.dimensions <= rows.shape[1]:
                raise RequestError(
                    f"[{_PLACE}] dimensions {params.dimensions!r:.40} is out of range: expected 1 to {rows.shape[1]}"
                )
            rows = rows[:, : params.dimensions]
        vectors = normalized(rows) if params.is_activated else rows
        return [
            EmbeddingRequestOutput(str(next(self._numbers)), EmbeddingOutput(vector), one)
            for one, vector in zip(ids, vectors.tolist(), strict=True)
        ]

    encode = embed

    def classify(
        self, prompts: Given | Sequence[Given], use_tqdm: bool = True, pooling_params: PoolingParams | None = None
    ) -> list[ClassificationRequestOutput]:
        """Return class probabilities for each prompt, or scores with ``use_activation=False``."""
        params = pooling_params or PoolingParams()
        params.check(_PLACE, {"truncate_prompt_tokens": None, "dimensions": None})
        ids = self._ids(prompts)
        rows = self._llm.classify(ids, raw_scores=not params.is_activated)
        return [
            ClassificationRequestOutput(str(next(self._numbers)), ClassificationOutput(row), one)
            for one, row in zip(ids, rows.tolist(), strict=True)
        ]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        lora_request: None = None,
    ) -> list[ScoringRequestOutput]:
        """Return how well each text of ``data_2`` answers that of ``data_1``.

        By a model with a classifier of one class, or of yes and no: a probability, or with ``use_activation=False``, or
        where the model's makers name Identity as its activation, what it is made of.  By one that gives vectors: their
        cosine.
        """
        _refuse_lora(lora_request)
        params = pooling_params or PoolingParams()
        params.check(_PLACE, {"dimensions": None})
        queries = [data_1] if isinstance(data_1, str) else list(data_1)
        texts = [data_2] if isinstance(data_2, str) else list(data_2)
        if len(queries) not in (1, len(texts)):
            raise RequestError(
                f"[{_PLACE}] data_1 has {len(queries)} texts for {len(texts)} in data_2: give one, or as many"
            )
        kept = truncate_prompt_tokens if truncate_prompt_tokens is not None else params.truncate_prompt_tokens
        queries *= len(texts) if len(queries) == 1 else 1
        scores = self._scores(list(zip(queries, texts, strict=True)), kept, is_raw=not params.is_activated)
        return [ScoringRequestOutput(str(next(self._numbers)), ScoringOutput(score)) for score in scores]

    def _scores(self, pairs: Sequence[tuple[str, str]], kept: int | None, *, is_raw: bool) -> list[float]:
        """Return the score of each pair.  ``kept``: tokens to keep; -1: as many as fit into the context."""
        truncate = True if kept == -1 else kept or False
        if not self._llm.scores_classes and self._gives_vectors:
            first, second = (self._llm.embed([pair[i] for pair in pairs], truncate=truncate) for i in (0, 1))
            cosines: list[float] = (first * second).sum(axis=1).tolist()
            return cosines
        rows = self._llm.classify(pairs, truncate=truncate, raw_scores=True)
        if rows.shape[1] != 1 and not is_judged(self._llm.labels):
            raise UnsupportedError(f"[{_PLACE}] the model has {rows.shape[1]} classes: score needs a model with one")
        scores: list[float] = relevance(rows, self._llm.labels).tolist()
        return scores if is_raw or self._llm.shows_raw_scores else [1 / (1 + exp(-max(one, -700.0))) for one in scores]

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._llm.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return vLLM's defaults with the advice of the model's file."""
        return default_params(self._llm.advised_sampling)

    def close(self) -> None:
        """Free all memory."""
        self._llm.close()

    def __repr__(self) -> str:
        return repr(self._llm)

    def _ids(self, prompts: Given | Sequence[Given]) -> list[list[int]]:
        tokenizer = self._llm.tokenizer
        given = prompts_of(prompts)
        if any(isinstance(one, Mapping) for one in given):
            raise UnsupportedError(f"[{_PLACE}] multi_modal_data is supported by generate only")
        return [tokenizer.encode(one, True, True) if isinstance(one, str) else list(one) for one in given]  # type: ignore[arg-type]

    def _params(
        self,
        given: SamplingParams | Sequence[SamplingParams] | None,
        n: int,
        adapters: LoRARequest | Sequence[LoRARequest | None] | None,
    ) -> Sequence[sampling.SamplingParams]:
        params = given or self.get_default_sampling_params()
        each = [params] * n if isinstance(params, SamplingParams) else list(params)
        return with_adapters(self._llm, [one.quire(self._llm.tokenizer) for one in each], adapters)


def _refuse_lora(given: object) -> None:
    if given is not None:
        raise UnsupportedError(f"[{_PLACE}] lora_request is not supported for scores: leave it out")
