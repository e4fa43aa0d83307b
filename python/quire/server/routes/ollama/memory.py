"""The ``context`` of ``/api/generate``: a conversation as numbers, which clients send back with their next prompt.

Ollama's are token ids.  Clients only keep them, so these are the characters of the messages as JSON: the next prompt
goes through the model's template with everything before it, and a long conversation loses its oldest turns first.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...failures import ApiError

__all__ = ["MOST_NUMBERS", "conversation_of", "numbers_of"]

MOST_NUMBERS = 1 << 18


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


def numbers_of(messages: list[dict[str, Any]]) -> list[int]:
    """Encode a conversation as numbers; an empty list if it is too long to send back."""
    text = msgspec.json.encode(messages).decode()
    return [ord(character) for character in text] if len(text) <= MOST_NUMBERS else []


def conversation_of(numbers: list[int]) -> list[dict[str, Any]]:
    """Decode such numbers.  ApiError 400 for numbers from another server."""
    try:
        turns = msgspec.json.decode("".join(map(chr, numbers)).encode(), type=list[_Turn])
    except (ValueError, RecursionError):
        text = "context did not come from this server: send the one of its last answer, or use /api/chat"
        raise ApiError(400, "invalid_value", text, "context") from None
    return [{"role": turn.role, "content": turn.content} for turn in turns]
