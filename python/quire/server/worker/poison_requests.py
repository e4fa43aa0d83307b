"""Requests that were under way when a worker ended: one that was there twice is not tried a third time."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from .protocol import SchedulingHints, Work

__all__ = ["PoisonRequests"]

_MOST = 4096
_KEPT_S = 3600.0
_REFUSED_FROM = 2


class PoisonRequests:
    """Counts ends by what was asked, whoever asked and however often."""

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def add(self, works: Iterable[Work]) -> None:
        """These were under way at an end."""
        now = time.monotonic()
        # Several copies of one request count once for each end.
        for name in {_name(work) for work in works}:
            n, _ = self._ends.pop(name, (0, 0.0))
            self._ends[name] = (n + 1, now)
        while len(self._ends) > _MOST:
            self._ends.popitem(last=False)

    def refuses(self, work: Work) -> bool:
        """Whether this was under way at two ends within an hour."""
        if not self._ends:
            return False
        n, at = self._ends.get(_name(work), (0, 0.0))
        return n >= _REFUSED_FROM and time.monotonic() - at < _KEPT_S


def _name(work: Work) -> bytes:
    plain = msgspec.structs.replace(work, id=0, hints=SchedulingHints())
    # As JSON, which has whole numbers of any size.
    return hashlib.blake2b(msgspec.json.encode(plain), digest_size=16).digest()
