"""The options of the commands that run tools."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from ..params.rules import Float, Int
from ..params.tool_options import TOOL_OPTIONS, ToolOption, ToolOptions

__all__ = ["tool_options"]


def _click_option(name: str, option: ToolOption) -> Callable[[Callable[..., None]], Callable[..., None]]:
    more: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    match option.rule:
        case Float() as rule:
            more["type"] = click.FloatRange(rule.low, rule.high, min_open=rule.open_below)
        case Int() as rule:
            more["type"] = click.IntRange(rule.low, rule.high)
        case _:
            more["type"] = click.Path(exists=True, dir_okay=False)
    return click.option(*option.flags.split(), f"tools_{name}", **more)


def tool_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which receives them as one argument, ``run_tools``."""

    @functools.wraps(function)
    def packed(*args: object, **values: Any) -> None:
        given = {entry.name: values.pop(f"tools_{entry.name}") for entry in fields(ToolOptions)}
        options = ToolOptions(**{name: value for name, value in given.items() if value is not None})
        function(*args, run_tools=options, **values)

    decorated: Callable[..., None] = packed
    for name, option in reversed(list(TOOL_OPTIONS.items())):
        decorated = _click_option(name, option)(decorated)
    return decorated
