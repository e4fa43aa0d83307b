"""Conversations to prompts, and answers to messages.

Chat templates run in a sandbox, user text is kept apart from control tokens; reasoning and tool calls are read from
what a model writes, while it comes.
"""

from quire.chat.answer import AnswerFormat, AnswerParser, parse_answer
from quire.chat.messages import Messages
from quire.chat.reply import ChatMessage, FunctionCall, MessageDelta, ToolCall, ToolCallDelta
from quire.chat.template import ChatTemplate

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
