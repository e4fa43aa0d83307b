"""What the commands that answer in chats may be told about the conversation and about thinking."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .model_argument import text_of
from .model_options import PRESET
from .text import note, one_line

if TYPE_CHECKING:
    from ..engine import LLM

__all__ = ["ChatSettings", "chat_options"]


@dataclass(frozen=True)
class ChatSettings:
    """The system message, keywords of ``LLM.chat`` that are set, and a chat template in place of the model's."""

    system: str | None = None
    keywords: dict[str, Any] = field(default_factory=dict)
    template: str | None = None

    def for_model(self, llm: LLM) -> dict[str, Any]:
        """The keywords for a model, which gets the template.  A note names variables that its template does not read,
        and they are left out."""
        if self.template is not None:
            llm.use_chat_template(self.template)
        values = self.keywords.get("template_values")
        if not values:
            return dict(self.keywords)
        known = {name: value for name, value in values.items() if name in llm.template_variables}
        lacking = [name for name in values if name not in known]
        # How much to think is told by one variable or the other: one of them is enough.
        if not (known and {*values} <= {"enable_thinking", "reasoning_effort"}):
            for name in lacking:
                note(f"{_SAID.get(name, one_line(name))} has no effect: the model's chat template does not read it")
        rest = {name: value for name, value in self.keywords.items() if name != "template_values"}
        return {**rest, "template_values": known} if known else rest


_SAID = {"enable_thinking": "--reasoning", "reasoning_effort": "--reasoning-effort"}


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
    click.option("-sys", "--system", "--system-prompt", "system", metavar="TEXT",
        help="The system message: how to answer."),
    click.option(
        "-sysf", "--system-prompt-file", "system_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        help="The system message, from a file.",
    ),
    click.option(
        "--reasoning-format", metavar="NAME",
        help="How the model marks its thinking; none: it stays in the text [what the template shows].",
    ),
    click.option(
        "--reasoning-budget", type=click.IntRange(-1), metavar="N", help="Tokens of thinking; -1: any number [-1]."
    ),
    click.option(
        "-rea", "--reasoning", type=click.Choice(["on", "off", "auto", "low", "medium", "high"]), default="auto",
        metavar="on|off|LEVEL", help="Have the model think before it answers, or not; LEVEL: low, medium, high.",
    ),
    click.option("--reasoning-effort", metavar="LEVEL", help="How much to think: low, medium, high, ..."),
    click.option(
        "--chat-template-kwargs", "template_values", callback=_json_object, metavar="JSON",
        help="Further variables of the chat template, as an object.",
    ),
)  # fmt: skip

TEMPLATE_OPTIONS = (
    click.option(
        "--chat-template", metavar="JINJA", help="A chat template in place of the model's: its text, or chatml."
    ),
    click.option(
        "--chat-template-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        help="The chat template, from a file.",
    ),
)  # fmt: skip
# Templates that llama.cpp knows by name and that model files no longer contain.
_NAMED_TEMPLATES = {
    "chatml": "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def taken_template(values: dict[str, Any]) -> str | None:
    """Take the chat template out of a command's values.

    An unknown template name is noted, and the model's own template is used.
    """
    text, file = values.pop("chat_template"), values.pop("chat_template_file")
    if text is not None and file is not None:
        raise click.UsageError("the chat template is given twice: by --chat-template and by --chat-template-file")
    if file is not None:
        return text_of(file)
    if text is None or "{" in text:
        assert text is None or isinstance(text, str)
        return text
    if text not in _NAMED_TEMPLATES:
        note(f"--chat-template {one_line(text):.40} has no effect: no template has that name, so the model's is used")
    return _NAMED_TEMPLATES.get(text)


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
        template = taken_template(values)
        function(*args, chat=ChatSettings(system, _keywords(own), template), **values)

    decorated: Callable[..., None] = packed
    for option in reversed(_OPTIONS + TEMPLATE_OPTIONS):
        decorated = option(decorated)
    return decorated


_NAMES = (
    "system", "system_file", "reasoning_format", "reasoning_budget", "reasoning", "reasoning_effort", "template_values",
)  # fmt: skip


def _keywords(own: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, object] = {}
    reasoning = own["reasoning"]
    if reasoning != "auto":
        values["enable_thinking"] = reasoning != "off"
    if reasoning not in ("on", "off", "auto"):
        values["reasoning_effort"] = reasoning
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
