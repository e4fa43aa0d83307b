"""What a comparison found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["CaseResult", "deviation_of"]


@dataclass(frozen=True)
class CaseResult:
    """``deviation``: the norm of the difference by the norm of what the CPU gives.

    ``state``: ``"unsupported"`` where the device does not have an operation, which is no failure; ``"died"`` where the
    process ended, or did not go on.
    """

    name: str
    state: Literal["agrees", "differs", "unsupported", "error", "died"]
    tolerance: float
    deviation: float | None = None
    reason: str = ""

    @property
    def passed(self) -> bool:
        return self.state in ("agrees", "unsupported")


def deviation_of(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """Infinite where one has a number that is none, or another shape."""
    import numpy as np

    if found.shape != expected.shape or not np.isfinite(found).all() or not np.isfinite(expected).all():
        return float("inf")
    norm = float(np.linalg.norm(expected.astype(np.float64)))
    difference = float(np.linalg.norm(found.astype(np.float64) - expected))
    return difference / norm if norm > 0 else (float("inf") if difference > 0 else 0.0)
