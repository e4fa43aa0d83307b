"""Requests that were in flight when a worker crashed: after two crashes a request is not tried again."""

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
    """Counts crashes by the content of requests, regardless of the caller."""

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def add(self, works: Iterable[Work]) -> None:
        """Record the requests that were in flight at a crash."""
        now = time.monotonic()
        # Several copies of a request count only once per crash.
        for name in {_name(work) for work in works}:
            n, _ = self._ends.pop(name, (0, 0.0))
            self._ends[name] = (n + 1, now)
        while len(self._ends) > _MOST:
            self._ends.popitem(last=False)

    def refuses(self, work: Work) -> bool:
        """Return True if this request was in flight at two crashes within an hour."""
        if not self._ends:
            return False
        n, at = self._ends.get(_name(work), (0, 0.0))
        return n >= _REFUSED_FROM and time.monotonic() - at < _KEPT_S


def _name(work: Work) -> bytes:
    plain = msgspec.structs.replace(work, id=0, hints=SchedulingHints())
    # Encode as JSON, which has integers of any size.
    return hashlib.blake2b(msgspec.json.encode(plain), digest_size=16).digest()
