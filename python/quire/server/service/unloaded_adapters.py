"""Remember the names of LoRA adapters that clients have unloaded, which their models must not answer for."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["UnloadedAdapters"]

_MOST = 1000


class UnloadedAdapters:
    """Names, oldest first.  Only the last 1000 are kept."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def note(self, before: Collection[str], after: Collection[str]) -> None:
        """Add the names that are gone, and forget those that are there (again)."""
        for name in after:
            self._names.pop(name, None)
        self._names |= dict.fromkeys(name for name in before if name not in after)
        while len(self._names) > _MOST:
            del self._names[next(iter(self._names))]

    def __contains__(self, name: str) -> bool:
        return name in self._names
