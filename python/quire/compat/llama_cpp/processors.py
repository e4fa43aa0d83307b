"""llama-cpp-python's lists of logits processors and stopping criteria."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...params.sampling import LogitsProcessor

    Scores = npt.NDArray[np.float32]
    Processor = Callable[[npt.NDArray[np.intc], Scores], Scores]
    Criterion = Callable[[npt.NDArray[np.intc], Scores], bool]

__all__ = ["LogitsProcessorList", "StoppingCriteriaList", "processors_of"]


class LogitsProcessorList(list[Any]):
    """Functions ``f(input_ids, scores) -> scores``, applied in order."""


class StoppingCriteriaList(list[Any]):
    """Functions ``f(input_ids, scores) -> bool``; the first that returns true ends the answer."""


def processors_of(
    processors: Iterable[Processor] | None, criteria: Iterable[Criterion] | None, ends: Iterable[int]
) -> list[LogitsProcessor]:
    """Return both as logits processors: a criterion that holds allows only the tokens that end an answer."""
    given, stops, ids = list(processors or ()), list(criteria or ()), sorted(ends)
    if not given and not stops:
        return []

    def process(token_ids: Sequence[int], logits: Scores) -> Scores:
        import numpy as np

        read = np.array(token_ids, dtype=np.intc)
        for one in given:
            logits = one(read, logits)
        if any(stop(read, logits) for stop in stops):
            ended = np.full_like(logits, -np.inf)
            ended[ids] = logits[ids]
            return ended if np.isfinite(ended).any() else np.where(np.isin(np.arange(len(logits)), ids), 0.0, ended)
        return logits

    return [process]
