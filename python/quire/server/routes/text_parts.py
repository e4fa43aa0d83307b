"""Content of several texts, as templates take it."""

from __future__ import annotations

from typing import Any

__all__ = ["content_of"]


def content_of(texts: list[str]) -> str | list[dict[str, Any]]:
    """Several texts are parts, which some templates join in a way of their own; one is the same as the text alone."""
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": text} for text in texts]
