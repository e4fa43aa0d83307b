"""The identity of a request's caller."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Caller", "caller_name"]


def caller_name(digest: bytes) -> str:
    """Return the name of the caller whose key has this SHA-256 digest."""
    return f"key-{digest.hex()[:8]}"


@dataclass(frozen=True)
class Caller:
    """A caller: ``name`` for logs and fair shares, ``salt`` for cached blocks, which callers never share."""

    name: str = ""
    salt: bytes = b""
