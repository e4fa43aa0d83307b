"""Parse a model's answer, as it arrives, into the parts of a message: reasoning, content, tool calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from quire.chat.detection import detect_tools
from quire.chat.reasoning import CHANNELS, ReasoningFormat, ReasoningSplitter, detect_reasoning, reasoning_format
from quire.chat.reply import ChatMessage, MessageDelta, ToolCallDelta, joined
from quire.chat.tools import tool_format
from quire.chat.tools.calls import Call, Kind, Text, ToolFormat, Tools
from quire.chat.tools.parser import ToolParser

__all__ = ["AnswerFormat", "AnswerParser", "parse_answer"]


T = TypeVar("T")


def _chosen(name: str, by_name: Callable[[str], T], detect: Callable[[str], T | None], template: str) -> T | None:
    if name == "none":
        return None
    return detect(template) if name == "auto" else by_name(name)


@dataclass(frozen=True)
class AnswerFormat:
    """The format of a model's answers: the tags of its reasoning and its tool-call format, each None if absent."""

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None

    @classmethod
    def detect(cls, template: str, tools: str = "auto", reasoning: str = "auto") -> AnswerFormat:
        """Detect the format from the source of a chat template.

        ``tools`` and ``reasoning`` name a format to use instead, or ``"none"``.  RequestError for an unknown name.
        """
        return cls(
            reasoning=_chosen(reasoning, reasoning_format, detect_reasoning, template),
            tools=_chosen(tools, tool_format, detect_tools, template),
        )

    def reading_calls(self, tools: bool) -> AnswerFormat:
        """Return the format for a request with or without ``tools``.

        Without tools, marks of calls are parsed only if plain answers have marks, too.
        """
        return self if tools or self.tools is None or self.tools.frames_content else replace(self, tools=None)

    @property
    def limited(self) -> ReasoningFormat | None:
        """The reasoning that a budget limits: the text between tags, or a channel of the tool format."""
        return self.reasoning or (None if self.tools is None else CHANNELS.get(self.tools.name))

    @property
    def visible(self) -> tuple[str, ...]:
        """Texts that must be visible in an answer if they are control tokens."""
        tags = () if self.reasoning is None else (self.reasoning.start, self.reasoning.end)
        return tags + (() if self.tools is None else self.tools.visible)


class AnswerParser:
    """Parses an answer's text in pieces.  Never raises, whatever the text."""

    def __init__(
        self,
        form: AnswerFormat,
        tools: Sequence[Mapping[str, object]] | None = None,
        prompt: str = "",
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """Create a parser.

        Args:
            tools: The definitions that the model was given.  Without any, calls are content.
            prompt: The prompt, whose end shows whether reasoning has begun.
            new_id: Returns ids for calls.
        """
        opened = form.reasoning is not None and form.reasoning.opened_by(prompt)
        self._splitter = None if form.reasoning is None else ReasoningSplitter(form.reasoning, opened)
        read = form.reading_calls(bool(tools)).tools
        self._parser = None if read is None else ToolParser(read, Tools(tools) if tools else None)
        self._new_id = new_id or (form.tools.new_id if form.tools is not None else None)
        self._n_calls = 0

    @property
    def n_calls(self) -> int:
        """The number of calls so far."""
        return self._n_calls

    def feed(self, text: str) -> MessageDelta:
        """Parse more of the text; return the new parts."""
        parts: list[Call | Text] = [Text(Kind.CONTENT, text)]
        if self._splitter is not None:
            parts = [*self._splitter.feed(text)]
        return self._delta(self._calls(parts))

    def finish(self, cut: bool = False) -> MessageDelta:
        """End the answer; return the remaining parts.

        If the answer was ``cut`` by its length (``max_tokens``), an incomplete call is returned with its name and the
        beginning of its arguments, and the beginning of a mark is dropped.
        """
        parts = [] if self._splitter is None else self._calls(self._splitter.finish(cut))
        if self._parser is not None:
            parts += self._parser.finish(cut)
        return self._delta(parts)

    def _calls(self, parts: Iterable[Call | Text]) -> list[Call | Text]:
        if self._parser is None:
            return list(parts)
        found: list[Call | Text] = []
        for part in parts:
            if isinstance(part, Text) and part.kind is Kind.CONTENT:
                found += self._parser.feed(part.text)
            else:
                found.append(part)
        return found

    def _delta(self, parts: list[Call | Text]) -> MessageDelta:
        texts = {
            kind: "".join(part.text for part in parts if isinstance(part, Text) and part.kind is kind) for kind in Kind
        }
        calls = tuple(self._call(part) for part in parts if isinstance(part, Call))
        return MessageDelta(texts[Kind.CONTENT], texts[Kind.REASONING], calls)

    def _call(self, call: Call) -> ToolCallDelta:
        index = self._n_calls
        self._n_calls += 1
        made = None if self._new_id is None else self._new_id()
        return ToolCallDelta(index, call.id or made or f"call_{os.urandom(12).hex()}", call.name, call.arguments)


def parse_answer(
    text: str,
    form: AnswerFormat,
    tools: Sequence[Mapping[str, object]] | None = None,
    prompt: str = "",
    cut: bool = False,
) -> ChatMessage:
    """Parse a whole answer, or one that was ``cut``."""
    parser = AnswerParser(form, tools, prompt)
    return joined([parser.feed(text), parser.finish(cut)])
