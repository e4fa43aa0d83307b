"""The command-line options for sampling, made from the declarations of the parameters."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import click
from click.core import ParameterSource

from ..errors import RequestError
from ..params.parameter import Parameter
from ..params.rules import Bias, Bool, Float, Names, Strings
from ..params.sampling import DEFAULT_SAMPLERS, PARAMETERS, SamplingParams
from ..params.sampling_defaults import CHAT_DEFAULTS, chat_defaults
from ..params.stages import stage_named
from .form_options import FORM_OPTIONS, taken_form
from .model_options import PRESET

__all__ = ["sampling_defaults", "sampling_options", "with_advice"]

Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]


def _bias(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    """Parse ``ID+BIAS`` or ``ID-BIAS``."""
    found = {}
    for text in values:
        parts = re.fullmatch(r"(\d{1,9})([+-]\d{1,9}(?:\.\d{1,9})?)", text, re.ASCII)
        if parts is None:
            raise click.BadParameter(f"expected ID+BIAS or ID-BIAS, got {text!r}", ctx, param)
        found[int(parts[1])] = float(parts[2])
    return found


def _samplers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse names of stages, including llama.cpp's spellings."""
    if value is None:
        return DEFAULT_SAMPLERS
    return tuple(stage_named(name) for name in value.replace(";", ",").split(",") if name.strip())


def _option(name: str, parameter: Parameter, default: object) -> Decorator:
    """Build the option for a field of SamplingParams; ``default``: the field's own."""
    flags, rule = (*parameter.flags.split(), name), parameter.rule
    text = f"{parameter.help[:-1]}; may be repeated." if isinstance(rule, Strings | Bias) else parameter.help
    more: dict[str, Any] = {"metavar": parameter.metavar, "help": text}
    match rule:
        case Bool():
            return click.option(*flags, is_flag=True, help=text)
        case Strings():
            return click.option(*flags, multiple=True, default=default, **more)
        case Bias():
            return click.option(*flags, multiple=True, callback=_bias, **more)
        case Names():
            return click.option(
                *flags, callback=_samplers, **{**more, "help": f"{text[:-1]} [{'; '.join(rule.known)}]."}
            )
    kind = float if isinstance(rule, Float) else int
    usual = parameter.unset.get("command", default if parameter.chat is None else parameter.chat)
    return click.option(*flags, type=kind, default=kind(-1 if usual is None else usual), show_default=True, **more)


def _options(*, server: bool) -> list[Decorator]:
    """Build all options, or those of which ``quire serve`` can change the default."""
    usual = SamplingParams()
    return [
        _option(name, parameter, getattr(usual, name))
        for name, parameter in PARAMETERS.items()
        if parameter.flags and not (server and name in _OF_REQUESTS)
    ]


# Parameters that only a request can set: without them, every dialect has a default of its own.
_OF_REQUESTS = ("seed", "stop", "logit_bias", "min_tokens", "samplers", "penalty_last_n", "dry_penalty_last_n")
_GIVEN = "quire.cli.sampling_options.given"


def with_advice(params: SamplingParams, advised: Mapping[str, object]) -> SamplingParams:
    """Return the parameters with the preset's and the file's values for those that the user did not give.

    The preset of the model's name comes before the advice in the model's file.
    """
    context = click.get_current_context()
    given, preset = context.meta[_GIVEN], context.meta.get(PRESET)
    usual = {**advised, **preset.sampling} if preset is not None else advised
    try:
        return replace(params, **_drawn(usual, given))  # type: ignore[arg-type]
    except TypeError as error:
        text = f"[registry] unknown sampling parameter in the preset: {error}"
        raise click.UsageError(text) from None


def _drawn(usual: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Merge what the user gave, the usual values and the defaults of chats, in this order.

    Defaults of chats that do not apply, such as truncation with mirostat, are turned off.
    """
    neutral = SamplingParams()
    return {**{name: getattr(neutral, name) for name in CHAT_DEFAULTS}, **chat_defaults(usual, given), **given}


def _taken(values: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Take the fields of SamplingParams out of a command's values: all of them, and those that the user gave."""
    own = {name: parameter.rule.lenient(values.pop(name)) for name, parameter in PARAMETERS.items() if name in values}
    context = click.get_current_context()
    given = [name for name in own if context.get_parameter_source(name) is not ParameterSource.DEFAULT]
    return own, {name: own[name] for name in given}


def sampling_defaults(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options as defaults for requests.  The function gets those given as a dict, ``sampling``."""

    @functools.wraps(function)
    def packed(*args: object, **values: object) -> None:
        _, given = _taken(values)
        try:
            SamplingParams(**given)  # type: ignore[arg-type]
        except RequestError as error:
            raise click.UsageError(str(error)) from error
        function(*args, sampling=given, **values)

    decorated: Callable[..., None] = packed
    for option in reversed(_options(server=True)):
        decorated = option(decorated)
    return decorated


def sampling_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options.  The function gets them as one argument, ``params``."""

    @functools.wraps(function)
    def packed(*args: object, **values: object) -> None:
        own, given = _taken(values)
        click.get_current_context().meta[_GIVEN] = given
        own |= _drawn({}, given)
        try:
            params = SamplingParams(**own, structured_outputs=taken_form(values))  # type: ignore[arg-type]
        except RequestError as error:
            raise click.UsageError(str(error)) from error
        function(*args, params=params, **values)

    decorated: Callable[..., None] = packed
    for option in reversed([*_options(server=False), *FORM_OPTIONS]):
        decorated = option(decorated)
    return decorated
