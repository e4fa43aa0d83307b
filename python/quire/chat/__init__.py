"""Conversations to prompts, and answers to messages.

Chat templates run in a sandbox, user text is kept apart from control tokens; reasoning and tool calls are read from
what a model writes, while it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from quire.chat.answer import AnswerFormat, AnswerParser, parse_answer
    from quire.chat.messages import Messages
    from quire.chat.reply import ChatMessage, FunctionCall, MessageDelta, ToolCall, ToolCallDelta
    from quire.chat.template import ChatTemplate

# Reading answers needs no Jinja, and rendering no formats.
_MODULES = {
    "AnswerFormat": "answer",
    "AnswerParser": "answer",
    "ChatMessage": "reply",
    "ChatTemplate": "template",
    "FunctionCall": "reply",
    "MessageDelta": "reply",
    "Messages": "messages",
    "ToolCall": "reply",
    "ToolCallDelta": "reply",
    "parse_answer": "answer",
}

__all__ = [
    "AnswerFormat",
    "AnswerParser",
    "ChatMessage",
    "ChatTemplate",
    "FunctionCall",
    "MessageDelta",
    "Messages",
    "ToolCall",
    "ToolCallDelta",
    "parse_answer",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _MODULES)
