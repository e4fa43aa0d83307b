"""A model that is open, or is being opened."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from ..worker.engine_client import EngineClient

__all__ = ["MakeEngine", "ModelSlot"]


class MakeEngine(Protocol):
    """Makes an engine for a model, with the bytes that it may take and (where it is not the usual one) its context."""

    def __call__(self, name: str, share_bytes: int, n_ctx: int | None, /) -> EngineClient: ...


@dataclass
class ModelSlot:
    """An open model, or one that is being opened.

    ``share_bytes``: what its process may take.  ``n_pins``: requests that use it now.  ``keep_s``: how long it stays
    open unused (None: as long as the library has it), ``timer``: what closes it then.
    ``n_ctx``: the context that a request asked for; ``n_growing``: requests that wait for a longer one.
    ``opener``: the caller whose request opened it; None where the server did.
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
        """The bytes that the model may take: as measured by its process, or its share until it is open."""
        beat = self.engine.beat
        if beat is None or self.opening is not None:
            return self.share_bytes
        return max(self.engine.info.memory_bytes, beat.rss_bytes)

    @property
    def busy(self) -> bool:
        return self.n_pins > 0 or self.engine.n_active > 0 or self.opening is not None
