"""Chats: the options of an answer beside its sampling, and the answer as a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from ...chat import AnswerFormat, AnswerParser, ChatMessage, MessageDelta, ToolCallDelta
from ...chat.generic_tools import FORMAT as GENERIC_FORMAT
from ...chat.generic_tools import with_tools_as_text
from ...chat.reply import joined
from ...errors import RequestError, UnsupportedError
from ...params.chat_options import ChatOptions
from ...params.sampling import SamplingParams
from ..engine import EngineRequest
from .results import Choice, Collector, Delta, FinishReason, GenerationResult

if TYPE_CHECKING:
    from ..._native.engine import Event
    from ...chat import ChatTemplate, Messages
    from ...chat.template import Rendering
    from ...tokenizer import Tokenizer

__all__ = [
    "ChatChoice",
    "ChatCollector",
    "ChatDelta",
    "ChatRequest",
    "ChatResult",
    "call_marks",
    "conversations",
    "format_of",
    "rendered",
]


@dataclass(frozen=True)
class ChatRequest:
    """A request of the engine, and how to read its answer."""

    engine: EngineRequest
    form: AnswerFormat
    tools: Sequence[Mapping[str, object]] | None
    prompt: str
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChatDelta(Delta):
    """New text of an answer (``text``, as generated), and the parts of the message that it makes.

    ``content`` and ``reasoning_content`` may lag behind ``text``, which may hold the beginning of a tag.  A tool call
    comes when it is complete.
    """

    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True)
class ChatChoice(Choice):
    """One answer: its ``message``, and the ``text`` as generated."""

    message: ChatMessage = field(default_factory=ChatMessage)


@dataclass(frozen=True)
class ChatResult(GenerationResult):
    """The answers to a conversation.  ``message`` is that of the first choice."""

    choices: list[ChatChoice]  # type: ignore[assignment]

    @property
    def message(self) -> ChatMessage:
        return self.choices[0].message

    def _answer(self) -> str | None:
        content = self.message.content or ""
        return None if self.message.tool_calls and not content else content


class ChatCollector:
    """``Collector`` for a chat."""

    def __init__(self, request: ChatRequest, collector: Collector) -> None:
        self._collector = collector
        n = request.engine.n
        self._parsers = [AnswerParser(request.form, request.tools, request.prompt) for _ in range(n)]
        self._deltas: list[list[MessageDelta]] = [[] for _ in range(n)]

    @property
    def complete(self) -> bool:
        """True once every choice has ended."""
        return self._collector.complete

    def add(self, event: Event) -> ChatDelta:
        """Take an event of kind ``"delta"`` or ``"finish"``."""
        delta = self._collector.add(event)
        parser = self._parsers[delta.choice]
        news = [parser.feed(delta.text)]
        if delta.finish_reason is not None:
            news.append(parser.finish(cut=delta.finish_reason == "length"))
        self._deltas[delta.choice] += filter(None, news)
        return ChatDelta(
            **{**delta.__dict__, "finish_reason": self._finish_reason(delta)},
            content="".join(new.content for new in news),
            reasoning_content="".join(new.reasoning_content for new in news),
            tool_calls=tuple(call for new in news for call in new.tool_calls),
        )

    def _finish_reason(self, choice: Delta) -> FinishReason | None:
        called = choice.finish_reason == "stop" and self._parsers[choice.choice].n_calls > 0
        return "tool_calls" if called else choice.finish_reason

    def result(self) -> ChatResult:
        """Return the whole result, once complete."""
        whole = self._collector.result()
        choices = []
        for choice, deltas in zip(whole.choices, self._deltas, strict=True):
            message = joined(deltas)
            reason = "tool_calls" if choice.finish_reason == "stop" and message.tool_calls else choice.finish_reason
            choices.append(ChatChoice(**{**choice.__dict__, "finish_reason": reason, "message": message}))
        return ChatResult(
            choices, whole.prompt_token_ids, whole.prompt_logprobs, whole.n_cached_tokens, whole.parses,
            whole.n_host_tokens, whole.n_disk_tokens,
        )  # fmt: skip


def conversations(messages: Messages | Sequence[Messages]) -> tuple[Sequence[Messages], bool]:
    """Return the given conversations, and whether they came as a list instead of a single one."""
    if isinstance(messages, str):
        raise RequestError(
            f"[chat] messages is the text {messages!r:.40}: give [{{'role': 'user', 'content': ...}}], or call generate"
        )
    items: Sequence[object] = messages if isinstance(messages, Sequence) else ()
    if items and not isinstance(messages, str) and all(isinstance(item, list | tuple) for item in items):
        return cast("Sequence[Messages]", messages), True
    return [cast("Messages", messages)], False


# Marks the end of the last message, whatever the template writes after it.  The space shows whether the template trims.
_END = "\ue0d1\ue0d2\ue0d1 "


def marked_end(messages: Messages) -> list[Mapping[str, object]]:
    """Return a conversation whose last message ends with a mark.  RequestError if that is no text of the assistant."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)
    if last.get("role") != "assistant" or not isinstance(content, str) or not content.strip() or last.get("tool_calls"):
        raise RequestError("[chat] messages do not end with text of the assistant to continue")
    return [*messages[:-1], {**last, "content": content + _END}]


def until_mark(segments: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Return a rendered conversation up to the mark, where the answer continues.  RequestError without a mark."""
    kept: list[tuple[str, bool]] = []
    for n, (text, is_template) in enumerate(reversed(segments)):
        at = text.rfind(_END.strip())
        if at >= 0:
            trimmed = not text.startswith(_END, at)
            kept = [*segments[: len(segments) - 1 - n], (text[:at].rstrip() if trimmed else text[:at], is_template)]
            return [segment for segment in kept if segment[0]]
    raise RequestError("[chat] continue_final_message is not supported: the template does not write the last message")


def visible_tokens(form: AnswerFormat, tokenizer: Tokenizer) -> dict[int, bytes]:
    """Return the control tokens that must be visible for the answer to be read."""
    control = tokenizer.control_tokens
    return {control[text]: text.encode() for text in form.visible if text in control}


def call_marks(template: ChatTemplate, chat: ChatOptions, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that only begin calls, in the model's own format of calls."""
    from ...chat.detection import detect_tools

    form = detect_tools(template.source) if chat.tool_format == "auto" else None
    if form is None or form.frames_content:
        return []
    found = (tokenizer.encode(mark, add_special=False, parse_special=True) for mark in form.starts)
    return [ids[0] for ids in found if len(ids) == 1]


def with_reasoning_budget(request: ChatRequest, budget: int, tokenizer: Tokenizer) -> ChatRequest:
    """Return the request with a limit on its reasoning.  UnsupportedError if reasoning has no tags to end it with."""
    from ...chat.reasoning_budget import ReasoningBudget

    reasoning = request.form.limited
    if reasoning is None:
        raise UnsupportedError("[chat] reasoning_budget is not supported: the model has no tags around reasoning")
    params = request.engine.params or SamplingParams()
    limit = ReasoningBudget(
        form=reasoning,
        n_tokens=budget,
        n_prompt=len(request.engine.token_ids),
        opened=reasoning.opened_by(request.prompt),
        end_ids=tokenizer.encode(reasoning.written_end, add_special=False, parse_special=True),
        decode=lambda ids: tokenizer.decode(ids, skip_special=False),
    )
    params = replace(params, logits_processors=(*params.logits_processors, limit))
    return replace(request, engine=replace(request.engine, params=params))


def rendered(template: ChatTemplate, messages: Messages, chat: ChatOptions, values: Mapping[str, object]) -> Rendering:
    """Render the prompt of a conversation up to where the answer begins.

    If the template reads no tools, they are described in a generic format.  UnsupportedError for another format, which
    only a template could describe.
    """
    tools = chat.shown_tools
    shown = marked_end(messages) if chat.continue_final_message else messages
    if tools and not template.reads_tools:
        if chat.tool_format not in ("auto", "none", GENERIC_FORMAT):
            raise UnsupportedError(
                f"[chat] tool_format {chat.tool_format!r} needs a chat template that reads tools, which this model's "
                "does not: give 'auto'"
            )
        shown, tools = with_tools_as_text(shown, tools), None
    made = template.rendering(shown, tools, chat.begins_answer, **values)
    return replace(made, segments=until_mark(made.segments)) if chat.continue_final_message else made


def format_of(template: ChatTemplate, chat: ChatOptions) -> AnswerFormat:
    """Return the format of answers; calls are in the generic format if the template reads no tools."""
    generic = bool(chat.shown_tools) and chat.tool_format == "auto" and not template.reads_tools
    tools = GENERIC_FORMAT if generic else chat.tool_format
    form = AnswerFormat.detect(template.source, tools, chat.reasoning_format)
    return form.reading_calls(bool(chat.shown_tools))
