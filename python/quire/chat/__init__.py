"""Conversations to prompts: chat templates in a sandbox, user text kept apart from control tokens."""

from quire.chat.messages import Messages
from quire.chat.template import ChatTemplate

__all__ = ["ChatTemplate", "Messages"]
