"""Translate command-line options and environment variables of other programs into Quire's own."""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..params.engine_options import cache_dtype_of
from .foreign_values import Values, ours_of
from .help_page import Command
from .ollama_host import ollama_address
from .text import note

if TYPE_CHECKING:
    from .foreign_table import ForeignOption

__all__ = ["REREAD", "ForeignCommand", "from_foreign_environment", "translated"]

_PREFIXES = ("LLAMA_ARG_", "LLAMA_API_KEY", "VLLM_API_KEY", "OLLAMA_")
_OFF = ("0", "false", "no", "off", "")
_CACHE_TYPES = ("-ctk", "-ctv")
_ATTACHED = re.compile(r"-[A-Za-z]-?\d+(\.\d+)?")  # click accepts a short option with its value attached, such as -t4
REREAD = frozenset((
    "-t", "--threads", "-np", "--parallel", "-a", "--alias", "-dev", "--device", "--api-key", "--reasoning-format",
    "-fit", "--fit", "-sm", "--split-mode", "--tags",
))  # fmt: skip
"""Quire's own options whose values other programs write differently; these also go through the table."""


class ForeignCommand(Command):
    """A command that also accepts the options of llama.cpp, vLLM and Ollama."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments after translating those of other programs."""
        if ctx.resilient_parsing:  # shell completion of an unfinished line
            return super().parse_args(ctx, args)
        found = from_foreign_environment(os.environ, self)
        if found:
            note(f"from the environment: {', '.join(sorted({name for name, _ in found.values()}))}")
            values = {parameter: value for parameter, (_, value) in found.items()}
            ctx.default_map = {**values, **(ctx.default_map or {})}
        return super().parse_args(ctx, translated(self, args))


@functools.cache
def _rows() -> dict[str, ForeignOption]:
    """Return the table by option name.  If several programs share a name, the first row wins."""
    from .foreign_table import ROWS

    found: dict[str, ForeignOption] = {}
    for row in ROWS:
        for name in row.names:
            found.setdefault(name, row)
    return found


def _own(command: click.Command) -> dict[str, click.Parameter]:
    """Return the command's options by each of their names."""
    shown_help = command.get_help_option(_CONTEXT)
    return {
        name: parameter
        for parameter in (*command.params, *(() if shown_help is None else (shown_help,)))
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }


_CONTEXT = click.Context(click.Command("quire"), help_option_names=["-h", "--help"])


def translated(command: click.Command, args: Sequence[str]) -> list[str]:
    """Return the arguments with other programs' options translated, or dropped with a note.

    UsageError for options that are rejected, and for an unknown short option of several letters, which click would
    otherwise split into single-letter options.
    """
    own = _own(command)
    result: list[str] = []
    rest = deque(args)
    cache_types: dict[str, str] = {}
    while rest:
        argument = rest.popleft()
        if argument == "--":
            return [*result, *_cache_arguments(cache_types), argument, *rest]
        if argument == "-" or not argument.startswith("-"):
            result.append(argument)
            continue
        name, attached = _name_of(argument, own)
        parameter = own.get(name)
        row = _rows().get(name) if parameter is None or name in REREAD else None
        if parameter is not None and row is None:
            result.append(argument if attached is None else f"{name}={attached}")
            if attached is None and _takes_value(parameter) and rest:
                result.append(rest.popleft())
        elif row is not None:
            value = _value_of(row, attached, rest)
            replaced = _replaced(command, own, name, row, value)
            if row.target == "--kv-dtype" and value is not None and row.program == "llama.cpp":
                cache_types |= {row.names[0]: value} if replaced else {}
                continue
            # llama.cpp has two batch sizes; the smaller one, -ub, limits a step.  It comes last here, so it wins.
            result[:] = [*replaced, *result] if name == "-b" else [*result, *replaced]
        else:
            _check_letters(argument, own)
            result.append(argument)
    return [*result, *_cache_arguments(cache_types)]


def _name_of(argument: str, own: Mapping[str, object]) -> tuple[str, str | None]:
    """Split an option's name, with vLLM's underscores as dashes, from a value after "=" in the same argument."""
    if not argument.startswith("--"):
        return argument, None
    name, equals, value = argument.partition("=")
    if name not in own:
        name = name.replace("_", "-")
    return name, value if equals else None


def _takes_value(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.count


def _value_of(row: ForeignOption, attached: str | None, rest: deque[str]) -> str | None:
    """Return the option's value, if it takes one, removing it from ``rest``."""
    if attached is not None or not row.takes or not rest:
        return attached
    if isinstance(row.takes, tuple) and rest[0] not in row.takes:
        return None
    if row.verdict != "works" and rest[0].startswith("-") and not re.fullmatch(r"-\d.*", rest[0]):
        return None  # an ignored option without its value
    return rest.popleft()


def _replaced(
    command: click.Command, own: Mapping[str, click.Parameter], name: str, row: ForeignOption, value: str | None
) -> list[str]:
    """Return the arguments that replace an option.  UsageError for a rejected one."""
    if row.verdict == "note" or (row.verdict == "refused" and value is not None and value in row.neutral):
        note(f"{name} has no effect: {row.text}")
        return []
    if row.verdict == "refused":
        raise click.UsageError(f"{name} is not supported: {row.text}")
    if row.target not in own:
        if row.elsewhere:
            note(f"{name} has no effect: {row.elsewhere}")
            return []
        raise click.UsageError(f"{name} is not an option of quire {command.name}: {_where(row.target)}")
    if isinstance(row.takes, tuple) and value is None:
        value = row.takes[0]
    if row.takes and value is None:
        raise click.UsageError(f"{name} needs a value")
    return _as_arguments(row, own[row.target], _ours(name, row, value))


def _as_arguments(row: ForeignOption, parameter: click.Parameter, values: Values) -> list[str]:
    if values is None:
        return []
    if not _takes_value(parameter):
        return [row.target] if values != ["off"] else []
    return [part for value in values for part in (row.target, value)]


def _ours(name: str, row: ForeignOption, value: str | None) -> Values:
    """Convert a value for Quire's option.  UsageError naming the foreign option if that is impossible."""
    if row.value is not None:
        return [row.value]
    if value is None:
        return []
    try:
        return ours_of(row.how, value)
    except ValueError as error:
        raise click.UsageError(f"{name} {value!r:.80} is not supported: {error}") from None


def _where(target: str) -> str:
    from .main import COMMANDS, cli

    found = [
        name
        for name in COMMANDS
        if (command := cli.get_command(_CONTEXT, name)) is not None and target in _own(command)
    ]
    return f"it is one of quire {', '.join(found)}" if found else "no command has it"


def _check_letters(argument: str, own: Mapping[str, click.Parameter]) -> None:
    """Raise UsageError for an unknown ``-xyz``, rather than let click read it as ``-x -y -z``."""
    if argument.startswith("--") or len(argument) == 2 or re.fullmatch(r"-\d.*", argument):
        return
    first = own.get(argument[:2])
    if first is not None and _takes_value(first) and _ATTACHED.fullmatch(argument):
        return
    near = difflib.get_close_matches(argument, [*own, *_rows()], 1)
    raise click.UsageError(f"No such option '{argument}'" + (f" (like {near[0]}?)" if near else ""))


def _cache_arguments(given: Mapping[str, str]) -> list[str]:
    """Combine llama.cpp's separate types of K and V, either of which may be missing, into ``--kv-dtype``."""
    if not given:
        return []
    k, v = (given.get(name) for name in _CACHE_TYPES)
    if len(given) == 1 and {k, v} & {"f32", "bf16"}:
        note(f"{next(iter(given))} sets both K and V to {k or v}")
    return ["--kv-dtype", cache_dtype_of(k, v)]


# Environment variables


def from_foreign_environment(environment: Mapping[str, str], command: click.Command) -> dict[str, tuple[str, Any]]:
    """Return values for this command's parameters, each with the variable it comes from.

    Variables without effect produce a note; a rejected one raises UsageError.
    """
    given = {name: value for name, value in environment.items() if name.startswith(_PREFIXES) and value != ""}
    if not given:
        return {}
    from .foreign_table import ROWS

    own, rows = _own(command), {row.env: row for row in ROWS if row.env}
    found: dict[str, tuple[str, Any]] = {}
    cache_types: dict[str, str] = {}
    for variable, value in sorted(given.items()):
        row = rows.get(variable)
        if row is not None and row.how == "address":
            if "--host" in own:
                _, host, port = ollama_address(value)
                found |= {"host": (variable, host), "port": (variable, str(port))}
        elif row is not None and row.verdict == "works":
            parameter = own.get(row.target)
            if parameter is not None and row.names[:1] and row.names[0] in _CACHE_TYPES:
                cache_types[row.names[0]] = value
                found["kv_dtype"] = variable, _cache_arguments(cache_types)[-1]
            elif parameter is not None and parameter.name is not None and _is_on(row, value):
                values = _ours(variable, row, value)
                if values is not None:
                    found[parameter.name] = variable, _as_default(parameter, values, value)
        elif row is not None and row.verdict == "refused" and value not in (*row.neutral, *_OFF):
            raise click.UsageError(f"{variable} is not supported: {row.text}")
        elif variable.startswith("LLAMA_ARG_") and command.name == "serve":
            note(f"{variable} has no effect" + (f": {row.text}" if row is not None else ""))
    return found


def _is_on(row: ForeignOption, value: str) -> bool:
    """Return False if a variable for a flag has a value that means "off"."""
    return bool(row.takes) or row.program == "Ollama" or value.lower() not in _OFF


def _as_default(parameter: click.Parameter, values: list[str], given: str) -> Any:
    if parameter.multiple:
        return values
    return values[-1] if values and _takes_value(parameter) else given
