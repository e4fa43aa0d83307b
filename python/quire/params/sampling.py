"""The parameters of sampling, declared once: see ``parameter.py`` for what is made of a declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, cast, get_args

from ..errors import RequestError
from .call_names import name_call
from .parameter import Dialect, Parameter, Slider, Speculation, declared
from .processors import NamedProcessor, Processors
from .rules import (
    INT_MAX,
    LORA_SCALE_MAX,
    AdapterScales,
    Bias,
    Bool,
    Choice,
    Float,
    Ids,
    Instance,
    Int,
    Names,
    Seed,
    Strings,
    Text,
)
from .structured import StructuredOutputsParams

AdapterChoice: TypeAlias = "str | Sequence[str | tuple[str, float]] | Mapping[str, float]"
"""LoRA adapters: a name, names, or names with scales."""
ChosenAdapters: TypeAlias = "Sequence[tuple[str, float]] | None"
"""Adapters as checked; None: those of requests that choose nothing."""

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    ProcessorFunction = Callable[[Sequence[int], npt.NDArray[np.float32]], npt.NDArray[np.float32]]
    LogitsProcessor = ProcessorFunction | NamedProcessor | str | Mapping[str, object]

__all__ = [
    "ALIASES", "DEFAULT_SAMPLERS", "PARAMETERS", "SPECULATIONS", "AdapterChoice", "ChosenAdapters", "SamplingParams",
    "chosen_adapters", "fields_of",
]  # fmt: skip

DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "temperature",
    "top_n_sigma",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "tfs_z",
    "xtc",
    "adaptive_p",
    "mirostat",
)
"""The stages of the sampling chain, in the default order."""

SPECULATIONS: tuple[str, ...] = get_args(Speculation)

_SHARE = Float(0.0, 1.0)
_OWN = "openai llama_cpp"  # routes that have all of Quire's fields
_CLASSIC = f"{_OWN} ollama generate"


# fmt: off
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next tokens are drawn and when to stop.  Immutable; every field is checked.

    The defaults leave the model's distribution as it is.  Raises ``RequestError`` naming the field that is out of
    range.  Types are strict: a bool is no int, NaN is no number.

    A token is drawn in three steps.  ``logits_processors`` run, then the form of the answer (``structured_outputs``)
    and the rules for single tokens exclude tokens.  Next come the stages of ``samplers``, in their order; each sees
    what the stages before it left, renormalized, and leaves at least one token.  A stage whose parameters are set must
    be in ``samplers``.  Finally a generator keyed by seed, choice and position draws.

    A form decides where an answer ends: ``min_tokens`` yields to it, and ``ignore_eos`` must not be set.
    Log-probabilities are of the model's distribution after ``logits_processors``, unless ``processed_logprobs``.
    ``docs/sampling.md`` has all parameters in one table.
    """

    # Length and end

    max_tokens: int | None = declared(None, Parameter(
        rule=Int(1, optional=True), flags="-n --max-tokens --predict --n-predict",
        doc="Tokens to generate", none="until the model ends its answer or the context is full",
        aliases="max_new_tokens max_completion_tokens n_predict num_predict",
        page=Slider("Longest answer (tokens)", None, 1),
    ))
    min_tokens: int = declared(0, Parameter(
        rule=Int(), flags="--min-tokens", aliases="min_new_tokens",
        page=Slider("Shortest answer (tokens)", None, 1, rare=True),
        doc="Tokens that must come before an end-of-generation or stop token",
    ))
    ignore_eos: bool = declared(False, Parameter(
        rule=Bool(), flags="--ignore-eos", routes=_OWN, doc="Never sample an end-of-generation token",
    ))
    stop: str | Sequence[str] = declared((), Parameter(
        rule=Strings(16, 1024, single=True), flags="--stop", metavar="TEXT", aliases="stop_sequences stop_strings",
        doc="Text that ends the answer and is removed from it: at most 16, of at most 1024 bytes each",
    ))
    stop_token_ids: Sequence[int] = declared((), Parameter(rule=Ids(1024), doc="Token ids that end the answer"))
    include_stop_str_in_output: bool = declared(False, Parameter(rule=Bool(), doc="Keep the stop text in the answer"))
    n: int = declared(1, Parameter(
        rule=Int(1, 16), aliases="num_return_sequences",
        doc="Number of choices, at most 16; they share the prompt's cache blocks",
    ))

    # Temperature and truncation

    temperature: float = declared(1.0, Parameter(
        rule=Float(), stage="temperature", flags="--temp --temperature", chat=0.8, gguf="general.sampling.temp",
        doc="Randomness: divides the logits; 0 is greedy, with ties going to the lowest id", aliases="temp",
        routes=f"{_CLASSIC} responses anthropic", page=Slider("Temperature", 5, 0.1),
    ))
    dynatemp_range: float = declared(0.0, Parameter(
        rule=Float(), stage="temperature", flags="--dynatemp-range", routes=_OWN,
        doc="Vary the temperature by up to plus or minus this, with the entropy; 0: off",
        page=Slider("Temperature range", 5, 0.1, rare=True),
    ))
    dynatemp_exponent: float = declared(1.0, Parameter(
        rule=Float(open_below=True), flags="--dynatemp-exp", routes=_OWN,
        doc="Exponent of the dependence on entropy", page=Slider("Range exponent", 10, 0.1, rare=True),
    ))
    top_k: int = declared(0, Parameter(
        rule=Int(minus_one=0), stage="top_k", flags="--top-k", chat=40, gguf="general.sampling.top_k",
        doc="Keep the k likeliest tokens; 0 or -1: all", routes=f"{_CLASSIC} anthropic",
        page=Slider("Top-k", 1000, 1),
    ))
    top_p: float = declared(1.0, Parameter(
        rule=_SHARE, stage="top_p", flags="--top-p", chat=0.95, gguf="general.sampling.top_p",
        doc="Keep the smallest set of likeliest tokens with total probability p; 1: all",
        paper="Holtzman et al. 2020", routes=f"{_CLASSIC} responses anthropic", page=Slider("Top-p", 1, 0.05),
    ))
    min_p: float = declared(0.0, Parameter(
        rule=_SHARE, stage="min_p", flags="--min-p", chat=0.05, gguf="general.sampling.min_p",
        doc="Keep tokens at least p times as likely as the likeliest; 0: all",
        paper="Nguyen et al. 2024", routes=_CLASSIC, page=Slider("Min-p", 1, 0.01),
    ))
    typical_p: float = declared(1.0, Parameter(
        rule=_SHARE, stage="typical_p", flags="--typical --typical-p", gguf="quire.sampling.typical_p",
        doc="Keep the tokens nearest the entropy, with total probability p; 1: all", aliases="typical",
        paper="Meister et al. 2023", routes=_CLASSIC, page=Slider("Typical-p", 1, 0.05, rare=True),
    ))
    tfs_z: float = declared(1.0, Parameter(
        rule=_SHARE, stage="tfs_z", flags="--tfs --tfs-z", routes=_CLASSIC,
        doc="Cut the tail by the second difference of the probabilities; 1: off", paper="Phénix and Egan 2019",
    ))
    top_n_sigma: float | None = declared(None, Parameter(
        rule=Float(open_below=True, optional=True), stage="top_n_sigma", flags="--top-n-sigma --top-nsigma",
        doc="Keep logits within n standard deviations of the largest", none="all", paper="Tang et al. 2024",
        routes=_OWN, page=Slider("Top-n-sigma", 10, 0.1, rare=True),
    ))
    xtc_probability: float = declared(0.0, Parameter(
        rule=_SHARE, stage="xtc", flags="--xtc-probability", gguf="general.sampling.xtc_probability", routes=_OWN,
        doc="Chance of excluding the top choices (XTC); 0: off", page=Slider("XTC", 1, 0.05, rare=True),
    ))
    xtc_threshold: float = declared(0.1, Parameter(
        rule=_SHARE, flags="--xtc-threshold", gguf="general.sampling.xtc_threshold", routes=_OWN,
        doc="Probability that makes a token a top choice; XTC keeps the least likely of them",
        page=Slider("XTC threshold", 1, 0.05, rare=True),
    ))
    min_keep: int = declared(0, Parameter(
        rule=Int(), flags="--min-keep", routes=_OWN,
        doc="Tokens that top-p, min-p, typical-p and tail-free keep at least; with fewer left, XTC excludes nothing",
    ))
    mirostat: int = declared(0, Parameter(
        rule=Int(0, 2), stage="mirostat", flags="--mirostat", gguf="general.sampling.mirostat", routes=_CLASSIC,
        doc="1 or 2: truncate toward a target surprise, in chats in place of top-k, top-p and min-p unless these are"
        " set; 0: off", paper="Basu et al. 2021", page=Slider("Mirostat", 2, 1, rare=True),
    ))
    mirostat_tau: float = declared(5.0, Parameter(
        rule=Float(), flags="--mirostat-ent", gguf="general.sampling.mirostat_tau", routes=_CLASSIC,
        doc="Mirostat's target surprise, in bits", page=Slider("Mirostat tau", 20, 0.1, rare=True),
    ))
    mirostat_eta: float = declared(0.1, Parameter(
        rule=Float(), flags="--mirostat-lr", gguf="general.sampling.mirostat_eta", routes=_CLASSIC,
        doc="Mirostat's learning rate", page=Slider("Mirostat eta", 1, 0.01, rare=True),
    ))

    adaptive_target: float | None = declared(None, Parameter(
        rule=Float(0.0, 1.0, optional=True), stage="adaptive_p", flags="--adaptive-target", routes=_OWN,
        doc="Prefer tokens near this probability, so that drawn ones have it on average (Adaptive-P)", none="off",
        paper="MrJackSpade 2025", page=Slider("Adaptive-P", 1, 0.05, rare=True),
    ))
    adaptive_decay: float = declared(0.9, Parameter(
        rule=Float(0.0, 0.99), flags="--adaptive-decay", routes=_OWN,
        doc="Weight of earlier tokens in Adaptive-P's average", page=Slider("Adaptive-P decay", 0.99, 0.01, rare=True),
    ))

    # Penalties

    repetition_penalty: float = declared(1.0, Parameter(
        rule=Float(open_below=True), stage="penalties", flags="--repeat-penalty",
        gguf="general.sampling.penalty_repeat", aliases="repeat_penalty",
        doc="Penalty for tokens in the prompt and the answer; 1: off", paper="Keskar et al. 2019",
        routes="openai:repetition_penalty,repeat_penalty llama_cpp:repeat_penalty ollama:repeat_penalty"
        " generate:repeat_penalty", page=Slider("Repeat penalty", 2, 0.05),
    ))
    presence_penalty: float = declared(0.0, Parameter(
        rule=Float(-2.0, 2.0), stage="penalties", flags="--presence-penalty", routes=_CLASSIC,
        doc="Penalty for tokens in the answer, applied once; -2 to 2",
        page=Slider("Presence penalty", 2, 0.1, rare=True),
    ))
    frequency_penalty: float = declared(0.0, Parameter(
        rule=Float(-2.0, 2.0), stage="penalties", flags="--frequency-penalty", routes=_CLASSIC,
        doc="Penalty for tokens in the answer, for each occurrence; -2 to 2",
        page=Slider("Frequency penalty", 2, 0.1, rare=True),
    ))
    penalty_last_n: int | None = declared(None, Parameter(
        rule=Int(optional=True), flags="--repeat-last-n", gguf="general.sampling.penalty_last_n",
        doc="Number of last tokens that these three penalties look at", none="all", aliases="repeat_last_n",
        routes="openai:repeat_last_n llama_cpp:repeat_last_n ollama:repeat_last_n generate:repeat_last_n",
        unset={"command": 64, "llama_cpp": 64, "ollama": 64}, page=Slider("Repeat window", None, 1, rare=True),
    ))
    dry_multiplier: float = declared(0.0, Parameter(
        rule=Float(), stage="dry", flags="--dry-multiplier", routes=_OWN,
        doc="Penalty for tokens that would continue a repetition (DRY); 0: off", page=Slider("DRY", 5, 0.1, rare=True),
    ))
    dry_base: float = declared(1.75, Parameter(
        rule=Float(1.0), flags="--dry-base", routes=_OWN,
        doc="Growth of DRY's penalty with the length of the repetition", page=Slider("DRY base", 10, 0.05, rare=True),
    ))
    dry_allowed_length: int = declared(2, Parameter(
        rule=Int(1), flags="--dry-allowed-length", routes=_OWN, doc="Shorter repetitions have no penalty by DRY",
        page=Slider("DRY length", None, 1, rare=True),
    ))
    dry_penalty_last_n: int | None = declared(None, Parameter(
        rule=Int(optional=True), flags="--dry-penalty-last-n", routes=_OWN, unset={"llama_cpp": 64},
        doc="Number of last tokens that DRY looks at", none="all",
    ))
    dry_sequence_breakers: Sequence[str] = declared(("\n", ":", '"', "*"), Parameter(
        rule=Strings(64, 128), flags="--dry-sequence-breaker", metavar="TEXT", doc="Text that ends a repetition",
    ))

    # Single tokens, before every stage

    logit_bias: Mapping[int, float] = declared({}, Parameter(
        rule=Bias(1024, -100.0, 100.0), flags="-l --logit-bias", metavar="ID+BIAS",
        doc="Added to the logits of at most 1024 tokens; -100 to 100",
    ))
    allowed_token_ids: Sequence[int] | None = declared(None, Parameter(
        rule=Ids(optional=True), doc="The only tokens that can be sampled",
    ))
    bad_token_ids: Sequence[int] = declared((), Parameter(
        rule=Ids(), gguf="quire.sampling.bad_token_ids", aliases="suppress_tokens", doc="Tokens that are never sampled",
    ))

    bad_words: Sequence[str] = declared((), Parameter(
        rule=Strings(1024, 1024), native=False,
        doc="Words whose last token is excluded where the others precede it in the answer, as in vLLM: spelled as at"
        " the start of a text and, if that takes as many tokens, as after a space; banned_strings knows no spellings",
    ))

    banned_strings: Sequence[str] = declared((), Parameter(
        rule=Strings(256, 1024), aliases="banned_phrases",
        doc="Phrases that the text never contains, in any case of A to Z: where one is complete, the answer goes back"
        " to the token that began it, and goes on with another one",
    ))

    # The rest

    seed: int | None = declared(None, Parameter(
        rule=Seed(), flags="-s --seed", none="a random seed", routes=_CLASSIC, page=Slider("Seed", None, 1),
        doc="The same seed gives the same tokens, whatever else is running",
    ))
    logprobs: int | None = declared(None, Parameter(
        rule=Int(minus_one=INT_MAX, optional=True),
        doc="Return the log-probability of each sampled token, with this many alternatives; -1: the whole vocabulary",
    ))
    prompt_logprobs: int | None = declared(None, Parameter(
        rule=Int(minus_one=INT_MAX, optional=True),
        doc="Return the log-probability of each prompt token, with this many alternatives; -1: the whole vocabulary",
    ))
    processed_logprobs: bool = declared(False, Parameter(
        rule=Bool(), doc="Return log-probabilities of the final distribution, after all stages",
    ))
    samplers: Sequence[str] = declared(DEFAULT_SAMPLERS, Parameter(
        rule=Names(DEFAULT_SAMPLERS, ("adaptive_p", "mirostat")), flags="--samplers", metavar="A;B;...",
        doc="The stages and their order",
    ))
    logits_processors: Sequence[LogitsProcessor] = declared((), Parameter(
        rule=Processors(), native=False,
        doc="Functions `f(token_ids, logits) -> logits`, or names of registered ones; they run first, and each token"
        " then waits for Python",
    ))
    control_vectors: AdapterChoice | None = declared(None, Parameter(
        rule=AdapterScales(32, optional=True), native=False,
        doc="Control vectors of the request: a name, or names with scales; an empty list: none", none="the engine's",
    ))
    guidance_scale: float = declared(1.0, Parameter(
        rule=Float(0.0, 100.0), native=False, routes=_OWN, aliases="cfg_scale",
        doc="Classifier-free guidance: push the answer away from what would follow the negative prompt; 1: off",
        paper="Sanchez et al. 2023",
    ))
    negative_prompt: str | None = declared(None, Parameter(
        rule=Text(optional=True), native=False,
        doc="Text that guidance_scale pushes away from, read as a raw prompt", none="the last token of the prompt",
    ))
    structured_outputs: StructuredOutputsParams | None = declared(None, Parameter(
        rule=Instance(StructuredOutputsParams, optional=True), native=False,
        doc="The form of the answer (structured_output.md)",
    ))
    speculation: str | None = declared(None, Parameter(
        rule=Choice(SPECULATIONS, optional=True), native=False, routes=_OWN,
        doc=f"What drafts tokens: {', '.join(SPECULATIONS)}; never changes the answer"
        " (speculation.md)",
    ))
    prediction: str | None = declared(None, Parameter(
        rule=Text(optional=True), native=False, doc="Expected answer, to draft tokens from; never changes the answer",
    ))
    adapter: AdapterChoice | None = declared(None, Parameter(
        rule=AdapterScales(64, LORA_SCALE_MAX, optional=True), native=False,
        none="those that the model was opened with",
        doc="LoRA adapters of the request: a name, or names with scales; an empty text or list: none (adapters.md)",
    ))

    # fmt: on

    def __post_init__(self) -> None:
        values = self.__dict__
        for name, label, check in _CHECKS:
            values[name] = check(label, values[name])
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"[sampling] min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        if self.structured_outputs is not None and self.ignore_eos:
            raise RequestError("[sampling] ignore_eos cannot be combined with structured_outputs: a form ends")
        if self.mirostat and self.adaptive_target is not None:
            raise RequestError("[sampling] adaptive_target cannot be combined with mirostat")
        if self.guidance_scale != 1 and self.banned_strings:
            raise RequestError("[sampling] guidance_scale cannot be combined with banned_strings")
        for name, stage, default in _STAGED:
            if values[name] != default and stage not in self.samplers:
                raise RequestError(f"[sampling] samplers lacks the stage {stage!r}, but {name} is set")


PARAMETERS: Mapping[str, Parameter] = MappingProxyType(
    {entry.name: entry.metadata["parameter"] for entry in fields(SamplingParams)}
)
"""All parameters by name, in the order of ``SamplingParams``."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {alias: name for name, parameter in PARAMETERS.items() for alias in parameter.aliases.split()}
)
"""Parameters by the names that other engines give them."""

# Requests are checked often: what the loops of __post_init__ need.
_CHECKS = [(name, f"[sampling] {name}", each.rule.check) for name, each in PARAMETERS.items()]
_STAGED = [(e.name, PARAMETERS[e.name].stage, e.default) for e in fields(SamplingParams) if PARAMETERS[e.name].stage]
SamplingParams.__doc__ = "\n        ".join(
    [f"{SamplingParams.__doc__}\n    Args:", *(f"{name}: {each.text}." for name, each in PARAMETERS.items())]
)

name_call(SamplingParams, ALIASES)


def chosen_adapters(choice: AdapterChoice | None) -> ChosenAdapters:
    """Return names of LoRA adapters with their scales.  RequestError if they are invalid."""
    return cast("ChosenAdapters", PARAMETERS["adapter"].rule.check("[sampling] adapter", choice))


@cache
def fields_of(dialect: Dialect) -> Mapping[str, tuple[str, ...]]:
    """Return the fields of a dialect by the parameter that they set."""
    found = {name: parameter.names_in(dialect, name) for name, parameter in PARAMETERS.items()}
    return MappingProxyType({name: names for name, names in found.items() if names})
