"""Whether a model thinks before it answers: what its template is told, and what the prompt says in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..chat import AnswerFormat, ChatTemplate
    from .chat import ChatOptions

__all__ = ["Thinking", "template_values", "without_thinking"]

_SWITCH = "enable_thinking"
# The names that templates have for it, the usual one first.
_SWITCHES = (_SWITCH, "thinking")


@dataclass(frozen=True)
class Thinking:
    """What is said of thinking.

    Attributes:
        values: The variables that the template gets.
        ignored: Names of those that it would not read, where these are left out.
        off: Whether the answer must not begin with reasoning.
        is_told: Whether the template reads it, so that it writes what the model needs to know.
    """

    values: Mapping[str, object]
    ignored: tuple[str, ...] = ()
    off: bool = False
    is_told: bool = False


def template_values(template: ChatTemplate, chat: ChatOptions, form: AnswerFormat) -> Thinking:
    """What a template is told.  A model that can think does, unless the request says otherwise."""
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
    """A prompt whose answer does not begin with reasoning: one that is open is closed, and where the template was not
    told either (``is_told``), an empty one is put there."""
    tags = form.reasoning
    if tags is None:
        return list(segments)
    prompt = "".join(text for text, _ in segments)
    if tags.opened_by(prompt):
        return [*segments, (tags.end, True)]
    if is_told or tags.closed_by(prompt):
        return list(segments)
    return [*segments, (tags.start + tags.end, True)]
