"""Running models: the blocking and the async front end over one engine.

Names are imported when first used: asyncio takes longer to import than all the rest, and who reads a file's keys needs
no front end.
"""

import importlib
from typing import TYPE_CHECKING

from .config import EngineConfig

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .chat import ChatChoice, ChatDelta, ChatResult
    from .llm import LLM
    from .loader import open_decoder
    from .results import Choice, Delta, GenerationResult, Timings, TokenLogprob

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

_WHERE = {
    "AsyncLLM": "async_llm",
    "ChatChoice": "chat",
    "ChatDelta": "chat",
    "ChatResult": "chat",
    "Choice": "results",
    "Delta": "results",
    "GenerationResult": "results",
    "LLM": "llm",
    "Timings": "results",
    "TokenLogprob": "results",
    "open_decoder": "loader",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
