"""Admission control: queue limits, rate limits per caller, and fair shares."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..failures import ApiError
from .caller import caller_name

if TYPE_CHECKING:
    from ..settings import Settings
    from .caller import Caller

__all__ = ["Admission", "Ticket"]

_MOST_CALLERS = 4096


@dataclass
class _Bucket:
    """A token bucket that holds one minute's worth.  It may be overdrawn by costs unknown in advance."""

    per_minute: float
    level: float
    filled_s: float = field(default_factory=time.monotonic)

    def wait_s(self) -> float:
        """Return the seconds until something may be taken; 0 for now."""
        now = time.monotonic()
        self.level = min(self.per_minute, self.level + (now - self.filled_s) * self.per_minute / 60)
        self.filled_s = now
        return 0.0 if self.level >= 1 else (1 - self.level) * 60 / self.per_minute


@dataclass
class _Account:
    """A caller's requests in flight and remaining rates."""

    requests: _Bucket | None
    tokens: _Bucket | None
    n_active: int = 0
    n_tokens: int = 0


@dataclass
class Ticket:
    """An admitted request.  ``n_tokens`` estimates its prompt and answer tokens until they are known."""

    admission: Admission
    account: _Account
    n_tokens: int = 0
    n_known: int = 0
    n_values: int = 0
    open: bool = True

    def resize(self, n_tokens: int) -> None:
        """Replace the number of tokens."""
        self._add(n_tokens - self.n_tokens)
        self.n_tokens = n_tokens

    def hold(self, n_values: int) -> None:
        """Set the number of body values beyond what is normal.

        They use memory until the end, so they count like tokens.
        """
        self._add(n_values - self.n_values)
        self.n_values = n_values

    def grow(self, n_tokens: int, n_values: int) -> None:
        """Account for a body that is larger than estimated.  ApiError 429 if there is no room for it."""
        more = max(0, n_tokens - self.n_tokens) + max(0, n_values - self.n_values)
        if more and self.admission.n_active > 1:
            self.admission.check_tokens(self.account, more)
        self.resize(max(n_tokens, self.n_tokens))
        self.hold(max(n_values, self.n_values))

    def _add(self, n: int) -> None:
        self.admission.n_tokens += n
        self.account.n_tokens += n

    def know(self, n_tokens: int) -> None:
        """Add the actual tokens of one prompt and its answers, which replace the estimate."""
        self.n_known += n_tokens
        self.resize(self.n_known)

    def charge(self, n_tokens: int) -> None:
        """Charge tokens to the caller's rate."""
        if self.account.tokens is not None:
            self.account.tokens.level -= n_tokens

    def close(self) -> None:
        """Release the request's share.  May be called again."""
        if self.open:
            self.open = False
            self.resize(0)
            self.hold(0)
            self.account.n_active -= 1
            self.admission.n_active -= 1


class Admission:
    """Counts requests in flight.  Rejections are ApiError 429 that tell when to retry."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._accounts: dict[str, _Account] = {}
        self._priorities = {
            caller_name(hashlib.sha256(key.encode()).digest()): most for key, most in settings.key_priorities.items()
        }
        self.n_running = 32
        self.n_active = 0
        self.n_tokens = 0

    @property
    def most(self) -> int:
        """Most requests in flight: running ones and waiting ones."""
        return self.n_running + self._settings.max_queue

    def priority(self, caller: Caller, wanted: int) -> int:
        """Return the priority of a caller's request: the one it asks for, up to the operator's limit."""
        most = self._priorities.get(caller.name, self._settings.max_priority)
        return wanted if most is None else min(wanted, most)

    def enter(self, caller: Caller, n_body_bytes: int) -> Ticket:
        """Admit a request before anything is done for it.  Its tokens are estimated from its size."""
        account = self._account(caller.name)
        for bucket, what in ((account.requests, "requests"), (account.tokens, "tokens")):
            if bucket is not None and (wait_s := bucket.wait_s()) > 0:
                text = f"rate limit reached: {bucket.per_minute:g} {what} per minute"
                raise ApiError(429, "rate_limited", text, retry_after_s=math.ceil(wait_s))
        n_tokens = n_body_bytes // 3
        self._check_share(account, 1, (account.n_active, self.n_active, self.most), "requests")
        if self.n_active:
            self.check_tokens(account, n_tokens)
        if account.requests is not None:
            account.requests.level -= 1
        return self._ticket(account, n_tokens)

    def enter_anyway(self, caller: Caller, n_body_bytes: int) -> Ticket:
        """Admit a request that others may be waiting for, such as the end of a pause."""
        return self._ticket(self._account(caller.name), n_body_bytes // 3)

    def _ticket(self, account: _Account, n_tokens: int) -> Ticket:
        account.n_active += 1
        self.n_active += 1
        ticket = Ticket(self, account)
        ticket.resize(n_tokens)
        return ticket

    def check_tokens(self, account: _Account, n: int) -> None:
        """Raise ApiError 429 if ``n`` more tokens do not fit.  A request larger than the queue may run alone."""
        self._check_share(account, n, (account.n_tokens, self.n_tokens, self._settings.max_queue_tokens), "tokens")

    def _check_share(self, account: _Account, n: int, figures: tuple[int, int, int], what: str) -> None:
        """Raise ApiError 429 if ``n`` more do not fit.  ``figures``: the caller's number, the total, and the limit.

        Up to half of the limit anybody may take any amount; beyond that everybody has an equal share.  Nobody can use
        up another caller's share: a caller within its share is admitted even above the limit.
        """
        n_own, n_all, most = figures
        n_callers = sum(1 for other in self._accounts.values() if other.n_active) + (account.n_active == 0)
        if n_callers > 1 and n_own + n <= max(1, most // n_callers):
            return
        if n_all + n > most:
            text = f"the queue is full: the limit is {most} {what} in flight"
            raise ApiError(429, "queue_full", text, retry_after_s=self._retry_s())
        if n_callers > 1 and n_all + n > most // 2:
            text = f"the queue is busy and this caller has its fair share of {what} in flight"
            raise ApiError(429, "fair_share", text, retry_after_s=self._retry_s())

    def _retry_s(self) -> int:
        """Estimate when to retry: the longer the queue, the later."""
        return 1 + self.n_active // max(self.n_running, 1) // 2

    def _account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= _MOST_CALLERS:
                self._accounts = {key: kept for key, kept in self._accounts.items() if kept.n_active}
            requests, tokens = self._settings.rate_requests_per_minute, self._settings.rate_tokens_per_minute
            account = self._accounts[name] = _Account(
                None if requests is None else _Bucket(requests, requests),
                None if tokens is None else _Bucket(tokens, tokens),
            )
        return account
