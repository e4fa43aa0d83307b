"""Content of several texts, as templates take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..body_types import MEDIA

__all__ = ["content_of", "is_media", "is_prefill", "without_billing_line"]

_FILES = ("image", "document", "file", "input_file", "computer_screenshot", "container_upload")

# The line that Claude Code puts before its instructions, for Anthropic's own servers.  It changes with each request, so
# that no prompt would begin like the one before.
_BILLING = "x-anthropic-billing-header:"


def content_of(texts: list[str]) -> str | list[dict[str, Any]]:
    """Return texts as content: a single one as it is, several as parts, which some templates join in their own way."""
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": text} for text in texts]


def is_media(kind: str) -> bool:
    """Return whether a part of this type is essential to its message, so that it is refused if unreadable."""
    return kind in MEDIA or kind in _FILES


def is_prefill(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a conversation ends with the beginning of the answer: plain text of the assistant."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return False
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return isinstance(content, str) and bool(content.strip())


def without_billing_line(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without a billing line at the head of system texts; the same list if there is none."""
    made = [_without_line(message) if message.get("role") == "system" else message for message in messages]
    if all(a is b for a, b in zip(made, messages, strict=True)):
        return messages
    return [message for message in made if message is not None]


def _without_line(message: dict[str, Any]) -> dict[str, Any] | None:
    content = message.get("content")
    if isinstance(content, str) and content.startswith(_BILLING):
        rest = _rest(content)
        return {**message, "content": rest} if rest else None
    if not isinstance(content, list) or not any(map(_is_billing, content)):
        return message
    parts = [{**part, "text": _rest(part["text"])} if _is_billing(part) else part for part in content]
    parts = [part for part in parts if not isinstance(part, dict) or part.get("text") != ""]
    return {**message, "content": parts[0]["text"] if len(parts) == 1 else parts} if parts else None


def _is_billing(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str) and part["text"].startswith(_BILLING)


def _rest(text: str) -> str:
    return text.partition("\n")[2].lstrip("\n")
