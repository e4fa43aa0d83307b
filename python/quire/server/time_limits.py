"""The time limits of a request."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .failures import ApiError

if TYPE_CHECKING:
    from .body_types import TimedBody
    from .settings import Settings

__all__ = ["TimeLimits"]


@dataclass(frozen=True)
class TimeLimits:
    """Deadlines on the monotonic clock, in seconds: to leave the queue, to produce the first token, to be complete."""

    admitted_s: float = math.inf
    first_token_s: float = math.inf
    complete_s: float = math.inf

    @classmethod
    def of(cls, settings: Settings, body: TimedBody | None, arrived_s: float) -> TimeLimits:
        """Combine the server's limits with shorter ones in the body."""

        def moment(own: float | None, asked: float | None) -> float:
            return arrived_s + min((s for s in (own, asked) if s is not None), default=math.inf)

        return cls(
            moment(settings.queue_timeout_s, body.queue_timeout_s if body else None),
            moment(settings.first_token_timeout_s, body.first_token_timeout_s if body else None),
            moment(settings.request_timeout_s, body.request_timeout_s if body else None),
        )

    def without_queue(self) -> TimeLimits:
        """Return the limits that remain once the request runs."""
        return replace(self, admitted_s=math.inf)

    def without_first_token(self) -> TimeLimits:
        """Return the limits that remain once the first token is there."""
        if self.admitted_s == self.first_token_s == math.inf:
            return self
        return TimeLimits(complete_s=self.complete_s)

    @property
    def next_s(self) -> float:
        """The earliest deadline."""
        return min(self.admitted_s, self.first_token_s, self.complete_s)

    def passed(self) -> ApiError:
        """Return the error for the earliest deadline."""
        if self.next_s == self.complete_s:
            return ApiError(504, "timeout", "the answer was not complete within the time limit")
        if self.next_s == self.first_token_s:
            text = "the first token did not come within the time limit"
            return ApiError(504, "first_token_timeout", text)
        text = "the request was still queued at its time limit: try again"
        return ApiError(503, "queue_timeout", text, retry_after_s=1)
