"""How long a request may wait, and take."""

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
    """Moments of the monotonic clock, in seconds: until when a request must have left the queue, must show its first
    token, and must be complete."""

    admitted_s: float = math.inf
    first_token_s: float = math.inf
    complete_s: float = math.inf

    @classmethod
    def of(cls, settings: Settings, body: TimedBody | None, arrived_s: float) -> TimeLimits:
        """Those of the server, or the body's own where they are shorter."""

        def moment(own: float | None, asked: float | None) -> float:
            return arrived_s + min((s for s in (own, asked) if s is not None), default=math.inf)

        return cls(
            moment(settings.queue_timeout_s, body.queue_timeout_s if body else None),
            moment(settings.first_token_timeout_s, body.first_token_timeout_s if body else None),
            moment(settings.request_timeout_s, body.request_timeout_s if body else None),
        )

    def without_queue(self) -> TimeLimits:
        """What still holds of a request that runs."""
        return replace(self, admitted_s=math.inf)

    def without_first_token(self) -> TimeLimits:
        """What still holds of a request that has begun to answer; these same limits from its second token on."""
        if self.admitted_s == self.first_token_s == math.inf:
            return self
        return TimeLimits(complete_s=self.complete_s)

    @property
    def next_s(self) -> float:
        """The first of the moments."""
        return min(self.admitted_s, self.first_token_s, self.complete_s)

    def passed(self) -> ApiError:
        """The failure of a request for which the first of the moments is over."""
        if self.next_s == self.complete_s:
            return ApiError(504, "timeout", "the answer must be complete within the time limit but is not")
        if self.next_s == self.first_token_s:
            text = "the first token must come within the time limit but does not"
            return ApiError(504, "first_token_timeout", text)
        text = "a request must leave the queue within the time limit but waits still: come again"
        return ApiError(503, "queue_timeout", text, retry_after_s=1)
