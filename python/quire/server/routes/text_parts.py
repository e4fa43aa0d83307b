"""Content of several texts, as templates take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..body_types import MEDIA

__all__ = ["content_of", "is_media", "is_prefill"]

_FILES = ("image", "document", "file", "input_file", "computer_screenshot", "container_upload")


def content_of(texts: list[str]) -> str | list[dict[str, Any]]:
    """Several texts are parts, which some templates join in a way of their own; one is the same as the text alone."""
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": text} for text in texts]


def is_media(kind: str) -> bool:
    """Whether a part of this type is what a message is about, so that it is refused where it cannot be read."""
    return kind in MEDIA or kind in _FILES


def is_prefill(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation ends with the beginning of the answer: text of the assistant alone."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return False
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return isinstance(content, str) and bool(content.strip())
