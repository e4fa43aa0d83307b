"""Turn conversations into prompts, and answers into messages.

Chat templates run in a sandbox, and user text never becomes control tokens.  Reasoning and tool calls are parsed while
the answer arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from quire.chat.answer import AnswerFormat, AnswerParser, parse_answer
    from quire.chat.messages import Messages
    from quire.chat.reply import ChatMessage, FunctionCall, MessageDelta, ToolCall, ToolCallDelta
    from quire.chat.template import ChatTemplate

# Parsing answers needs no Jinja, and rendering needs no formats.
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
