"""vLLM's prompts: texts, or dictionaries of token ids or of a text, with images and sounds as multi_modal_data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from ...errors import RequestError, UnsupportedError

if TYPE_CHECKING:
    from ...engine.requests.prompts import Prompt

__all__ = ["Given", "TextPrompt", "TokensPrompt", "prompts_of"]


class TextPrompt(TypedDict):
    """A text."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids."""

    prompt_token_ids: list[int]


Given: TypeAlias = "str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]"


def prompts_of(given: Given | Sequence[Given]) -> list[Prompt]:
    """Convert prompts to those of ``quire.LLM``."""
    items: list[Any] = [given] if isinstance(given, str | Mapping) else list(given)
    if items and all(isinstance(item, int) for item in items):
        items = [items]
    return [_one(item) for item in items]


def _one(item: Any) -> Prompt:
    if isinstance(item, str):
        return item
    if not isinstance(item, Mapping):
        return list(item)
    for name in item:
        if name not in ("prompt", "prompt_token_ids", "multi_modal_data"):
            raise UnsupportedError(
                f"[vllm.LLM] unsupported key {name!r:.80} in a prompt: give prompt or prompt_token_ids"
            )
    ids = item.get("prompt_token_ids")
    if item.get("multi_modal_data"):
        if ids is not None:
            raise UnsupportedError("[vllm.LLM] multi_modal_data needs prompt, not prompt_token_ids")
        return dict(item)
    if ids is not None:
        return list(ids)
    text = item.get("prompt")
    if not isinstance(text, str):
        raise RequestError("[vllm.LLM] a prompt has neither prompt nor prompt_token_ids")
    return text
