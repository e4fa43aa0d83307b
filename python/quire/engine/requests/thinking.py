"""Switch a model's thinking on or off by its template's variables, or else by the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...chat import AnswerFormat, ChatTemplate
    from ...params.chat_options import ChatOptions

__all__ = ["Thinking", "template_values", "without_thinking"]

_SWITCH = "enable_thinking"
# Names of the switch in templates, the usual one first.
_SWITCHES = (_SWITCH, "thinking")


@dataclass(frozen=True)
class Thinking:
    """The settings for thinking before an answer.

    Attributes:
        values: The variables that the template gets.
        ignored: Names of variables that were left out because the template does not read them.
        off: Whether the answer must not begin with reasoning.
        is_told: Whether the template reads the switch, and so tells the model itself.
    """

    values: Mapping[str, object]
    ignored: tuple[str, ...] = ()
    off: bool = False
    is_told: bool = False


def template_values(template: ChatTemplate, chat: ChatOptions, form: AnswerFormat) -> Thinking:
    """Return the variables for a template.  A model that can think does, unless the request says otherwise."""
    given = dict(chat.template_values or {})
    known = [name for name in _SWITCHES if name in template.variables]
    off = any(given.get(name) is False for name in _SWITCHES)
    if _SWITCH in given and known and _SWITCH not in known:
        given.setdefault(known[0], given.pop(_SWITCH))
    elif _SWITCH in known and not any(name in given for name in _SWITCHES):
        given[_SWITCH] = True
    if off and not known and form.reasoning is not None:  # the prompt says it in the template's place
        given = {name: value for name, value in given.items() if name not in _SWITCHES}
    values = {name: value for name, value in given.items() if name in template.variables}
    return Thinking(values, tuple(name for name in given if name not in values), off, bool(known))


def without_thinking(segments: Sequence[tuple[str, bool]], form: AnswerFormat, is_told: bool) -> list[tuple[str, bool]]:
    """Return the prompt, ended so that the answer does not begin with reasoning.

    Reasoning that the prompt opens is closed.  If the template was not told either (``is_told``), empty reasoning is
    added.
    """
    tags = form.reasoning
    if tags is None:
        return list(segments)
    prompt = "".join(text for text, _ in segments)
    if tags.opened_by(prompt):
        return [*segments, (tags.end, True)]
    if is_told or tags.closed_by(prompt):
        return list(segments)
    return [*segments, (tags.start + tags.end, True)]
