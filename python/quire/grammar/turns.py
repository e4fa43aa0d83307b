"""Whose grammar is compiled next: callers take turns, and each has its share of the processor's time."""

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
    """Processor time for compiling: ``key_s`` at once for one caller and ``key_share`` of a core from then on;
    ``total_s`` and ``total_share`` for all together.  ``key_waiting``: grammars of one caller that may wait."""

    key_s: float = 4.0
    key_share: float = 0.25
    total_s: float = 8.0
    total_share: float = 0.5
    key_waiting: int = 64


@dataclass
class _Bucket:
    """Seconds that may be used.  What a grammar takes is known afterwards only, so it may be overdrawn."""

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
        """Seconds by the clock until something may be used again."""
        return max(0.0, -self.level_s / self.share)


@dataclass
class _Account:
    """A caller: what it may use, and what waits, the smallest first."""

    bucket: _Bucket
    waiting: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class _Entry(Generic[T]):
    item: T
    key: str | None
    is_free: bool
    added_s: float


class Turns(Generic[T]):
    """Items that wait for their turn.  Not thread-safe.

    Callers take turns, whatever number of items each has; of a caller's items the smallest comes first.  ``clock``:
    seconds that only grow.
    """

    def __init__(self, budget: Budget, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``wait_s``: an item that waits longer is given up."""
        self._budget, self._wait_s, self._clock = budget, wait_s, clock
        self._entries: dict[int, _Entry[T]] = {}
        self._accounts: dict[str | None, _Account] = {}  # those that are served first come first
        self._total = _Bucket(budget.total_s, budget.total_share, budget.total_s, clock())
        self._last = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, item: T, key: str | None, size: int, *, is_free: bool = False) -> None:
        """Have an item wait.  ``key`` None: a caller without a budget; ``is_free``: an item that waits for none.

        BusyError where the caller has used its share, or has too much that waits.
        """
        now = self._clock()
        account = self._account(key, now)
        if key is not None:
            if not is_free and account.bucket.fill(now) <= 0:
                raise self._spent(account)
            if len(account.waiting) >= self._budget.key_waiting:
                text = (
                    f"[grammar] a caller's grammars that wait must be at most {self._budget.key_waiting} but are more"
                )
                raise BusyError(text, 1 + math.ceil(self._wait_s))
        self._last += 1
        self._entries[self._last] = _Entry(item, key, is_free, now)
        heapq.heappush(account.waiting, (-1 if is_free else size, self._last))

    def next(self) -> T | None:
        """The item whose turn it is; None where there is none, or ``pause_s`` says how long all must wait."""
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
            self._accounts[key] = self._accounts.pop(key)  # to the end of the line
            return entry.item
        return None

    @property
    def pause_s(self) -> float:
        """Seconds until the next item may come, where there are some."""
        return self._total.debt_s + 0.01

    def given_up(self) -> list[tuple[T, BusyError]]:
        """Takes out what has waited too long, or whose caller has used its share, with what its caller is told."""
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
        """A caller's grammar took so many seconds of the processor."""
        if key is None:
            return
        now = self._clock()
        for bucket in (self._total, self._account(key, now).bucket):
            bucket.fill(now)
            bucket.level_s -= seconds

    def _spent(self, account: _Account) -> BusyError:
        text = "[grammar] a caller's grammars must compile within its share of time but have taken more"
        return BusyError(text, 1 + math.ceil(account.bucket.debt_s))

    def _account(self, key: str | None, now: float) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            idle = [
                other
                for other, kept in self._accounts.items()
                if not kept.waiting and kept.bucket.fill(now) >= self._budget.key_s
            ]
            for other in idle:  # they are as new ones
                del self._accounts[other]
            bucket = _Bucket(self._budget.key_s, self._budget.key_share, self._budget.key_s, now)
            account = self._accounts[key] = _Account(bucket)
        return account
