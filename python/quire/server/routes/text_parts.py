"""Message content made of several texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..body_types import MEDIA

__all__ = ["Shown", "content_of", "image_part", "is_media", "is_prefill", "without_billing_line"]

_FILES = ("image", "document", "file", "input_file", "computer_screenshot", "container_upload")

# Claude Code puts this line before its instructions, for Anthropic's own servers.  It changes with each request and
# would prevent every hit in the prefix cache.
_BILLING = "x-anthropic-billing-header:"


Shown: TypeAlias = "str | dict[str, Any]"
"""Something that a message shows to the model: a text, or an image as a part of content."""


def content_of(shown: Sequence[Shown]) -> str | list[dict[str, Any]]:
    """Return content: a single text as it is, several items as parts, which some templates join in their own way."""
    if len(shown) < 2 and all(isinstance(item, str) for item in shown):
        return str(shown[0]) if shown else ""
    return [{"type": "text", "text": item} if isinstance(item, str) else item for item in shown]


def image_part(url: str) -> dict[str, Any]:
    """Return an image as the chat API has it; the model's worker decodes it."""
    return {"type": "image_url", "image_url": {"url": url}}


def is_media(kind: str) -> bool:
    """Return True if a part of this type is essential to its message, so that it is rejected if unreadable."""
    return kind in MEDIA or kind in _FILES


def is_prefill(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a conversation ends with the beginning of the answer: plain text of the assistant."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return False
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return isinstance(content, str) and bool(content.strip())


def without_billing_line(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages without billing lines at the start of system texts; the same list if there are none."""
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
