"""Fields that several request bodies share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ...errors import QuireError, RequestError
from ...params.processors import MAX_PROCESSORS, NamedProcessor
from ...params.sampling import SamplingParams
from ...params.structured import MAX_TRIGGERS, StructuredOutputsParams
from ..body_types import Body, TimedBody
from ..failures import ApiError, of_quire
from ..service.caller import Caller
from ..worker.protocol import ModelInfo, SchedulingHints
from .adapter_scales import LoraScales, chosen_scales
from .sampling_fields import entry_limits, limits_of, sampling_fields, sampling_of

__all__ = [
    "ConstrainedBody",
    "FormFields",
    "Id",
    "Ids",
    "Name",
    "SharedFields",
    "Slot",
    "Text",
    "Tools",
    "hints_of",
    "logit_bias_of",
    "priority_of",
    "shown_tier",
    "stops_of",
]

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Text: TypeAlias = Annotated[str, Meta(max_length=1 << 25)]
Id: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Ids: TypeAlias = Annotated[list[Id], Meta(max_length=1 << 22)]
Stop: TypeAlias = Annotated[str, limits_of("stop")]
Stops: TypeAlias = Annotated[list[Stop], entry_limits("stop")]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bias: TypeAlias = Annotated[float, limits_of("logit_bias")]
Salt: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
Priority: TypeAlias = Annotated[int, Meta(ge=-100, le=100)]
# Programs with automatic tool discovery send hundreds.
Tools: TypeAlias = Annotated[list[dict[str, Any]], Meta(max_length=1024)]
Slot: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
_TIERS = {"flex": -50, "priority": 50}


class FormFields(Body, kw_only=True, forbid_unknown_fields=True):
    """The form of an answer; same fields as ``quire.StructuredOutputsParams``."""

    json: dict[str, Any] | str | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Annotated[list[str], Meta(max_length=16384)] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None
    triggers: Annotated[list[str], Meta(max_length=MAX_TRIGGERS)] = []


class GrammarTrigger(msgspec.Struct, forbid_unknown_fields=True):
    """A text that begins a lazy grammar, in llama.cpp's format: type 0 is a token, 1 a word, 2 and 3 are patterns."""

    type: Annotated[int, Meta(ge=0, le=3)]
    value: Annotated[str, Meta(min_length=1, max_length=256)]
    token: int | None = None


class ProcessorChoice(msgspec.Struct, forbid_unknown_fields=True):
    """A logits processor that the operator registered, and its arguments."""

    name: Name
    arguments: Annotated[dict[str, Any], Meta(max_length=64)] = {}


class ConstrainedBody(TimedBody, kw_only=True, forbid_unknown_fields=True):
    """A constraint on the answer, under the field names of several engines; at most one may be given."""

    response_format: dict[str, Any] | None = None
    structured_outputs: FormFields | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_json_object: bool = False
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Meta(max_length=16384)] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: dict[str, Any] | str | bool | None = None
    grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar_lazy: bool = False
    grammar_triggers: Annotated[list[GrammarTrigger], Meta(max_length=MAX_TRIGGERS)] = []
    hints: ClassVar[dict[str, tuple[object, ...]]] = {"guided_decoding_backend": ("auto",)}

    def wanted_form(self, own: StructuredOutputsParams | None = None) -> StructuredOutputsParams | None:
        """Return the form that the answer must have.

        ``own`` is the form from a field that only this dialect has.  ApiError naming an invalid field, or RequestError
        for two of them.
        """
        found: list[tuple[str, StructuredOutputsParams]] = [] if own is None else [("format", own)]
        for name, make in _FORMS.items():
            value = getattr(self, name)
            if value is not None and value is not False and value != "":
                try:
                    form = make(value, self.guided_whitespace_pattern)
                except QuireError as error:
                    refusal = of_quire(error)
                    refusal.param = name
                    raise refusal from None
                if form is not None:
                    found.append((name, form))
        if len(found) > 1:
            (first, _), (second, _) = found[:2]
            raise RequestError(f"[sampling] {second} cannot be combined with {first}")
        form = found[0][1] if found else None
        return replace(form, triggers=self._triggers()) if self.grammar_lazy and form is not None else form

    def _triggers(self) -> list[str]:
        if not self.grammar_triggers:
            text = "grammar_lazy needs grammar_triggers"
            raise ApiError(400, "invalid_value", text, "grammar_triggers")
        if any(trigger.type > 1 for trigger in self.grammar_triggers):
            text = "grammar_triggers: patterns (types 2 and 3) are not supported, give words or tokens"
            raise ApiError(400, "unsupported_parameter", text, "grammar_triggers")
        return [trigger.value for trigger in self.grammar_triggers]


def _of_schema(value: Any, pattern: str | None) -> StructuredOutputsParams:
    return StructuredOutputsParams(json=value, whitespace_pattern=pattern)


_FORMS: dict[str, Callable[[Any, str | None], StructuredOutputsParams | None]] = {
    "response_format": lambda value, _: StructuredOutputsParams.from_response_format(value),
    "structured_outputs": lambda form, _: StructuredOutputsParams(
        **{name: getattr(form, name) for name in form.__struct_fields__}
    ),
    "guided_json": _of_schema,
    "json_schema": _of_schema,
    "guided_json_object": lambda _, pattern: StructuredOutputsParams(json_object=True, whitespace_pattern=pattern),
    "guided_regex": lambda value, _: StructuredOutputsParams(regex=value),
    "regex": lambda value, _: StructuredOutputsParams(regex=value),
    "guided_choice": lambda value, _: StructuredOutputsParams(choice=value),
    "guided_grammar": lambda value, _: StructuredOutputsParams(grammar=value),
    "grammar": lambda value, _: StructuredOutputsParams(grammar=value),
    "ebnf": lambda value, _: StructuredOutputsParams(grammar=value),
}


@sampling_fields("openai")
class SharedFields(ConstrainedBody, kw_only=True, forbid_unknown_fields=True):
    """Fields that ``/v1/chat/completions`` and ``/v1/completions`` share."""

    model: Name | None = None
    n: Annotated[int, limits_of("n")] = 1
    stream: bool = False
    stop: Stop | Stops | None = None
    stop_token_ids: Annotated[list[Id], entry_limits("stop_token_ids")] = []
    include_stop_str_in_output: bool = False
    min_tokens: Count = 0
    session: Name | None = None
    id_slot: Slot = -1
    lora: LoraScales = []
    post_sampling_probs: bool = False
    return_hidden_states: bool | Annotated[list[Id], Meta(max_length=1024)] = False
    logit_bias: Annotated[dict[str, Bias], entry_limits("logit_bias")] = {}
    allowed_token_ids: Annotated[list[Id], Meta(min_length=1, max_length=1 << 18)] | None = None
    bad_token_ids: Annotated[list[Id], Meta(max_length=1 << 18)] = []
    bad_words: Annotated[list[Annotated[str, limits_of("bad_words")]], entry_limits("bad_words")] = []
    banned_strings: Annotated[list[Annotated[str, limits_of("banned_strings")]], entry_limits("banned_strings")] = []
    negative_prompt: Text | None = None
    control_vectors: Annotated[dict[str, float], Meta(max_length=32)] | None = None
    logits_processors: Annotated[list[Name | ProcessorChoice], Meta(max_length=MAX_PROCESSORS)] = []
    cache_salt: Salt | None = None
    priority: Priority | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    # Descriptions of the caller for record keeping; they have no effect.
    user: Annotated[str, Meta(max_length=512)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    metadata: Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] = {}
    hints: ClassVar[dict[str, tuple[object, ...]]] = {
        **ConstrainedBody.hints,
        "store": (False,),
        "prompt_cache_retention": ("in_memory", "in-memory"),
        "request_id": (),
        "spaces_between_special_tokens": (True,),
        "length_penalty": (1.0,),
        "early_stopping": (False,),
        # Slots, context shifting and hardware options belong to the server.
        "n_keep": (0,),
        "n_discard": (0,),
        "n_cache_reuse": (0,),
        "t_max_prompt_ms": (0, -1),
        "backend_sampling": (False,),
        "num_thread": (),
        "num_gpu": (),
        "num_batch": (),
        "num_ctx": (),
        "keep_alive": (),
        "ttl": (),
    }
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        "use_beam_search": (False,),
        "truncate_prompt_tokens": (-1,),
        "skip_special_tokens": (True,),
        "return_tokens_as_token_ids": (False,),
        "return_token_ids": (False,),
        "n_indent": (0,),
    }

    def given(self) -> dict[str, Any]:
        """Return the parameters that the body sets."""
        return sampling_of(self)

    def usual(self, info: ModelInfo, given: dict[str, Any]) -> dict[str, Any]:
        """Return the defaults: here the advice of the model's file; chats add more (``chat_defaults``)."""
        return info.advised

    def params(self, info: ModelInfo, max_tokens: int | None, **further: Any) -> SamplingParams:
        """Return the parameters, with defaults for those not given.  RequestError names an invalid field."""
        given = self.given()
        values = {**self.usual(info, given), **given, **further}
        return SamplingParams(
            **{
                **values,
                "max_tokens": info.advised.get("max_tokens") if max_tokens is None else max_tokens,
                "min_tokens": self.min_tokens,
                "adapter": chosen_scales(self.lora, info),
                "n": self.n,
                "processed_logprobs": self.post_sampling_probs,
                "stop": stops_of(self.stop),
                "stop_token_ids": self.stop_token_ids,
                "include_stop_str_in_output": self.include_stop_str_in_output,
                "logit_bias": logit_bias_of(self.logit_bias),
                "allowed_token_ids": self.allowed_token_ids,
                "bad_words": stops_of(self.bad_words),
                "negative_prompt": self.negative_prompt,
                "control_vectors": self.control_vectors,
                "logits_processors": [
                    each if isinstance(each, str) else NamedProcessor(each.name, each.arguments)
                    for each in self.logits_processors
                ],
                "banned_strings": stops_of(self.banned_strings),
                "bad_token_ids": [*info.advised.get("bad_token_ids", ()), *self.bad_token_ids],
            }
        )

    def hints_for(self, caller: Caller) -> SchedulingHints:
        """Return the request's scheduling hints."""
        return hints_of(caller, self.cache_salt, priority_of(self.service_tier, self.priority))


def priority_of(tier: str | None, priority: int | None = None) -> int:
    """Map OpenAI's service tier to a priority, or return the number.  ApiError 400 if both are given."""
    named = _TIERS.get(tier or "auto", 0)
    if named and priority is not None:
        raise ApiError(400, "invalid_value", "priority cannot be combined with service_tier", "priority")
    return named or priority or 0


def shown_tier(tier: str | None) -> dict[str, str]:
    """Return the tier that the answer reports."""
    return {} if tier is None else {"service_tier": "default" if tier == "auto" else tier}


def hints_of(caller: Caller, cache_salt: str | None = None, priority: int = 0) -> SchedulingHints:
    """Return scheduling hints.  Cached blocks are shared only within a caller, and only with the same salt."""
    salt = caller.salt
    if cache_salt is not None:
        salt = hashlib.blake2b(cache_salt.encode(), key=salt[:64], digest_size=32).digest()
    return SchedulingHints(salt, priority, caller.name)


def stops_of(given: str | list[str] | None) -> list[str]:
    """Return stop strings without the empty ones, which some clients send for "none"."""
    texts = [given] if isinstance(given, str) else given or []
    return [text for text in texts if text]


def logit_bias_of(given: dict[str, float]) -> dict[int, float]:
    """Convert OpenAI's mapping, whose keys are token ids as text.  ApiError 400 for other keys."""
    result: dict[int, float] = {}
    for key, bias in given.items():
        if not key.isdecimal() or not key.isascii() or len(key) > 10:
            raise ApiError(400, "invalid_value", "invalid key in logit_bias: keys are token ids", "logit_bias")
        result[int(key)] = bias
    return result
