"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Caller", "caller_name"]


def caller_name(digest: bytes) -> str:
    """The name of the caller with the key of this SHA-256 digest."""
    return f"key-{digest.hex()[:8]}"


@dataclass(frozen=True)
class Caller:
    """Who asks: ``name`` in logs and fair shares, ``salt`` of the cached blocks that it shares with itself only."""

    name: str = ""
    salt: bytes = b""
