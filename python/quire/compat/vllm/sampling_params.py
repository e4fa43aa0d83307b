"""vLLM's mutable sampling parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ...errors import RequestError, UnsupportedError
from ...params import sampling
from ...params.structured import SchemaClass
from ...params.structured import StructuredOutputsParams as Form
from ..ignored import refuse_set

if TYPE_CHECKING:
    from ...params.sampling import LogitsProcessor
    from ...tokenizer import Tokenizer

__all__ = ["GuidedDecodingParams", "SamplingParams", "StructuredOutputsParams"]


@dataclass
class StructuredOutputsParams:
    """The form of an answer; exactly one of the first five is set.  See ``quire.StructuredOutputsParams``."""

    json: str | Mapping[str, Any] | SchemaClass | None = None
    regex: str | None = None
    choice: Iterable[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def form(self) -> Form:
        """Convert to the engine's form.  UnsupportedError names what it does not support."""
        refuse_set("vllm.StructuredOutputsParams", self.__dict__, _NOT_HERE)
        schema = self.json.model_json_schema() if isinstance(self.json, SchemaClass) else self.json
        return Form(
            json=schema,
            json_object=bool(self.json_object),
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            disable_any_whitespace=self.disable_any_whitespace,
            whitespace_pattern=self.whitespace_pattern,
        )


_NOT_HERE: Mapping[str, object] = {"disable_additional_properties": False, "structural_tag": None}


@dataclass
class GuidedDecodingParams(StructuredOutputsParams):
    """The older name.  ``backend`` has no effect: the engine has a single one."""

    backend: str | None = None


@dataclass
class SamplingParams:
    """Sampling parameters with vLLM's names and defaults: ``max_tokens`` is 16."""

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    logits_processors: Sequence[LogitsProcessor] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    guided_decoding: StructuredOutputsParams | None = None
    extra_args: Mapping[str, Any] | None = None
    output_kind: object | None = None

    def clone(self) -> SamplingParams:
        """Return a deep copy."""
        return copy.deepcopy(self)

    def quire(self, tokenizer: Tokenizer) -> sampling.SamplingParams:
        """Convert to the engine's parameters.  UnsupportedError or RequestError names an unsupported or invalid one."""
        refuse_set("vllm.SamplingParams", self.__dict__, _REFUSED)
        if self.best_of not in (None, self.n):
            raise UnsupportedError(
                f"[vllm.SamplingParams] best_of {self.best_of!r:.40} is not n, which is unsupported: leave it out"
            )
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise RequestError(
                "[vllm.SamplingParams] both structured_outputs and guided_decoding are given: choose one"
            )
        form = self.structured_outputs or self.guided_decoding
        values = {name: getattr(self, name) for name in _SAME}
        for name in ("stop", "stop_token_ids", "bad_words", "logits_processors", "logit_bias"):
            if (value := getattr(self, name)) is not None:
                values[name] = value
        values["structured_outputs"] = None if form is None else form.form()
        return sampling.SamplingParams(**values)


_SAME = (
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
    "seed", "include_stop_str_in_output", "ignore_eos", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs",
    "allowed_token_ids",
)  # fmt: skip
# Unsupported, as they would change the answer, unless they have these values.  Special tokens are never shown.
_REFUSED: Mapping[str, object] = {
    "skip_special_tokens": True, "truncate_prompt_tokens": None, "extra_args": None, "detokenize": True,
}  # fmt: skip


def default_params(advised: Mapping[str, object]) -> SamplingParams:
    """Return vLLM's defaults with the advice of the model's file."""
    known = {entry.name for entry in fields(SamplingParams)}
    return SamplingParams(**{name: value for name, value in advised.items() if name in known})  # type: ignore[arg-type]
