"""The options of sampling, by the names that llama.cpp's users know, and its defaults."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

import click
from click.core import ParameterSource

from ..errors import RequestError
from ..params.sampling import DEFAULT_SAMPLERS, SamplingParams
from ..params.sampling_defaults import CHAT_DEFAULTS, chat_defaults
from .form_options import FORM_OPTIONS, taken_form
from .model_options import PRESET

__all__ = ["sampling_defaults", "sampling_options", "with_advice"]


def _off_below_zero(value: float) -> float | None:
    """llama.cpp writes -1 for "none" or "all"."""
    return None if value < 0 else value


def _bias(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    """``ID+BIAS`` or ``ID-BIAS``."""
    found = {}
    for text in values:
        parts = re.fullmatch(r"(\d{1,9})([+-]\d{1,9}(?:\.\d{1,9})?)", text, re.ASCII)
        if parts is None:
            raise click.BadParameter(f"must be ID+BIAS or ID-BIAS but is {text!r}", ctx, param)
        found[int(parts[1])] = float(parts[2])
    return found


def _samplers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Names of stages, also as llama.cpp writes them."""
    if value is None:
        return DEFAULT_SAMPLERS
    names = (name.strip().lower().replace("-", "_") for name in value.replace(";", ",").split(","))
    return tuple(_STAGES.get(name, name) for name in names if name)


# llama.cpp's names of stages, where they are others.
_STAGES = {
    "typ_p": "typical_p", "typ": "typical_p", "typical": "typical_p", "temp": "temperature", "nucleus": "top_p",
}  # fmt: skip


def _number(flags: str, field: str, default: float, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """An option for a field of SamplingParams, of the default's type, checked there."""
    kind = int if isinstance(default, int) else float
    return click.option(*flags.split(), field, type=kind, default=default, show_default=True, metavar="N", help=help)


_OPTIONS = (
    _number("-n --max-tokens --predict --n-predict", "max_tokens", -1, "Tokens to generate; -1: until the model ends."),
    _number("--min-tokens", "min_tokens", 0, "Tokens before the model may end."),
    _number("-s --seed", "seed", -1, "Same seed, same answer; -1: a new one each time."),
    _number("--temp --temperature", "temperature", CHAT_DEFAULTS["temperature"], "Randomness; 0: none."),
    _number("--top-k", "top_k", CHAT_DEFAULTS["top_k"], "Choose among the K likeliest tokens; 0: all."),
    _number("--top-p", "top_p", CHAT_DEFAULTS["top_p"], "Choose among the likeliest tokens that add up to P; 1: all."),
    _number("--min-p", "min_p", CHAT_DEFAULTS["min_p"], "Drop tokens less likely than P times the likeliest; 0: none."),
    _number("--top-n-sigma --top-nsigma", "top_n_sigma", -1.0, "Logits within N standard deviations; -1: off."),
    _number("--typical --typical-p", "typical_p", 1.0, "Locally typical sampling; 1: off."),
    _number("--tfs --tfs-z", "tfs_z", 1.0, "Tail-free sampling; 1: off."),
    _number("--xtc-probability", "xtc_probability", 0.0, "Chance of excluding the top choices; 0: off."),
    _number("--xtc-threshold", "xtc_threshold", 0.1, "Probability of a top choice."),
    _number("--min-keep", "min_keep", 0, "Tokens that top-p, min-p, typical, tfs and XTC leave at least."),
    _number("--dynatemp-range", "dynatemp_range", 0.0, "Temperature by entropy, plus and minus; 0: off."),
    _number("--dynatemp-exp", "dynatemp_exponent", 1.0, "Its exponent."),
    _number("--repeat-penalty", "repetition_penalty", 1.0, "Penalty of repeated tokens; 1: off."),
    _number("--repeat-last-n", "penalty_last_n", 64, "Tokens that penalties look at; -1: all."),
    _number("--presence-penalty", "presence_penalty", 0.0, "Penalty of tokens in the answer; 0: off."),
    _number("--frequency-penalty", "frequency_penalty", 0.0, "Penalty for each time that it is; 0: off."),
    _number("--dry-multiplier", "dry_multiplier", 0.0, "Penalty of repeated sequences; 0: off."),
    _number("--dry-base", "dry_base", 1.75, "Its growth with their length."),
    _number("--dry-allowed-length", "dry_allowed_length", 2, "Length without penalty."),
    _number("--dry-penalty-last-n", "dry_penalty_last_n", -1, "Tokens that it looks at; -1: all."),
    click.option(
        "--dry-sequence-breaker", "dry_sequence_breakers", multiple=True, metavar="TEXT",
        default=SamplingParams().dry_sequence_breakers, help="What ends a sequence; may be repeated.",
    ),
    _number("--mirostat", "mirostat", 0, "1 or 2, in place of top-k, top-p and min-p unless these are given; 0: off."),
    _number("--mirostat-ent", "mirostat_tau", 5.0, "Its target, in bits."),
    _number("--mirostat-lr", "mirostat_eta", 0.1, "Its learning rate."),
    click.option(
        "-l", "--logit-bias", "logit_bias", multiple=True, callback=_bias, metavar="ID+BIAS",
        help="Added to a token's logit; may be repeated.",
    ),
    click.option(
        "--samplers", callback=_samplers, metavar="A;B;...",
        help=f"The stages, in order [{'; '.join(DEFAULT_SAMPLERS)}].",
    ),
    click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends the answer; may be repeated."),
    click.option("--ignore-eos", is_flag=True, help="Go on where the model would end."),
)  # fmt: skip

# What only a request can say: every dialect has a meaning of its own for its absence.
_OF_REQUESTS = ("seed", "stop", "logit_bias", "min_tokens", "samplers", "penalty_last_n", "dry_penalty_last_n")
_OFF_BELOW_ZERO = ("max_tokens", "seed", "top_n_sigma", "penalty_last_n", "dry_penalty_last_n")
_GIVEN = "quire.cli.sampling_options.given"


def with_advice(params: SamplingParams, advised: Mapping[str, object]) -> SamplingParams:
    """The parameters of this command, with what the preset of the model's name says, and else what the model's file
    advises, where the user said nothing."""
    context = click.get_current_context()
    given, preset = context.meta[_GIVEN], context.meta.get(PRESET)
    usual = {**advised, **preset.sampling} if preset is not None else advised
    try:
        return replace(params, **_drawn(usual, given))  # type: ignore[arg-type]
    except TypeError as error:
        text = f"[registry] sampling of a preset must be fields of SamplingParams but {error}"
        raise click.UsageError(text) from None


def _drawn(usual: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """What the user says, else what is usual, else the defaults of chats.  Those of the defaults that do not hold here,
    such as what mirostat does without, are switched off, as they are in ``SamplingParams`` of nothing."""
    neutral = SamplingParams()
    return {**{name: getattr(neutral, name) for name in CHAT_DEFAULTS}, **chat_defaults(usual, given), **given}


def sampling_defaults(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options as what requests get that say nothing; the function gets those given as a dict, ``sampling``."""

    @functools.wraps(function)
    def packed(*args: object, **values: object) -> None:
        own = {entry.name: values.pop(entry.name) for entry in fields(SamplingParams) if entry.name in values}
        context = click.get_current_context()
        given = {
            name: value
            for name, value in own.items()
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT
        }
        for name, value in given.items():
            if name in _OFF_BELOW_ZERO and isinstance(value, int | float):
                given[name] = _off_below_zero(value)
        try:
            SamplingParams(**given)  # type: ignore[arg-type]
        except RequestError as error:
            raise click.UsageError(str(error)) from error
        function(*args, sampling=given, **values)

    decorated: Callable[..., None] = packed
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    parameters: list[click.Parameter] = decorated.__dict__["__click_params__"]
    parameters[:] = [parameter for parameter in parameters if parameter.name not in _OF_REQUESTS]
    return decorated


def sampling_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the function gets them as one argument, ``params``."""

    @functools.wraps(function)
    def packed(*args: object, **values: object) -> None:
        own = {entry.name: values.pop(entry.name) for entry in fields(SamplingParams) if entry.name in values}
        context = click.get_current_context()
        for name in _OFF_BELOW_ZERO:
            value = own[name]
            assert isinstance(value, int | float)
            own[name] = _off_below_zero(value)
        given = {
            name: value
            for name, value in own.items()
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT
        }
        context.meta[_GIVEN] = given
        own |= _drawn({}, given)
        try:
            params = SamplingParams(**own, structured_outputs=taken_form(values))  # type: ignore[arg-type]
        except RequestError as error:
            raise click.UsageError(str(error)) from error
        function(*args, params=params, **values)

    for option in reversed(_OPTIONS + FORM_OPTIONS):
        packed = option(packed)
    return packed
