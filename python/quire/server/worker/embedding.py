"""The worker's side of requests to embed and to score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ...engine.engine import Failure
from ...errors import RequestError
from . import protocol as wire

if TYPE_CHECKING:
    from ..._native.engine import Event

__all__ = ["Array", "End", "Scoring", "shaped"]


End: TypeAlias = Callable[[int, Sequence[wire.FromEngine]], None]
Array: TypeAlias = npt.NDArray[np.float32]


class _OneAnswer(ABC):
    """Turns the events of a request for a vector into its single answer."""

    def __init__(self, id_: int, n_tokens: int, end: End) -> None:
        self._id, self._n_tokens, self._end = id_, n_tokens, end
        self._vector: Array | None = None

    def deliver(self, items: Sequence[Event | Failure]) -> None:
        """Handle events of the request."""
        for item in items:
            if isinstance(item, Failure):
                self._fail(type(item.error).__name__, str(item.error))
            elif item.kind == "embedding":
                self._vector = item.embedding
            elif item.kind == "finish":
                self._finish(item)

    @abstractmethod
    def values(self, vector: Array) -> dict[str, object]:
        """Return the answer's values for a vector.  RequestError if it cannot be computed."""

    def _fail(self, kind: str, message: str) -> None:
        self._end(self._id, [wire.Failed(self._id, kind, message)])

    def _finish(self, event: Event) -> None:
        if self._vector is None:
            self._fail("Lost", "the server shut down before the answer was complete")
            return
        try:
            values = self.values(self._vector)
        except RequestError as error:
            self._fail("RequestError", str(error))
            return
        counts = {
            "n_tokens": self._n_tokens,
            "n_cached_tokens": event.n_cached_tokens,
            "seconds": event.timings.prefill_s,
        }
        self._end(self._id, [wire.Answer(self._id, {**values, **counts})])


class Scoring(_OneAnswer):
    """The answer to a request for vectors or scores; ``values_of`` computes it from a vector."""

    def __init__(self, id_: int, n_tokens: int, end: End, values_of: Callable[[Array], dict[str, object]]) -> None:
        super().__init__(id_, n_tokens, end)
        self._values_of = values_of

    def values(self, vector: Array) -> dict[str, object]:
        return self._values_of(vector)


def shaped(vector: npt.NDArray[np.float32], n_dimensions: int | None, norm: int | None) -> npt.NDArray[np.float32]:
    """Return the first ``n_dimensions`` of a vector, or of each row, divided by their norm as in ``protocol.Embed``.

    Zero vectors stay zero.  RequestError if there are not that many dimensions.
    """
    size = vector.shape[-1]
    if n_dimensions is not None and n_dimensions > size:
        raise RequestError(f"[embed] dimensions {n_dimensions} exceeds the model's {size}")
    kept = vector[..., :n_dimensions].astype(np.float64)
    if norm is None:
        return kept.astype(np.float32)
    lengths = np.linalg.norm(kept, np.inf if norm == 0 else norm, axis=-1, keepdims=True)
    return (kept / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
