"""Tell what a message needs: media that are encoded, a form that is compiled, a prompt that is cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...engine.requests.media import has_media
from ...engine.requests.truncation import cut_ids
from . import protocol as wire

if TYPE_CHECKING:
    from ...engine.engine import EngineRequest

__all__ = ["cut_prompt", "message_has_form", "message_has_media"]


def cut_prompt(request: EngineRequest, asked: wire.Generate) -> tuple[EngineRequest, tuple[str, ...]]:
    """Cut a request to its limit of prompt tokens; also return a note about what was left out."""
    n_most, n = asked.max_prompt_tokens, len(request.token_ids)
    if n_most is None or n <= n_most or request.media is not None:
        return request, ()
    ids = cut_ids(request.token_ids, n_most, asked.keep_tokens)
    return replace(request, token_ids=ids), (f"{n - n_most} tokens of the prompt",)


def message_has_media(message: wire.Work) -> bool:
    """Return True if the request has images or sounds."""
    if isinstance(message, wire.Chat):
        return has_media(message.messages)
    if isinstance(message, wire.Transcribe):
        return True
    if isinstance(message, wire.Embed):
        return has_media(message.messages)
    if isinstance(message, wire.Score):
        return has_media([*message.messages, *message.second_messages])
    return isinstance(message, wire.Generate) and bool(message.media)


def message_has_form(message: wire.Work) -> bool:
    """Return True if the answer may have a form that must be compiled."""
    if isinstance(message, wire.Chat):
        return bool(message.options.get("tools")) or "structured_outputs" in message.params
    return isinstance(message, wire.Generate) and "structured_outputs" in message.params
