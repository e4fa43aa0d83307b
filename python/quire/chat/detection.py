"""Detect the wire format of a model's tool calls from its chat template.

A model is trained on the calls that its template writes.  So detection renders a conversation with calls, and picks the
format that parses them back with the least text left over.  If a template writes no calls, texts in its source decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

from quire.chat.budget import Limits
from quire.chat.template import ChatTemplate
from quire.chat.tools import TOOL_FORMATS, tool_format
from quire.chat.tools.calls import Call, ToolFormat, Tools
from quire.chat.tools.parser import ToolParser
from quire.errors import CapacityError, QuireError

__all__ = ["ToolSupport", "detect_tools", "tool_support"]

_LIMITS = Limits(time_s=0.3, made_bytes=8 << 20, output_bytes=1 << 20)
_ASKED = "Zq4: how is it there?"
_QUESTION = {"role": "user", "content": _ASKED}
_MARK = "Zq7"
_ARGUMENTS: Mapping[str, object] = {"city": f"{_MARK} town", "days": 3}
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
# Ids of the form that Mistral's templates require.
_CALLS: list[dict[str, object]] = [
    {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": _ARGUMENTS}}
    for i, name in enumerate(_NAMES)
]


@dataclass(frozen=True)
class ToolSupport:
    """A chat template's support for tools.

    Attributes:
        takes_tools: The template describes tools to its model.
        format_name: The format of calls; None if no known format is detected.
    """

    takes_tools: bool
    format_name: str | None

    @property
    def is_unknown(self) -> bool:
        """True if the model accepts tools but its calls remain text."""
        return self.takes_tools and self.format_name is None


def tool_support(source: str) -> ToolSupport:
    """Return the support of a chat template; none if the source is not a template."""
    try:
        takes_tools = _template_of(source).reads_tools
    except QuireError:
        return ToolSupport(takes_tools=False, format_name=None)
    form = detect_tools(source)
    return ToolSupport(takes_tools, None if form is None else form.name)


@lru_cache(maxsize=8)  # compiling takes most of the time
def _template_of(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, limits=_LIMITS, keeps_turns=True)


@lru_cache(maxsize=8)  # every request needs the format of its model
def detect_tools(source: str) -> ToolFormat | None:
    """Return the format of the calls in a chat template, or None."""
    is_written = False
    for turn in _written_turns(source):
        is_written = True
        form = _reader_of(turn, source)
        if form is not None:
            return form
    if is_written:
        return None
    return next((form for form in map(tool_format, TOOL_FORMATS) if _has_hints(form, source)), None)


def _has_hints(form: ToolFormat, source: str) -> bool:
    return any(all(hint in source for hint in group) for group in form.hints)


@dataclass(frozen=True)
class _WrittenTurn:
    """A turn with ``n_calls`` as a template writes it.

    One text begins where the prompt ends or continues differently, which may be within a mark; the other begins where
    the question ends.
    """

    answers: Sequence[str]
    n_calls: int


def _written_turns(source: str) -> Iterator[_WrittenTurn]:
    """Yield a turn with two calls and one with one, as far as the template accepts them."""
    if "tool_calls" not in source:
        return
    try:
        template = _template_of(source)
        for n_calls in (2, 1):
            text = _rendered(template, n_calls)
            turn = text[text.rfind(_ASKED) + len(_ASKED) :] if _ASKED in text else text
            if _MARK in turn:
                pairs = zip(_prompt(template), text, strict=False)
                n_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                yield _WrittenTurn([text[n_shared:], turn], n_calls)
    except QuireError:  # not a template, or over a limit
        return


def _rendered(template: ChatTemplate, n_calls: int) -> str:
    """Render a conversation with calls.  Some templates accept no content beside them, or no empty content."""
    text = ""
    for content in ({"content": ""}, {}, {"content": "Zq5"}):
        turn = {"role": "assistant", **content, "tool_calls": _CALLS[:n_calls]}
        try:
            text = template.render([_QUESTION, turn], _TOOLS, False)
        except CapacityError:
            raise
        except QuireError:
            continue
        if _MARK in text:
            return text
    return text


def _prompt(template: ChatTemplate) -> str:
    try:
        return template.render([_QUESTION], _TOOLS, True)
    except QuireError:
        return ""


def _reader_of(turn: _WrittenTurn, source: str) -> ToolFormat | None:
    """Return the format that parses the calls and leaves the least text, or None.

    Among equals, the first wins whose hints are in the template, or that has none.
    """
    found: list[tuple[int, bool, int]] = []
    forms = [tool_format(name) for name in TOOL_FORMATS]
    for i, form in enumerate(forms):
        left = [n for answer in turn.answers if (n := _text_left(form, answer, turn.n_calls)) is not None]
        if left:
            found.append((min(left), bool(form.hints) and not _has_hints(form, source), i))
    return forms[min(found)[2]] if found else None


def _text_left(form: ToolFormat, answer: str, n_calls: int) -> int | None:
    """Return how much text a format leaves beside the calls, or None if it parses other calls."""
    parser = ToolParser(form, Tools(_TOOLS))
    parts = [*parser.feed(answer), *parser.finish()]
    calls = [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, Call)]
    text = "".join(part.text for part in parts if not isinstance(part, Call))
    # Some templates write the first call alone.
    expected = [(name, _ARGUMENTS) for name in _NAMES[: min(n_calls, len(calls))]]
    return None if not calls or calls != expected or _MARK in text else len(text.strip())
