"""What the commands that answer in chats may be told about the conversation and about thinking."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from .model_argument import text_of
from .model_options import PRESET

__all__ = ["ChatSettings", "chat_options"]


@dataclass(frozen=True)
class ChatSettings:
    """The system message, and keywords of ``LLM.chat`` that are set."""

    system: str | None = None
    keywords: dict[str, Any] = field(default_factory=dict)


def _json_object(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, object]:
    if value is None:
        return {}
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.BadParameter(f"must be a JSON object but is {value!r:.80}", ctx, param)
    return found


_OPTIONS = (
    click.option("-sys", "--system", "--system-prompt", "system", metavar="TEXT", help="The system message."),
    click.option(
        "-sysf", "--system-prompt-file", "system_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE", help="The same, from a file.",
    ),
    click.option(
        "--reasoning-format", metavar="NAME",
        help="How the model marks its thinking; none: it stays in the text [what the template shows].",
    ),
    click.option(
        "--reasoning-budget", type=click.IntRange(-1), metavar="N", help="Tokens of thinking; -1: any number [-1]."
    ),
    click.option(
        "-rea", "--reasoning", type=click.Choice(["on", "off", "auto"]), default="auto",
        help="Whether the template is told to have the model think.",
    ),
    click.option("--reasoning-effort", metavar="LEVEL", help="What the template is told of it: low, medium, high."),
    click.option(
        "--chat-template-kwargs", "template_values", callback=_json_object, metavar="JSON",
        help="Further variables of the template, as an object.",
    ),
)  # fmt: skip


def chat_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the function gets them as one argument, ``chat``."""

    @functools.wraps(function)
    def packed(*args: object, **values: Any) -> None:
        own = {name: values.pop(name) for name in _NAMES}
        if own["system"] is not None and own["system_file"] is not None:
            raise click.UsageError("the system message is given twice: by --system and by --system-prompt-file")
        system = own["system"] if own["system_file"] is None else text_of(own["system_file"])
        preset = click.get_current_context().meta.get(PRESET)
        if system is None and preset is not None and not values.get("raw"):
            system = preset.system
        function(*args, chat=ChatSettings(system, _keywords(own)), **values)

    decorated: Callable[..., None] = packed
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


_NAMES = (
    "system", "system_file", "reasoning_format", "reasoning_budget", "reasoning", "reasoning_effort", "template_values",
)  # fmt: skip


def _keywords(own: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, object] = {}
    if own["reasoning"] != "auto":
        values["enable_thinking"] = own["reasoning"] == "on"
    if own["reasoning_effort"] not in (None, "default"):
        values["reasoning_effort"] = own["reasoning_effort"]
    values |= own["template_values"]
    budget = own["reasoning_budget"]
    keywords = {
        "reasoning_format": own["reasoning_format"],
        "reasoning_budget": None if budget == -1 else budget,
        "template_values": values or None,
    }
    return {name: value for name, value in keywords.items() if value is not None}
