"""The fields of llama.cpp's ``/completion``, with its names and defaults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from ....params.sampling import SamplingParams, fields_of
from ....params.sampling_defaults import chat_defaults
from ....params.stages import LLAMA_CPP_ORDER
from ...body_types import Body
from ...failures import ApiError
from ...worker.protocol import ModelInfo
from ..adapter_scales import LoraScales, chosen_scales, shown_adapters
from ..fields import Bias, ConstrainedBody, Id, Name, Slot, Stop, Stops, Text, stops_of
from ..sampling_fields import entry_limits, limits_of, sampling_fields, sampling_of
from ..stages import stages_of, with_last

__all__ = ["CompletionBody", "GenerationFields", "InfillBody", "PromptObject", "settings_of"]

_NO_SEED = 2**32 - 1

Limit: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Several: TypeAlias = Annotated[int, limits_of("n")]
Probabilities: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Breaker: TypeAlias = Annotated[str, Meta(min_length=1), limits_of("dry_sequence_breakers")]
Stage: TypeAlias = Annotated[str, Meta(max_length=32)]
BiasValue: TypeAlias = Bias | bool
Tokenize: TypeAlias = Callable[[str, bool, bool], Awaitable[list[int]]]
"""Tokenizes a text; the flags add special tokens, and parse special tokens."""


class PromptObject(Body, kw_only=True, forbid_unknown_fields=True):
    """A prompt with images and sounds in base64; a mark, ``/props``' ``media_marker``, stands for each in the text."""

    prompt_string: Text
    multimodal_data: Annotated[list[str], Meta(max_length=4096)] = []


Part: TypeAlias = Text | Id
PromptItem: TypeAlias = Text | Id | Annotated[list[Part], Meta(max_length=1 << 22)] | PromptObject


@sampling_fields("llama_cpp")
class GenerationFields(ConstrainedBody, kw_only=True, forbid_unknown_fields=True):
    """Fields that ``/completion`` and ``/infill`` share."""

    model: Name | None = None
    stream: bool = False
    n_predict: Limit | None = None
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    n_cmpl: Several | None = None
    n: Several | None = None
    dry_sequence_breakers: Annotated[list[Breaker], entry_limits("dry_sequence_breakers")] = []
    samplers: Annotated[list[Stage], Meta(max_length=32)] | Stage | None = None
    logit_bias: (
        Annotated[dict[str, BiasValue], entry_limits("logit_bias")]
        | Annotated[list[tuple[Id | Text, BiasValue]], entry_limits("logit_bias")]
    ) = {}
    stop: Stop | Stops | None = None
    banned_strings: Annotated[list[Annotated[str, limits_of("banned_strings")]], entry_limits("banned_strings")] = []
    negative_prompt: Text | None = None
    control_vectors: Annotated[dict[str, float], Meta(max_length=32)] | None = None
    n_probs: Probabilities | None = None
    logprobs: Probabilities | None = None
    post_sampling_probs: bool = False
    grammar: Annotated[str, Meta(max_length=1 << 18)] = ""
    json_schema: dict[str, Any] | bool | None = None
    cache_prompt: bool = True
    return_tokens: bool = False
    id_slot: Slot = -1
    t_max_predict_ms: Limit = 0
    timings_per_token: bool = False
    return_progress: bool = False
    lora: LoraScales = []
    response_fields: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=64)] = []
    hints: ClassVar[dict[str, tuple[object, ...]]] = {
        **ConstrainedBody.hints,
        # Slots, context shifting and hardware options belong to the server.
        "verbose": (False,),
        "stream_options": ({}, {"include_usage": False}),
        "n_keep": (0,),
        "n_discard": (0,),
        "n_cache_reuse": (0,),
        "t_max_prompt_ms": (0, -1),
        "backend_sampling": (False,),
        "preserved_tokens": ([],),
        # The draft length adapts to its cost.
        "speculative.n_max": (),
        "speculative.n_min": (),
        "speculative.p_min": (),
        # A raw completion does not separate reasoning or tool calls.
        "reasoning_control": (False,),
        "reasoning_budget_tokens": (-1,),
        "reasoning_budget_start_tag": ("",),
        "reasoning_budget_end_tag": ("",),
        "reasoning_budget_end_tags": ([],),
        "reasoning_budget_message": ("",),
        "reasoning_format": ("none",),
        "chat_format": (),
        "chat_parser": ("",),
        "generation_prompt": ("",),
        "parse_tool_calls": (False,),
    }
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        "n_indent": (0,),
        "continue_final_message": (False,),
        "echo": (False,),
        "image_data": ([],),
        "system_prompt": ("",),
    }

    def one_of(self, *names: str) -> Any:
        """Return the value of a field that has several names.  ApiError 400 if they disagree."""
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if len(set(given.values())) > 1:
            first, second, *_ = given
            text = f"{second} and {first} disagree: give only one"
            raise ApiError(400, "invalid_value", text, second)
        return next(iter(given.values()), None)

    @property
    def n_new(self) -> int | None:
        """Most tokens to generate: ``n_predict``; -1 is no limit, and 0 only processes the prompt."""
        wanted: int | None = self.one_of("n_predict", "max_tokens", "max_completion_tokens")
        return None if wanted is None or wanted < 0 else wanted

    @property
    def n_choices(self) -> int:
        """Number of answers to each prompt."""
        return self.one_of("n_cmpl", "n") or 1

    @property
    def n_shown_probabilities(self) -> int:
        """Number of alternatives to show for each token; 0 shows none at all."""
        return self.one_of("n_probs", "logprobs") or 0


class CompletionBody(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """A prompt or several: texts, ids, or lists that mix both."""

    prompt: Text | Annotated[list[PromptItem], Meta(min_length=1, max_length=1 << 22)] | PromptObject
    example: ClassVar[dict[str, object]] = {"prompt": "Once upon a time", "n_predict": 16}


class Extra(msgspec.Struct, forbid_unknown_fields=True):
    """Another file, as context for the gap."""

    text: Text
    filename: Annotated[str, Meta(max_length=4096)] = "tmp"


class InfillBody(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """The text before and after the gap; ``prompt`` begins the gap, and ``input_extra`` goes before everything."""

    input_prefix: Text
    input_suffix: Text
    input_extra: Annotated[list[Extra], Meta(max_length=256)] = []
    prompt: Text = ""


@dataclass(frozen=True)
class Settings:
    """How to generate an answer.  ``n_new`` 0 only processes the prompt.  ``lora`` has the scales of adapters."""

    params: SamplingParams
    n_new: int | None
    lora: list[dict[str, Any]]

    def shown(self) -> dict[str, Any]:
        """Return the settings under llama.cpp's names."""
        p = self.params
        numbers = {
            field: getattr(p, name) for name, (field,) in fields_of("llama_cpp").items() if name != "speculation"
        }
        form = p.structured_outputs
        return {
            **{field: -1 if value is None else value for field, value in numbers.items()},
            "seed": _NO_SEED if p.seed is None else p.seed,
            "dry_sequence_breakers": list(p.dry_sequence_breakers),
            "n_predict": -1 if self.n_new is None else self.n_new,
            "max_tokens": -1 if self.n_new is None else self.n_new,
            "stop": list(p.stop),
            "n_probs": 0 if p.logprobs is None else p.logprobs,
            "post_sampling_probs": p.processed_logprobs,
            "samplers": list(p.samplers),
            "grammar": "" if form is None or form.grammar is None else form.grammar,
            "logit_bias": [{"token": id_, "bias": bias} for id_, bias in p.logit_bias.items()]
            + [{"token": id_, "bias": False} for id_ in p.bad_token_ids],
            "lora": self.lora,
        }


async def settings_of(body: GenerationFields, info: ModelInfo, tokenize: Tokenize) -> Settings:
    """Return the settings for a body.  ApiError or RequestError naming an invalid field."""
    given = sampling_of(body)
    if given.get("seed") == _NO_SEED:
        del given["seed"]
    stages = LLAMA_CPP_ORDER if body.samplers is None else stages_of(body.samplers)
    values = {**chat_defaults(info.advised, {**given, "samplers": stages}), **given}
    stages = with_last(stages, values)
    adapter = chosen_scales(body.lora, info)
    n_new, n_shown = body.n_new, body.n_shown_probabilities
    if body.dry_sequence_breakers:
        values["dry_sequence_breakers"] = body.dry_sequence_breakers
    bias, never = await _bias(body.logit_bias, tokenize)
    more = {
        "samplers": stages,
        "max_tokens": info.advised.get("max_tokens") if n_new is None else max(n_new, 1),
        "n": body.n_choices,
        "stop": stops_of(body.stop),
        "banned_strings": stops_of(body.banned_strings),
        "negative_prompt": body.negative_prompt,
        "control_vectors": body.control_vectors,
        "logit_bias": bias,
        "bad_token_ids": [*info.advised.get("bad_token_ids", ()), *never],
        "logprobs": n_shown or None,
        "processed_logprobs": body.post_sampling_probs,
        "structured_outputs": body.wanted_form(),
        "adapter": adapter,
    }
    lora = [{"id": each["id"], "scale": each["scale"]} for each in shown_adapters(info)]
    if adapter is not None:
        lora = [{"id": i, "scale": dict(adapter).get(name, 0.0)} for i, name in enumerate(info.loras)]
    return Settings(SamplingParams(**{**values, **more}), n_new, lora)


async def _bias(given: Any, tokenize: Tokenize) -> tuple[dict[int, float], list[int]]:
    """Return biases by id, and the ids with bias ``false``, which are never drawn.

    A text sets the bias of its tokens.
    """
    bias: dict[int, float] = {}
    never: list[int] = []
    for key, value in given.items() if isinstance(given, dict) else given:
        if value is True:
            raise ApiError(
                400, "invalid_value", "invalid value true in logit_bias: expected a number or false", "logit_bias"
            )
        if isinstance(key, int):
            ids = [key]
        elif isinstance(given, dict) and key.isascii() and key.isdecimal() and len(key) < 11:
            ids = [int(key)]
        else:
            ids = await tokenize(key, False, False)
        for id_ in ids:
            if value is False:
                never.append(id_)
            else:
                bias[id_] = value
    return bias, never


def prompts_of(given: Any) -> list[str | list[int | str] | PromptObject]:
    """Split a field into prompts: a list with ids is one prompt, any other list has one prompt per item.

    ApiError 400 for a list that mixes ids and whole prompts.
    """
    if not isinstance(given, list):
        given = [given]
    ids = [item for item in given if isinstance(item, int)]
    if ids:
        if any(not isinstance(item, int | str) for item in given):
            text = "prompt mixes token ids with whole prompts"
            raise ApiError(400, "invalid_value", text, "prompt")
        return [given]
    return [
        item.prompt_string if isinstance(item, PromptObject) and not item.multimodal_data else item for item in given
    ]
