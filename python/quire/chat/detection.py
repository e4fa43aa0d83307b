"""The wire format of a model's tool calls, told from its chat template.

What a template writes for a turn with calls is what its model was trained on.  So detection renders a conversation
with calls, and the format that reads them back from the text, with the least of it left over, is the model's.  Only
where a template writes no calls, the texts in its source must tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from quire.chat.budget import Limits
from quire.chat.template import ChatTemplate
from quire.chat.tools import TOOL_FORMATS, tool_format
from quire.chat.tools.calls import Call, ToolFormat, Tools
from quire.chat.tools.parser import ToolParser
from quire.errors import CapacityError, QuireError

__all__ = ["ToolSupport", "detect_tools", "tool_support"]

_LIMITS = Limits(time_s=0.3)
_ASKED = "Zq4: how is it there?"
_QUESTION = {"role": "user", "content": _ASKED}
_MARK = "Zq7"
_ARGUMENTS: Mapping[str, object] = {"city": f"{_MARK} & Zq8", "days": 3}
_SCHEMAS = {
    "city": {"type": "string", "description": "Where."},
    "days": {"type": "integer", "description": "How many."},
}
_NAMES = ("get_weather", "get_climate")
_TOOLS: list[dict[str, object]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Tells.",
            "parameters": {"type": "object", "properties": _SCHEMAS, "required": ["city", "days"]},
        },
    }
    for name in _NAMES
]
# Ids as Mistral's templates insist on.
_CALLS: list[dict[str, object]] = [
    {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": _ARGUMENTS}}
    for i, name in enumerate(_NAMES)
]


@dataclass(frozen=True)
class ToolSupport:
    """What a chat template shows of tools.  ``takes_tools``: it tells its model of them.  ``format_name``: how the
    model writes calls, None where no known format is seen."""

    takes_tools: bool
    format_name: str | None

    @property
    def is_unknown(self) -> bool:
        """Whether the model may be given tools, but its calls will stay text."""
        return self.takes_tools and self.format_name is None


def tool_support(source: str) -> ToolSupport:
    """What a chat template's source shows; nothing, where it is no template."""
    try:
        takes_tools = ChatTemplate(source, limits=_LIMITS).reads_tools
    except QuireError:
        return ToolSupport(takes_tools=False, format_name=None)
    form = detect_tools(source)
    return ToolSupport(takes_tools, None if form is None else form.name)


@lru_cache(maxsize=8)  # each request asks for the format of its model
def detect_tools(source: str) -> ToolFormat | None:
    """The format of the calls that a chat template's source shows, or None."""
    written = _written_turn(source)
    if written is not None:
        return _reader_of(written)
    return next((form for form in map(tool_format, TOOL_FORMATS) if _has_hints(form, source)), None)


def _has_hints(form: ToolFormat, source: str) -> bool:
    return any(all(hint in source for hint in group) for group in form.hints)


@dataclass(frozen=True)
class _WrittenTurn:
    """A turn with ``n_calls`` as a template writes it: from the end of the prompt on, where that can be told; and from
    the end of the question on."""

    answers: Sequence[str]
    n_calls: int


def _written_turn(source: str) -> _WrittenTurn | None:
    """The turn with calls; None where the template writes none."""
    if "tool_calls" not in source:
        return None
    try:
        template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, limits=_LIMITS)
    except QuireError:
        return None
    for text, n_calls in _renderings(template):
        turn = text[text.rfind(_ASKED) + len(_ASKED) :] if _ASKED in text else text
        if _MARK in turn:
            prompt = _prompt(template)
            answers = [text[len(prompt) :]] if prompt and text.startswith(prompt) else []
            return _WrittenTurn([*answers, turn], n_calls)
    return None


def _prompt(template: ChatTemplate) -> str:
    try:
        return template.render([_QUESTION], _TOOLS, True)
    except QuireError:
        return ""


def _renderings(template: ChatTemplate) -> Iterator[tuple[str, int]]:
    """Conversations with a number of calls, as far as the template renders them: some take one call only, or no
    content, or none that is empty."""
    for n_calls in (2, 1):
        for content in ({"content": ""}, {}, {"content": "Zq5"}):
            turn = {"role": "assistant", **content, "tool_calls": _CALLS[:n_calls]}
            try:
                text = template.render([_QUESTION, turn], _TOOLS, False)
            except CapacityError:
                return
            except QuireError:
                continue
            yield text, n_calls


def _reader_of(turn: _WrittenTurn) -> ToolFormat | None:
    """The format that reads the calls and leaves the least text; None where none does."""
    best: tuple[int, ToolFormat] | None = None
    for form in map(tool_format, TOOL_FORMATS):
        for answer in turn.answers:
            left = _text_left(form, answer, turn.n_calls)
            if left is not None and (best is None or left < best[0]):
                best = left, form
    return None if best is None else best[1]


def _text_left(form: ToolFormat, answer: str, n_calls: int) -> int | None:
    """How much text a format leaves beside the calls; None where it reads other calls."""
    parser = ToolParser(form, Tools(_TOOLS))
    parts = [*parser.feed(answer), *parser.finish()]
    calls = [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, Call)]
    text = "".join(part.text for part in parts if not isinstance(part, Call))
    # Some templates write the first call alone.
    expected = [(name, _ARGUMENTS) for name in _NAMES[: min(n_calls, len(calls))]]
    return None if not calls or calls != expected or _MARK in text else len(text.strip())
