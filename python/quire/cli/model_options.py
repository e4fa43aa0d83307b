"""The options of every command that runs a model: which model, and the engine's options."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

import click
from click.core import ParameterSource

from ..errors import RequestError
from ..hub.locate import preset_of, repository_of
from ..hub.registry import Preset
from ..params.engine_options import EngineConfig, EngineOption, engine_options
from ..params.engine_rules import (
    Adapters,
    JsonObject,
    KeyValues,
    LayerRange,
    Layers,
    NamedPaths,
    Names,
    Overrides,
    Shares,
    read_adapters,
    read_key_values,
    read_named_paths,
    read_overrides,
    read_shares,
)
from ..params.rules import Bool, Bytes, Choice, Float, Int, Rule
from .model_argument import model_option

__all__ = ["PRESET", "GpuLayers", "ModelOptions", "adapters_option", "model_options"]

PRESET = "quire.cli.model_options.preset"
"""Key in a command's context for the ``Preset`` that its model name refers to."""

GpuLayers: TypeAlias = "int | Literal['all']"
Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]


def _gpu_layers(ctx: click.Context, param: click.Parameter, value: str | None) -> GpuLayers | None:
    """Parse ``all``, -1 or ``auto``, which all mean every layer, or a number of layers."""
    if value is None:
        return None
    if value.lower() in ("all", "-1", "auto"):
        return "all"
    if not value.isdecimal() or len(value) > 6:
        raise click.BadParameter(f"expected all, -1 or a number of layers, got {value!r}", ctx, param)
    return int(value)


def _hexadecimal(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse hexadecimal digits, with or without 0x."""
    if value is None:
        return None
    digits = value.removeprefix("0x")
    if not 1 <= len(digits) <= 256 or not set(digits) <= set("0123456789abcdefABCDEF") or not int(digits, 16):
        raise click.BadParameter(f"expected a hexadecimal number above 0, got {value!r:.40}", ctx, param)
    return int(digits, 16)


def _bytes(name: str, rule: Bytes) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """Return the callback that parses a number of bytes."""

    def parse(ctx: click.Context, param: click.Parameter, value: str | None) -> object:
        try:
            return None if value is None else rule.check(f"[engine] {name}", int(value) if value.isdecimal() else value)
        except RequestError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return parse


def _or_own(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """Read 0 as "not given", as llama.cpp does."""
    return value or None


@dataclass(frozen=True)
class ModelOptions:
    """A model and where and how to run it.  ``path`` None is the package's model.

    ``engine`` has the fields of ``EngineConfig`` that the command sets; the device is decided by ``device_name``.
    ``name`` is the registry's name for the path, if the user gave one.
    """

    path: str | None
    gpu_layers: GpuLayers | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None

    @property
    def wants_projector(self) -> bool:
        """True if a download of the model includes its encoder, an ``mmproj`` file."""
        return bool(self.engine.get("mmproj", "auto") == "auto")

    def device_name(self) -> str:
        """Combine ``--device`` and ``-ngl`` into a device.

        UsageError if they contradict each other.
        """
        device: str | None = self.engine.get("device")
        on_cpu = device is not None and device.lower() == "cpu"
        if self.gpu_layers is None:
            return device or "default"
        if self.gpu_layers == 0:
            if device is not None and not on_cpu:
                raise click.UsageError(f"-ngl 0 (CPU only) contradicts --device {device}")
            return "cpu"
        if on_cpu:
            raise click.UsageError(f"-ngl {self.gpu_layers} contradicts --device {device}")
        return device or "auto"

    def config(self) -> dict[str, Any]:
        """Return the fields of ``EngineConfig`` that are set, validated."""
        given = {
            "device": self.device_name(),
            **{name: value for name, value in self.engine.items() if name != "device"},
        }
        if self.gpu_layers not in (None, "all", 0):
            given["n_gpu_layers"] = self.gpu_layers
        EngineConfig(**given)
        return given


def _offline(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        os.environ["HF_HUB_OFFLINE"] = "1"


def _token(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        os.environ["HF_TOKEN"] = value


_HUB = (
    click.option(
        "-hf",
        "-hfr",
        "--hf-repo",
        "hf_repo",
        metavar="ORG/NAME[:QUANT]",
        help="A model on Hugging Face, downloaded if necessary.",
    ),
    click.option("-hff", "--hf-file", "hf_file", metavar="FILE", help="The file to use from --hf-repo."),
    click.option(
        "-hft",
        "--hf-token",
        callback=_token,
        expose_value=False,
        metavar="TOKEN",
        help="Your token for Hugging Face [HF_TOKEN].",
    ),
    click.option(
        "--offline", is_flag=True, callback=_offline, expose_value=False, help="Never download [HF_HUB_OFFLINE]."
    ),
)
_GPU_LAYERS = click.option(
    "-ngl", "--gpu-layers", "--n-gpu-layers", "gpu_layers", callback=_gpu_layers, metavar="N|all",
    help="Number of layers on the GPU, counted from the last; all or -1: every layer.",
)  # fmt: skip


def _adapters(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> tuple[tuple[str, float], ...] | None:
    """Parse adapters; None if there are none."""
    try:
        return read_adapters(values) or None
    except RequestError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _overrides(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> tuple[tuple[str, str], ...] | None:
    """Parse overrides; None if there are none."""
    try:
        return read_overrides(values) or None
    except RequestError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _key_values(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> object:
    """Parse keys with their values; None if there are none."""
    try:
        return read_key_values(values) or None
    except RequestError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _named_paths(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> object:
    """Parse paths with their names; None if there are none."""
    try:
        return read_named_paths(values) or None
    except RequestError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _json_object(ctx: click.Context, param: click.Parameter, value: str | None) -> object:
    """Check an object of JSON, which stays text."""
    try:
        return JsonObject().check("[engine] hf_overrides", value)
    except RequestError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> object:
    """Read numbers of layers."""
    if value is None:
        return None
    try:
        return Layers().check("[engine] taps", tuple(int(each) for each in value.split(",")))
    except (RequestError, ValueError):
        raise click.BadParameter("expected ascending layer numbers from 0, with commas", ctx, param) from None


def _names(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names; None if there are none."""
    return tuple(values) or None


def _shares(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Parse shares of devices."""
    try:
        return None if value is None else read_shares(value)
    except RequestError as error:
        raise click.BadParameter(str(error), ctx, param) from None


_ADAPTERS = engine_options()["adapters"]
adapters_option = click.option(
    *_ADAPTERS.flags.split(), "adapters", multiple=True, callback=_adapters, metavar=_ADAPTERS.metavar,
    help=_ADAPTERS.help,
)  # fmt: skip


_REPEATED: Mapping[type[Rule], Callable[[click.Context, click.Parameter, Sequence[str]], object]] = {
    Adapters: _adapters, Overrides: _overrides, KeyValues: _key_values, NamedPaths: _named_paths, Names: _names,
}  # fmt: skip


def _click_option(name: str, option: EngineOption, default: object) -> Decorator:
    """Build a command's option from an engine option."""
    flags = (*option.flags.split(), name)
    # The help texts themselves tell the defaults of options that are None or depend on the machine.
    shown = default is not None and name not in ("device", "threads")
    more: dict[str, Any] = {"default": default, "show_default": shown, "metavar": option.metavar, "help": option.help}
    rule = option.rule
    match rule:
        case Bool():
            return click.option(*flags, is_flag=True, default=default, help=option.help)
        case Adapters() if name == "adapters":
            return adapters_option
        case Adapters() | Overrides() | KeyValues() | NamedPaths() | Names():
            read = _REPEATED[type(rule)]
            return click.option(*flags, multiple=True, callback=read, metavar=option.metavar, help=option.help)
        case Layers():
            return click.option(*flags, callback=_layers, metavar=option.metavar, help=option.help)
        case LayerRange():
            more |= {"nargs": 2, "type": int, "default": None, "show_default": False}
        case JsonObject():
            more["callback"] = _json_object
        case Shares():
            return click.option(*flags, callback=_shares, metavar=option.metavar, help=option.help)
        case Choice():
            more["type"] = click.Choice(rule.choices)
        case Float():
            more["type"] = click.FloatRange(rule.low, rule.high, min_open=rule.open_below)
        case Bytes():
            size = f"{default >> 30}G" if isinstance(default, int) and default else None
            more |= {"type": str, "callback": _bytes(name, rule), "default": size, "show_default": bool(size)}
        case Int() if option.hexadecimal:
            more["callback"] = _hexadecimal
        case Int():
            own = default is None and rule.low == 1
            more |= {"type": click.IntRange(0 if own else rule.low, rule.high), "callback": _or_own if own else None}
    return click.option(*flags, **more)


def _named(path: str | None, repository: str | None, file: str | None) -> str | None:
    """Return the model's name from the different ways to give it.  UsageError for two of them."""
    if repository is None:
        if file is not None:
            raise click.UsageError("--hf-file requires --hf-repo")
        return path
    if path is not None:
        raise click.UsageError("the model is given twice: as a file and with --hf-repo")
    wanted = repository_of(repository)
    if wanted is None:
        raise click.UsageError(f"--hf-repo {repository!r:.80}: expected org/name or org/name:QUANT")
    if file is None:
        return repository
    return f"hf://{wanted.repository}/resolve/{wanted.revision or 'main'}/{file}"


def _preset_values(context: click.Context, preset: Preset, names: Sequence[str]) -> dict[str, Any]:
    """Return a preset's values for engine options that the user did not give.  UsageError for unknown options."""
    known = {
        flag.removeprefix("--"): parameter
        for parameter in context.command.params
        if parameter.name in names
        for flag in parameter.opts
        if flag.startswith("--")
    }
    every = {flag.removeprefix("--") for option in engine_options().values() for flag in option.flags.split()}
    found: dict[str, Any] = {}
    for name, value in preset.options.items():
        parameter = known.get(name.replace("_", "-"))
        if parameter is None or parameter.name is None:
            if name.replace("_", "-") in every:
                continue  # an option that only quire serve has
            raise click.UsageError(f"[registry] unknown engine option {name!r:.80} in the preset")
        if context.get_parameter_source(parameter.name) is ParameterSource.DEFAULT:
            one = parameter.multiple and isinstance(value, str)
            found[parameter.name] = parameter.process_value(context, [value] if one else value)
    return found


def model_options(*, server: bool = False, **defaults: object) -> Decorator:
    """Add the options.  The function receives them as one argument, ``model``.

    ``server`` also adds those that concern several requests.  ``defaults`` replaces the engine's own defaults.
    """
    usual = {entry.name: entry.default for entry in fields(EngineConfig)} | {"device": None, **defaults}
    own = {name: each for name, each in engine_options().items() if each.flags and (server or not each.server_only)}
    options: list[Decorator] = [
        model_option,
        *_HUB,
        _GPU_LAYERS,
        *(_click_option(name, option, usual[name]) for name, option in own.items()),
    ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def packed(*args: object, **values: Any) -> None:
            context = click.get_current_context()
            path = _named(values.pop("path"), values.pop("hf_repo"), values.pop("hf_file"))
            name, preset = None, None if path is None else preset_of(path)
            if preset is not None:
                context.meta[PRESET] = preset
                name, path = path, preset.model
                values |= _preset_values(context, preset, (*own, "gpu_layers"))
            layers = values.pop("gpu_layers")
            given = {name: value for name in own if (value := values.pop(name)) is not None}
            function(*args, model=ModelOptions(path, layers, given, name), **values)

        decorated: Callable[..., None] = packed
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate
