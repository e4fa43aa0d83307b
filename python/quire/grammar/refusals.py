"""Remember refused grammars, so that sending one again costs nothing."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import RequestError, UnsupportedError

__all__ = ["Refusal", "Refusals"]

Refusal = RequestError | UnsupportedError


@dataclass(frozen=True)
class _Refused:
    error: Refusal
    until_s: float


class Refusals:
    """Errors by the digest of a grammar: the last ``most`` of them, each for ``keep_s``.

    They expire because a grammar may pass on a quieter machine.
    """

    def __init__(self, most: int, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._keep_s, self._clock = most, keep_s, clock
        self._refused: OrderedDict[bytes, _Refused] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    def add(self, digest: bytes, error: Refusal) -> None:
        """Remember a refused grammar."""
        self._refused[digest] = _Refused(error, self._clock() + self._keep_s)
        self._refused.move_to_end(digest)
        if len(self._refused) > self._most:
            self._refused.popitem(last=False)

    def of(self, digest: bytes) -> Refusal | None:
        """Return a new error like the one before, or None if the grammar was not refused."""
        found = self._refused.get(digest)
        if found is None:
            return None
        if found.until_s <= self._clock():
            del self._refused[digest]
            return None
        self._refused.move_to_end(digest)
        return type(found.error)(str(found.error))
