"""Wrong arguments of ``LLM(...)``: the message names the public call and the nearest argument."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

from ..sampling import SamplingParams

__all__ = ["names_its_call"]

P = ParamSpec("P")
T = TypeVar("T")

# What other engines call it.
_ELSEWHERE: Mapping[str, str] = {
    "model_path": "model", "model_id": "model", "path": "model", "pretrained_model_name_or_path": "model",
    "repo_id": "model", "hf_repo": "model", "n_threads": "threads", "num_threads": "threads", "num_thread": "threads",
    "n_threads_batch": "threads", "max_model_len": "n_ctx", "num_ctx": "n_ctx", "ctx_size": "n_ctx",
    "context_length": "n_ctx", "context_size": "n_ctx", "max_seq_len": "n_ctx", "max_length": "n_ctx",
    "n_batch": "max_step_tokens", "batch_size": "max_step_tokens", "n_ubatch": "max_step_tokens",
    "max_num_batched_tokens": "max_step_tokens", "max_num_seqs": "max_sequences", "n_parallel": "max_sequences",
    "n_seq_max": "max_sequences", "max_batch_size": "max_sequences", "gpu_layers": "n_gpu_layers",
    "num_gpu": "n_gpu_layers", "num_gpu_layers": "n_gpu_layers", "ngl": "n_gpu_layers", "device_map": "device",
    "kv_cache_dtype": "kv_dtype", "cache_type_k": "kv_dtype", "cache_type_v": "kv_dtype", "type_k": "kv_dtype",
    "type_v": "kv_dtype", "draft_model": "draft", "speculative_model": "draft", "model_draft": "draft",
    "num_speculative_tokens": "draft_max", "speculative_config": "speculation", "lora": "adapters",
    "lora_path": "adapters", "lora_paths": "adapters", "adapter": "adapters", "use_mmap": "load", "use_mlock": "load",
    "quantization": "quantize", "load_in_8bit": "quantize", "load_in_4bit": "quantize", "torch_dtype": "quantize",
    "dtype": "kv_dtype", "gpu_memory_utilization": "memory_bytes", "num_gpu_blocks_override": "n_blocks",
    "scheduling_policy": "policy", "tensor_parallel_size": "tensor_split",
}  # fmt: skip


def names_its_call(
    function: Callable[Concatenate[T, P], None],
) -> Callable[Concatenate[T, P], None]:
    """A constructor whose errors about arguments name the class that is called, not the one that has it."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(self: T, /, *args: P.args, **given: P.kwargs) -> None:
        known = list(signature.parameters)[1:]
        for name in given:
            if name not in known:
                raise TypeError(_unknown(type(self).__name__, name, known))
        if len(args) > 1:
            raise TypeError(
                f"{type(self).__name__}() takes the model as its only positional argument, and {len(args)} were given: "
                "name the others, as in n_ctx=4096"
            )
        function(self, *args, **given)

    return checked


def _unknown(call: str, name: str, known: list[str]) -> str:
    advice = ""
    nearest = _ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), None)
    if nearest is not None:
        advice = f": did you mean {nearest!r}?"
    elif name in SamplingParams.__dataclass_fields__ or name in ("system", "tools", "response_format"):
        advice = f": it belongs to a request, as in generate(prompt, {name}=...)"
    return f"{call}() got an unexpected keyword argument {name!r}{advice}"
