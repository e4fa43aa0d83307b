"""Recent speed of the server, for display."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Recent"]

_WINDOW_S = 30.0
_SPAN_S, _MOST_SPANS = 10, 60


@dataclass
class _Span:
    """Ten seconds of history: tokens, times to the first token, and the most requests in flight."""

    number: int
    n_tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    most_requests: int = 0


@dataclass
class Recent:
    """Tokens per second and times to the first token over the last half minute, and ten minutes of history.

    ``clock`` returns monotonic seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _tokens: deque[tuple[float, int]] = field(default_factory=deque)
    _first_s: deque[tuple[float, float]] = field(default_factory=deque)
    _spans: deque[_Span] = field(default_factory=deque)

    def add_tokens(self, n: int) -> None:
        """Record generated tokens."""
        now = self.clock()
        self._span(now).n_tokens += n
        if self._tokens and now - self._tokens[-1][0] < 0.1:
            at, before = self._tokens.pop()
            self._tokens.append((at, before + n))
        else:
            self._tokens.append((now, n))
        self._forget(now)

    def add_first_token(self, seconds: float) -> None:
        """Record a request's time to its first token."""
        now = self.clock()
        self._span(now).first_token_s.append(seconds)
        self._first_s.append((now, seconds))

    def add_requests(self, n: int) -> None:
        """Record the number of requests in flight when a new one arrives."""
        span = self._span(self.clock())
        span.most_requests = max(span.most_requests, n)

    def figures(self) -> dict[str, float | None]:
        """Return ``tokens_per_second`` over the time with tokens, and the median ``time_to_first_token_s``."""
        now = self.clock()
        self._forget(now)
        span_s = min(_WINDOW_S, now - self._tokens[0][0]) if self._tokens else 0.0
        total = sum(n for _, n in self._tokens)
        return {
            "tokens_per_second": round(total / max(span_s, 1.0), 2),
            "time_to_first_token_s": _median([seconds for _, seconds in self._first_s]),
        }

    def history(self) -> list[dict[str, float | None]]:
        """Return the spans of ten seconds with activity, oldest first, with how long ago each began."""
        now = self.clock()
        oldest = int(now // _SPAN_S) - _MOST_SPANS
        return [
            {
                "seconds_ago": round(now - span.number * _SPAN_S, 1),
                "tokens_per_second": round(span.n_tokens / _SPAN_S, 2),
                "time_to_first_token_s": _median(span.first_token_s),
                "requests": span.most_requests,
            }
            for span in self._spans
            if span.number > oldest
        ]

    def _span(self, now: float) -> _Span:
        number = int(now // _SPAN_S)
        if not self._spans or self._spans[-1].number != number:
            self._spans.append(_Span(number))
            while self._spans[0].number <= number - _MOST_SPANS:
                self._spans.popleft()
        return self._spans[-1]

    def _forget(self, now: float) -> None:
        for kept in (self._tokens, self._first_s):
            while kept and now - kept[0][0] > _WINDOW_S:
                kept.popleft()


def _median(values: list[float]) -> float | None:
    return round(sorted(values)[len(values) // 2], 4) if values else None
