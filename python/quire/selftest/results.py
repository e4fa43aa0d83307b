"""Results of comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["CaseResult", "deviation_of", "worst_step"]


@dataclass(frozen=True)
class CaseResult:
    """``deviation``: the norm of the difference divided by the norm of the CPU's result.

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
    """Return the relative deviation; infinite if one has a NaN or another shape."""
    import numpy as np

    if found.shape != expected.shape or not np.isfinite(found).all() or not np.isfinite(expected).all():
        return float("inf")
    norm = float(np.linalg.norm(expected.astype(np.float64)))
    difference = float(np.linalg.norm(found.astype(np.float64) - expected))
    return difference / norm if norm > 0 else (float("inf") if difference > 0 else 0.0)


def worst_step(
    found: Sequence[npt.NDArray[np.float32]], expected: Sequence[npt.NDArray[np.float32]], tolerance: float
) -> tuple[float, str]:
    """Return the largest deviation of any step; steps are compared one by one, so a single bad row is noticed.

    The text names the first place that exceeds the tolerance.
    """
    deviations = [deviation_of(a, b) for a, b in zip(found, expected, strict=True)]
    first = next((i for i, deviation in enumerate(deviations) if not deviation <= tolerance), None)
    if first is None:
        return max(deviations), ""
    sizes = [len(step) for step in expected]
    pairs = zip(found[first], expected[first], strict=False)
    rows = [i for i, (a, b) in enumerate(pairs) if not deviation_of(a, b) <= tolerance]
    where = f"{len(rows)} of {sizes[first]} rows, from row {rows[0] + 1} on" if rows else f"{sizes[first]} rows"
    return max(deviations), f"step {first + 1} of {'+'.join(map(str, sizes))} rows: {where}"
