"""The keywords of calls that generate: the fields of ``SamplingParams``, and the form of the answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict

from ..errors import RequestError
from .sampling import ALIASES, PARAMETERS, SamplingParams
from .sampling_defaults import chat_defaults
from .structured import SchemaClass, StructuredOutputsParams, answer_form

if TYPE_CHECKING:
    from .sampling import AdapterChoice, LogitsProcessor

__all__ = ["ELSEWHERE", "RequestFields", "RequestKeywords", "read_keywords"]

ELSEWHERE: Mapping[str, str] = {
    **ALIASES,
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
"""Keywords by the names that other engines give them."""


class RequestFields(TypedDict, total=False):
    """Fields of ``SamplingParams`` by name, and at most one of the last four, which set the form of the answer."""

    # BEGIN SamplingParams (written by ci/make_params.py)
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    n: int
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    tfs_z: float
    top_n_sigma: float | None
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float | None
    adaptive_decay: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int | None
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str]
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int] | None
    bad_token_ids: Sequence[int]
    bad_words: Sequence[str]
    banned_strings: Sequence[str]
    seed: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    processed_logprobs: bool
    samplers: Sequence[str]
    logits_processors: Sequence[LogitsProcessor]
    control_vectors: AdapterChoice | None
    guidance_scale: float
    negative_prompt: str | None
    structured_outputs: StructuredOutputsParams | None
    speculation: str | None
    prediction: str | None
    adapter: AdapterChoice | None
    # END SamplingParams
    response_format: Mapping[str, object] | SchemaClass | None
    regex: str | None
    choice: Iterable[str] | None
    grammar: str | None


_FORM = ("response_format", "regex", "choice", "grammar")


@dataclass(frozen=True)
class RequestKeywords:
    """The keywords of a call: ``fields`` of SamplingParams, and the ``form`` of the answer."""

    fields: Mapping[str, object] = field(default_factory=dict)
    form: StructuredOutputsParams | None = None

    def sampling_params(
        self, params: SamplingParams | None, advised: Mapping[str, object] | None = None
    ) -> SamplingParams:
        """Return ``params`` with the keywords in place of their fields.

        If ``params`` is None, the keywords go over the defaults of a chat with ``advised`` (the advice of the model's
        file), or without it over parameters that leave the model's distribution as it is.  RequestError if ``params``
        are none, and for a form that is given twice.
        """
        if params is not None and not isinstance(params, SamplingParams):
            raise RequestError(f"[sampling] params is {type(params).__name__}: give SamplingParams")
        values: dict[str, object] = dict(self.fields)
        if params is None and advised is not None:
            values = {**chat_defaults(advised, values), **values}
        made = replace(params or SamplingParams(), **values) if values else params or SamplingParams()  # type: ignore[arg-type]
        if self.form is None:
            return made
        if made.structured_outputs is not None:
            raise RequestError("[structured_outputs] the form of the answer is given twice: give one")
        return replace(made, structured_outputs=self.form)


def read_keywords(method: Callable[..., object], given: RequestFields) -> RequestKeywords:
    """Read the keywords of a public method.  TypeError that names it and the nearest keyword if one is unknown."""
    values: dict[str, object] = {**given}
    for name in values:
        if name not in PARAMETERS and name not in _FORM:
            raise TypeError(_unknown(method, name))
    form = {name: values.pop(name) for name in _FORM if name in values}
    return RequestKeywords(values, answer_form(**form))  # type: ignore[arg-type]


def _unknown(method: Callable[..., object], name: str) -> str:
    import difflib

    known = list(inspect.signature(method).parameters)[1:]
    nearest = ELSEWHERE.get(name)
    if nearest not in known:
        nearest = next(iter(difflib.get_close_matches(name, known, 1)), None)
    advice = "" if nearest is None else f": did you mean {nearest!r}?"
    return f"{method.__qualname__}() got an unexpected keyword argument {name!r}{advice}"
