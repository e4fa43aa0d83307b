"""Running models: the blocking and the async front end over one engine.

Names are imported when first used: asyncio takes longer to import than all the rest, and reading the keys of a file
needs no front end.
"""

from typing import TYPE_CHECKING

from ..params.engine_options import EngineConfig
from ..runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .llm import LLM
    from .loading.loader import open_decoder
    from .requests.chat import ChatChoice, ChatDelta, ChatResult
    from .requests.results import Choice, Delta, GenerationResult, Timings, TokenLogprob
    from .requests.tool_turn import RunResult
    from .requests.transcripts import Segment, Transcript
    from .sessions import AsyncSession, Session

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncSession",
    "ChatChoice",
    "ChatDelta",
    "ChatResult",
    "Choice",
    "Delta",
    "EngineConfig",
    "GenerationResult",
    "RunResult",
    "Segment",
    "Session",
    "Timings",
    "TokenLogprob",
    "Transcript",
    "open_decoder",
]

_MODULES = {
    "AsyncLLM": "async_llm",
    "AsyncSession": "sessions",
    "ChatChoice": "requests.chat",
    "ChatDelta": "requests.chat",
    "ChatResult": "requests.chat",
    "Choice": "requests.results",
    "Delta": "requests.results",
    "GenerationResult": "requests.results",
    "LLM": "llm",
    "Segment": "requests.transcripts",
    "Session": "sessions",
    "RunResult": "requests.tool_turn",
    "Timings": "requests.results",
    "TokenLogprob": "requests.results",
    "Transcript": "requests.transcripts",
    "open_decoder": "loading.loader",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _MODULES)
