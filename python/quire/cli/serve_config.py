"""Options of ``quire serve`` from the environment and from a TOML file.

The command line takes precedence, then the environment, then the file.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from .foreign_options import ForeignCommand
from .text import note

__all__ = [
    "ARGUMENTS",
    "ServeCommand",
    "config_option",
    "env_file_option",
    "from_environment",
    "from_file",
    "read_env_file",
]

ARGUMENTS = "quire.serve.arguments"
"""Key in a command's context for its arguments as they were written."""

# Environment variables and the parameters that they set.
_VARIABLES = {
    "MODEL_PATH": "path",
    "GPU_LAYERS": "gpu_layers",
    "CONTEXT_SIZE": "n_ctx",
    "BATCH_SIZE": "max_step_tokens",
    "CPU_THREADS": "threads",
    "HOST": "host",
    "PORT": "port",
    "MAX_BATCH_SIZE": "max_sequences",
    "KV_CACHE_POOL_SIZE": "n_blocks",
    "SCHEDULING_STRATEGY": "policy",
    "BATCH_TIMEOUT_MS": "batch_delay_s",
    "DRAFT_MODEL_PATH": "draft",
    "SPECULATION_DEPTH": "draft_max",
}
_OFF = ("0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")
_ALL_NAMES = (*_VARIABLES, "ENABLE_SPECULATIVE", "ENABLE_CONTINUOUS_BATCHING")
# Prefixes of other variables that a .env file may set for this server.
_OTHER_PREFIXES = ("QUIRE_", "LLAMA_ARG_", "LLAMA_API_KEY", "VLLM_API_KEY", "OLLAMA_", "HF_")
_MOST_ENV_BYTES = 1 << 16


def _value(environment: Mapping[str, str], name: str) -> tuple[str, str] | None:
    """Return the variable in effect and its value: with the QUIRE_ prefix first, and never an empty one."""
    for full in (f"QUIRE_{name}", name):
        if environment.get(full):
            return full, environment[full]
    return None


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return values of parameters.  UsageError for an invalid variable."""
    values = {}
    for name, parameter in _VARIABLES.items():
        found = _value(environment, name)
        if found is not None:
            values[parameter] = found[1].lower().replace("_", "-") if parameter == "policy" else found[1]
    if (
        _switch(environment, "ENABLE_CONTINUOUS_BATCHING") is False
    ):  # without continuous batching, one request at a time
        values["max_sequences"] = "1"
    speculative = _switch(environment, "ENABLE_SPECULATIVE")
    if speculative is False or values.get("draft_max") == "0":
        # Ignore the settings of a draft model if speculation is off.
        for parameter in ("draft", "draft_max"):
            values.pop(parameter, None)
    elif speculative:
        values["speculation"] = "auto"
    return values


def _switch(environment: Mapping[str, str], name: str) -> bool | None:
    found = _value(environment, name)
    if found is None:
        return None
    if found[1].lower() not in (*_OFF, *_ON):
        raise click.UsageError(f"invalid {found[0]} {found[1]!r:.40}: expected true or false")
    return found[1].lower() in _ON


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables for this server from a file of ``NAME=value`` lines.

    Empty lines and comments are skipped; ``export`` and quotes around a value are allowed.  UsageError for a file that
    cannot be parsed.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_ENV_BYTES + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read {path} as UTF-8 text: {error}") from None
    if len(text) > _MOST_ENV_BYTES:
        raise click.UsageError(f"{path} is too large: the limit is {_MOST_ENV_BYTES} bytes")
    found: dict[str, str] = {}
    for number, written in enumerate(text.splitlines(), 1):
        line = written.strip().removeprefix("export ").strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip().replace("_", "a").isalnum():
            raise click.UsageError(f"{path}, line {number}: expected NAME=value")
        name = name.strip()
        if name in _ALL_NAMES or name.startswith(_OTHER_PREFIXES):
            found[name] = _bare(value)
    return found


def _bare(value: str) -> str:
    """Remove the quotes around a value, or the comment after it."""
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


def from_file(path: Path, command: click.Command) -> dict[str, Any]:
    """Return values of parameters from long option names (``ctx-size = 4096``).  UsageError for unknown names."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"cannot read {path} as TOML: {error}") from None
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
            raise click.UsageError(f"{path}: unknown option {name!r:.80}")
        if isinstance(value, list) != bool(parameter.multiple):
            raise click.UsageError(f"{path}: {name} takes {'a list' if parameter.multiple else 'a single value'}")
        values[parameter.name] = value
    return values


def _use(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    values = {} if path is None else from_file(path, ctx.command)
    ctx.default_map = {**values, **(ctx.default_map or {}), **from_environment(os.environ)}
    return path


def load_env_file(path: Path | None) -> None:
    """Add the variables of a file to the environment, without overwriting any, and note which were added.

    The default is ``.env`` in the working folder, if it exists.
    """
    if path is None and not Path(".env").is_file():
        return
    source = Path(".env") if path is None else path
    found = {name: value for name, value in read_env_file(source).items() if name not in os.environ}
    if found:
        note(f"from {source}: {', '.join(sorted(found))}")
    os.environ.update(found)


config_option = click.option(
    "--config", "config", type=click.Path(exists=True, dir_okay=False, path_type=Path), is_eager=True,
    expose_value=False, callback=_use, metavar="FILE", help="Read options from a TOML file, by their long names.",
)  # fmt: skip
env_file_option = click.option(
    "--env-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), expose_value=False, metavar="FILE",
    help="Read variables from a file of NAME=value lines [.env, if it exists].",
)  # fmt: skip


class ServeCommand(ForeignCommand):
    """A command that reads the file of variables before anything else."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Load the file of variables, then parse the arguments."""
        load_env_file(_env_file(args))
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)


def _env_file(args: Sequence[str]) -> Path | None:
    for i, argument in enumerate(args):
        if argument == "--":
            break
        if argument == "--env-file" and i + 1 < len(args):
            return Path(args[i + 1])
        if argument.startswith("--env-file="):
            return Path(argument.partition("=")[2])
    return None
