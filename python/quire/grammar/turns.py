"""Decide which grammar is compiled next: callers take turns, each within a budget of processor time."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..errors import BusyError

__all__ = ["Budget", "Turns"]

T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """Processor time for compiling.

    Attributes:
        key_s: Seconds that one caller may use at once.
        key_share: The share of a core that a caller has from then on.
        total_s: Seconds that all callers together may use at once.
        total_share: The share of a core that all of them have from then on.
        key_waiting: Grammars of one caller that may wait.
    """

    key_s: float = 4.0
    key_share: float = 0.25
    total_s: float = 8.0
    total_share: float = 0.5
    key_waiting: int = 64


@dataclass
class _Bucket:
    """Seconds that may be used.  It may be overdrawn, as the cost of a grammar is known only afterwards."""

    most_s: float
    share: float
    level_s: float
    filled_s: float

    def fill(self, now_s: float) -> float:
        self.level_s = min(self.most_s, self.level_s + (now_s - self.filled_s) * self.share)
        self.filled_s = now_s
        return self.level_s

    @property
    def debt_s(self) -> float:
        """The wall time in seconds until the bucket has something again."""
        return max(0.0, -self.level_s / self.share)


@dataclass
class _Account:
    """A caller's budget and its waiting items, smallest first."""

    bucket: _Bucket
    waiting: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class _Entry(Generic[T]):
    item: T
    key: str | None
    is_free: bool
    added_s: float


class Turns(Generic[T]):
    """A queue in which callers take turns, however many items each has.  Not thread-safe.

    The smallest of a caller's items comes first.  ``clock`` returns monotonic seconds.
    """

    def __init__(self, budget: Budget, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty queue.  Items that wait longer than ``wait_s`` are given up."""
        self._budget, self._wait_s, self._clock = budget, wait_s, clock
        self._entries: dict[int, _Entry[T]] = {}
        self._accounts: dict[str | None, _Account] = {}  # in the order in which they are served
        self._total = _Bucket(budget.total_s, budget.total_share, budget.total_s, clock())
        self._last = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, item: T, key: str | None, size: int, *, is_free: bool = False) -> None:
        """Add an item.

        Args:
            item: The item.
            key: The caller; None for one without a budget.
            size: Smaller items of a caller come first.
            is_free: The item waits for no budget.

        Raises:
            BusyError: The caller has used its share, or has too many items waiting.
        """
        now = self._clock()
        account = self._account(key, now)
        if key is not None:
            if not is_free and account.bucket.fill(now) <= 0:
                raise self._spent(account)
            if len(account.waiting) >= self._budget.key_waiting:
                text = f"[grammar] more than {self._budget.key_waiting} grammars of this caller are waiting"
                raise BusyError(text, 1 + math.ceil(self._wait_s))
        self._last += 1
        self._entries[self._last] = _Entry(item, key, is_free, now)
        heapq.heappush(account.waiting, (-1 if is_free else size, self._last))

    def next(self) -> T | None:
        """Remove and return the next item.  None if there is none, or all have to wait for ``pause_s``."""
        now = self._clock()
        self._total.fill(now)
        for key, account in list(self._accounts.items()):
            if not account.waiting:
                continue
            number = account.waiting[0][1]
            entry = self._entries[number]
            if not entry.is_free and key is not None and self._total.level_s <= 0:
                continue
            heapq.heappop(account.waiting)
            del self._entries[number]
            self._accounts[key] = self._accounts.pop(key)  # to the end of the queue
            return entry.item
        return None

    @property
    def pause_s(self) -> float:
        """Seconds until the next item may be served."""
        return self._total.debt_s + 0.01

    def given_up(self) -> list[tuple[T, BusyError]]:
        """Remove and return items that waited too long or whose caller has used its share, each with its error."""
        now = self._clock()
        found: list[tuple[T, BusyError]] = []
        for account in self._accounts.values():
            spent = account.bucket.fill(now) <= 0
            kept = []
            for size, number in account.waiting:
                entry = self._entries[number]
                if spent and entry.key is not None and not entry.is_free:
                    found.append((entry.item, self._spent(account)))
                elif now - entry.added_s > self._wait_s:
                    text = "[grammar] other grammars are being compiled: try again later"
                    found.append((entry.item, BusyError(text, 1 + math.ceil(self._total.debt_s))))
                else:
                    kept.append((size, number))
                    continue
                del self._entries[number]
            if len(kept) < len(account.waiting):
                heapq.heapify(kept)
                account.waiting = kept
        return found

    def charge(self, key: str | None, seconds: float) -> None:
        """Charge a caller for processor time."""
        if key is None:
            return
        now = self._clock()
        for bucket in (self._total, self._account(key, now).bucket):
            bucket.fill(now)
            bucket.level_s -= seconds

    def _spent(self, account: _Account) -> BusyError:
        text = "[grammar] this caller has used up its share of time for compiling grammars"
        return BusyError(text, 1 + math.ceil(account.bucket.debt_s))

    def _account(self, key: str | None, now: float) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            idle = [
                other
                for other, kept in self._accounts.items()
                if not kept.waiting and kept.bucket.fill(now) >= self._budget.key_s
            ]
            for other in idle:  # no different from new ones
                del self._accounts[other]
            bucket = _Bucket(self._budget.key_s, self._budget.key_share, self._budget.key_s, now)
            account = self._accounts[key] = _Account(bucket)
        return account
