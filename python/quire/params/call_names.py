"""Wrong arguments of public calls: the message names the call and the nearest argument."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["ELSEWHERE", "name_call", "names_its_call", "unknown_argument"]

P = ParamSpec("P")
T = TypeVar("T")

# Names that other engines give to request fields, with Quire's own.
ELSEWHERE = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "penalty_last_n",
    "temp": "temperature",
    "typical": "typical_p",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "num_return_sequences": "n",
    "suppress_tokens": "bad_token_ids",
    "json_schema": "response_format",
    "schema": "response_format",
    "guided_json": "response_format",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "sampling_params": "params",
    "functions": "tools",
    "chat_template_kwargs": "template_values",
}
# And options of models.
_OPTIONS: Mapping[str, str] = {
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


def names_its_call(function: Callable[Concatenate[T, P], None]) -> Callable[Concatenate[T, P], None]:
    """Have a constructor's errors about arguments name the class that is called, not the one that defines it."""
    signature = inspect.signature(function)
    own = list(signature.parameters)[1:]
    n_positional = sum(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in signature.parameters.values())

    @functools.wraps(function)
    def checked(self: T, /, *args: P.args, **given: P.kwargs) -> None:
        call = type(self).__name__
        for name in given:
            if name not in own:
                raise TypeError(unknown_argument(call, name, own))
        if len(args) >= n_positional:
            example = own[n_positional - 1]
            raise TypeError(
                f"{call}() takes {n_positional - 1} positional arguments, and {len(args)} were given: name the others, "
                f"as in {example}=..."
            )
        function(self, *args, **given)

    return checked


def name_call(kind: type[Any]) -> None:
    """Apply ``names_its_call`` to a class with a generated constructor."""
    kind.__init__ = names_its_call(kind.__init__)


def unknown_argument(call: str, name: str, known: Collection[str]) -> str:
    """The error message for an argument that a call does not have, with a suggestion if one is near."""
    close = difflib.get_close_matches(name, known, 1)
    nearest = next((each for each in (_OPTIONS.get(name), ELSEWHERE.get(name), *close) if each in known), None)
    advice = f": did you mean {nearest!r}?" if nearest is not None else ""
    if nearest is None and name in ("system", "tools", "temperature", "max_tokens", "stop", "top_k", "top_p", "seed"):
        advice = f": it belongs to a request, as in generate(prompt, {name}=...)"
    return f"{call}() got an unexpected keyword argument {name!r}{advice}"
