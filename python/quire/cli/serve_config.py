"""Options of ``quire serve`` from the environment and from a TOML file: what the command line says wins, then the
environment."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

__all__ = ["config_option", "from_environment", "from_file"]

# Variables by the parameters of the command.
_VARIABLES = {
    "MODEL_PATH": "path",
    "GPU_LAYERS": "gpu_layers",
    "CONTEXT_SIZE": "n_ctx",
    "BATCH_SIZE": "max_step_tokens",
    "CPU_THREADS": "threads",
    "HOST": "host",
    "PORT": "port",
    "MAX_BATCH_SIZE": "max_sequences",
    "KV_CACHE_POOL_SIZE": "cache_blocks",
    "SCHEDULING_STRATEGY": "policy",
}
_OFF = ("0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")
# Variables of what there is not, with the values that ask for nothing.
_REFUSED = {
    "ENABLE_SPECULATIVE": (_OFF, "speculative decoding is not supported yet"),
    "DRAFT_MODEL_PATH": ((), "speculative decoding is not supported yet"),
    "SPECULATION_DEPTH": (("0",), "speculative decoding is not supported yet"),
    "ENABLE_CONTINUOUS_BATCHING": (_ON, "batching is always continuous; MAX_BATCH_SIZE=1 runs one at a time"),
    "BATCH_TIMEOUT_MS": (("0",), "a request joins the batch at the next step, and nobody waits for it to fill"),
}


def _value(environment: Mapping[str, str], name: str) -> tuple[str, str] | None:
    """The variable that counts, and its value: the one with the prefix, where both are set; empty ones are not."""
    for full in (f"QUIRE_{name}", name):
        if environment.get(full):
            return full, environment[full]
    return None


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Values of parameters; UsageError for a variable whose feature there is not."""
    for name, (neutral, why) in _REFUSED.items():
        found = _value(environment, name)
        if found is not None and found[1].lower() not in neutral:
            raise click.UsageError(f"{found[0]} must be left out but is {found[1]!r:.40}: {why}")
    values = {}
    for name, parameter in _VARIABLES.items():
        found = _value(environment, name)
        if found is not None:
            values[parameter] = found[1]
    return values


def from_file(path: Path, command: click.Command) -> dict[str, Any]:
    """Values of parameters, by the long names of the options (``ctx-size = 4096``); UsageError for other names."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} must be TOML but {error}") from None
    known = {
        option.removeprefix("--"): parameter
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and parameter.name != "config"
    }
    values: dict[str, Any] = {}
    for name, value in given.items():
        parameter = known.get(name.replace("_", "-"))
        if parameter is None or parameter.name is None:
            raise click.UsageError(f"{path} must have names of options but has {name!r:.80}")
        if isinstance(value, list) != bool(parameter.multiple):
            raise click.UsageError(f"{path}: {name} must be {'a list' if parameter.multiple else 'one value'}")
        values[parameter.name] = value
    return values


def _use(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    values = {} if path is None else from_file(path, ctx.command)
    ctx.default_map = {**values, **from_environment(os.environ)}
    return path


config_option = click.option(
    "--config", "config", type=click.Path(exists=True, dir_okay=False, path_type=Path), is_eager=True,
    expose_value=False, callback=_use, metavar="FILE", help="Options from a TOML file, by their long names.",
)  # fmt: skip
