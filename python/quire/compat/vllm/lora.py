"""vLLM's ``LoRARequest``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import RequestError

if TYPE_CHECKING:
    from ... import engine
    from ...params import sampling

__all__ = ["LoRARequest", "with_adapters"]


@dataclass(frozen=True)
class LoRARequest:
    """An adapter by name, and its GGUF file or PEFT folder, which is loaded when the name is first used."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    long_lora_max_len: int | None = None
    base_model_name: str | None = None
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise RequestError(f"[vllm.LoRARequest] lora_int_id {self.lora_int_id} is out of range: expected 1 or more")


def with_adapters(
    llm: engine.LLM,
    params: Sequence[sampling.SamplingParams],
    given: LoRARequest | Sequence[LoRARequest | None] | None,
) -> Sequence[sampling.SamplingParams]:
    """Return parameters that choose the adapters of ``lora_request``, one for all prompts or one each."""
    if given is None:
        return params
    each = [given] * len(params) if isinstance(given, LoRARequest) else list(given)
    if len(each) != len(params):
        raise RequestError(f"[vllm.LLM] lora_request has {len(each)} entries for {len(params)} prompts")
    known = {adapter.name for adapter in llm.adapters}
    for asked in each:
        if asked is not None and (asked.load_inplace or asked.lora_name not in known):
            llm.load_adapter(asked.lora_path, asked.lora_name, replace=asked.load_inplace)
            known.add(asked.lora_name)
    return [
        one if asked is None else replace(one, adapter=asked.lora_name) for one, asked in zip(params, each, strict=True)
    ]
