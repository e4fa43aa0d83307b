"""A model that is loaded or being loaded."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from ..worker.engine_client import EngineClient

__all__ = ["MakeEngine", "ModelSlot"]


class MakeEngine(Protocol):
    """Creates an engine for a model, given the bytes it may use and its context (None for the default)."""

    def __call__(self, name: str, share_bytes: int, n_ctx: int | None, /) -> EngineClient: ...


@dataclass
class ModelSlot:
    """A model that is loaded or being loaded.

    Attributes:
        share_bytes: Memory that its process may use.
        opener: The caller whose request loaded it; None if the server did.
        n_pins: Requests that use it now.
        keep_s: How long it stays loaded unused; None for the library's default.
        timer: Unloads it then.
        n_ctx: The context that a request asked for.
        n_growing: Requests that wait for a longer context.
    """

    engine: EngineClient
    share_bytes: int
    opener: str | None = None
    opening: asyncio.Task[None] | None = None
    n_pins: int = 0
    used_s: float = field(default_factory=time.monotonic)
    keep_s: float | None = None
    timer: asyncio.TimerHandle | None = None
    n_ctx: int | None = None
    n_growing: int = 0

    @property
    def bytes_now(self) -> int:
        """Memory of the model as measured by its process, or its share until it is loaded."""
        beat = self.engine.beat
        if beat is None or self.opening is not None:
            return self.share_bytes
        return max(self.engine.info.memory_bytes, beat.rss_bytes)

    @property
    def busy(self) -> bool:
        return self.n_pins > 0 or self.engine.n_active > 0 or self.opening is not None
