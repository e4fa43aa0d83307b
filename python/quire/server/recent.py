"""Speed over the last seconds, for people who look at the server."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Recent"]

_WINDOW_S = 30.0


@dataclass
class Recent:
    """Tokens a second, and times to the first token, of the last half minute."""

    _tokens: deque[tuple[float, int]] = field(default_factory=deque)
    _first_s: deque[tuple[float, float]] = field(default_factory=deque)

    def add_tokens(self, n: int) -> None:
        """So many tokens came."""
        now = time.monotonic()
        if self._tokens and now - self._tokens[-1][0] < 0.1:
            at, before = self._tokens.pop()
            self._tokens.append((at, before + n))
        else:
            self._tokens.append((now, n))
        self._forget(now)

    def add_first_token(self, seconds: float) -> None:
        """A request got its first token."""
        self._first_s.append((time.monotonic(), seconds))

    def figures(self) -> dict[str, float | None]:
        """``tokens_per_second`` over the time in which tokens came, ``time_to_first_token_s`` (the median)."""
        now = time.monotonic()
        self._forget(now)
        span_s = min(_WINDOW_S, now - self._tokens[0][0]) if self._tokens else 0.0
        total = sum(n for _, n in self._tokens)
        firsts = sorted(seconds for _, seconds in self._first_s)
        return {
            "tokens_per_second": round(total / max(span_s, 1.0), 2),
            "time_to_first_token_s": round(firsts[len(firsts) // 2], 4) if firsts else None,
        }

    def _forget(self, now: float) -> None:
        for kept in (self._tokens, self._first_s):
            while kept and now - kept[0][0] > _WINDOW_S:
                kept.popleft()
