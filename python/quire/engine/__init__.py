"""Running models: the blocking and the async front end over one engine."""

from typing import TYPE_CHECKING

from .config import EngineConfig
from .llm import LLM
from .loader import open_decoder
from .results import Choice, Delta, GenerationResult, Timings, TokenLogprob

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .chat import ChatChoice, ChatDelta, ChatResult

__all__ = [
    "LLM",
    "AsyncLLM",
    "ChatChoice",
    "ChatDelta",
    "ChatResult",
    "Choice",
    "Delta",
    "EngineConfig",
    "GenerationResult",
    "Timings",
    "TokenLogprob",
    "open_decoder",
]


def __getattr__(name: str) -> object:
    # asyncio takes longer to import than all the rest.
    if name == "AsyncLLM":
        from .async_llm import AsyncLLM

        return AsyncLLM
    if name in ("ChatChoice", "ChatDelta", "ChatResult"):
        from . import chat

        value: object = getattr(chat, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
