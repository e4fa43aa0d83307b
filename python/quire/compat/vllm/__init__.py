"""A stand-in for vLLM's offline inference: ``from quire.compat.vllm import LLM, SamplingParams``.

``LLM`` has ``generate``, ``chat``, ``embed``, ``classify``, ``score``, ``get_tokenizer`` and
``get_default_sampling_params``, with vLLM's arguments, defaults and results (``.outputs[0].text``).
"""

from .llm import LLM
from .lora import LoRARequest
from .outputs import (
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingRequestOutput,
    Logprob,
    RequestOutput,
    ScoringRequestOutput,
)
from .pooling_params import PoolingParams
from .prompts import TextPrompt, TokensPrompt
from .sampling_params import GuidedDecodingParams, SamplingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "GuidedDecodingParams",
    "LoRARequest",
    "Logprob",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]
