"""Options about the conversation and about thinking, for the commands that answer in chats."""

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
    """The system message, keywords for ``LLM.chat``, and a chat template that replaces the model's."""

    system: str | None = None
    keywords: dict[str, Any] = field(default_factory=dict)
    template: str | None = None

    def for_model(self, llm: LLM) -> dict[str, Any]:
        """Give the model the template and return the keywords for it.

        Template variables that its template does not read are left out, with a note.
        """
        if self.template is not None:
            llm.use_chat_template(self.template)
        values = self.keywords.get("template_values")
        if not values:
            return dict(self.keywords)
        known = {name: value for name, value in values.items() if name in llm.template_variables}
        lacking = [name for name in values if name not in known]
        # enable_thinking and reasoning_effort both control thinking, so a template that reads either is enough.
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
        raise click.BadParameter(f"expected a JSON object, got {value!r:.80}", ctx, param)
    return found


_OPTIONS = (
    click.option("-sys", "--system", "--system-prompt", "system", metavar="TEXT",
        help="The system message: instructions for the model."),
    click.option(
        "-sysf", "--system-prompt-file", "system_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        help="Read the system message from FILE.",
    ),
    click.option(
        "--reasoning-format", metavar="NAME",
        help="How thinking is marked in the output; none leaves it in the text [detected from the template].",
    ),
    click.option(
        "--reasoning-budget", type=click.IntRange(-1), metavar="N", help="Most tokens of thinking; -1: no limit [-1]."
    ),
    click.option(
        "-rea", "--reasoning", type=click.Choice(["on", "off", "auto", "low", "medium", "high"]), default="auto",
        metavar="on|off|LEVEL", help="Turn thinking on or off, or set its LEVEL: low, medium, high.",
    ),
    click.option("--reasoning-effort", metavar="LEVEL", help="How much to think: low, medium, high, ..."),
    click.option(
        "--chat-template-kwargs", "template_values", callback=_json_object, metavar="JSON",
        help="More variables for the chat template, as a JSON object.",
    ),
)  # fmt: skip

TEMPLATE_OPTIONS = (
    click.option(
        "--chat-template", metavar="JINJA", help="Chat template to use instead of the model's: its text, or chatml."
    ),
    click.option(
        "--chat-template-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        help="Read the chat template from FILE.",
    ),
)  # fmt: skip
# llama.cpp accepts these templates by name.
_NAMED_TEMPLATES = {
    "chatml": "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def taken_template(values: dict[str, Any]) -> str | None:
    """Remove the chat template options from a command's values and return the template.

    An unknown template name produces a note and None, so that the model's own template is used.
    """
    text, file = values.pop("chat_template"), values.pop("chat_template_file")
    if text is not None and file is not None:
        raise click.UsageError("give only one of --chat-template and --chat-template-file")
    if file is not None:
        return text_of(file)
    if text is None or "{" in text:
        assert text is None or isinstance(text, str)
        return text
    if text not in _NAMED_TEMPLATES:
        note(f"--chat-template {one_line(text):.40} is not a known template: using the model's own")
    return _NAMED_TEMPLATES.get(text)


def chat_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which receives them as one argument, ``chat``."""

    @functools.wraps(function)
    def packed(*args: object, **values: Any) -> None:
        own = {name: values.pop(name) for name in _NAMES}
        if own["system"] is not None and own["system_file"] is not None:
            raise click.UsageError("give only one of --system and --system-prompt-file")
        system = own["system"] if own["system_file"] is None else text_of(own["system_file"])
        preset = click.get_current_context().meta.get(PRESET)
        if system is None and preset is not None and not values.get("raw"):
            system = preset.system
        template = taken_template(values)
        if template is None and preset is not None:
            template = preset.template
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
