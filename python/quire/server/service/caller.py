"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Caller"]


@dataclass(frozen=True)
class Caller:
    """Who asks: ``name`` in logs and fair shares, ``salt`` of the cached blocks that it shares with itself only."""

    name: str = ""
    salt: bytes = b""
