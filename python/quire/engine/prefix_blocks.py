"""Prefixes of an engine's cache: in files, and as blocks that servers exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Engine, EngineRequest

__all__ = ["PrefixBlocks"]


class PrefixBlocks:
    """The entries of a model's tiers: blocks and snapshots, by name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find_missing(self, request: EngineRequest, held: Sequence[str] | None = None) -> tuple[int, list[str]]:
        """Return how many tokens of a prompt a peer could save, and the entries to ask it for: see ``Decoder``."""
        made = self._engine.native_request(request)
        return self._engine.decoder().find_missing(made, held)

    def check_header(self, header: bytes) -> None:
        """Raise LoadError unless an entry of this model and of its size has this header."""
        self._engine.decoder().keep_record(header)

    def keep_record(self, record: bytes) -> bool:
        """Keep an entry that a peer sent; False: there is no room for now.  LoadError if it is damaged."""
        return self._engine.decoder().keep_record(record)

    def cache_identity(self) -> str:
        """Return the name of the folder of the cache's entries on disk."""
        return self._engine.decoder().cache_identity

    def n_unwritten_bytes(self) -> int:
        """Return the bytes of the cache that wait to be written to disk."""
        tiers = self._engine.stats().tiers
        return 0 if tiers is None else tiers.queued_bytes

    def compute_tokens_per_s(self) -> float:
        """Return how fast prompts are computed; 0 while that is unknown."""
        tiers = self._engine.stats().tiers
        return 0.0 if tiers is None else tiers.compute_tokens_per_s
