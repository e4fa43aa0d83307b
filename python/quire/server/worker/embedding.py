"""The engine's side of a request to embed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...engine.engine import Failure
from ...errors import RequestError
from . import protocol as wire

if TYPE_CHECKING:
    from ..._native.engine import Event

__all__ = ["Embedding", "shaped"]


class Embedding:
    """Turns the events of a request to its one answer."""

    def __init__(self, asked: wire.Embed, n_tokens: int, end: Callable[[int, Sequence[wire.FromEngine]], None]) -> None:
        self._asked = asked
        self._n_tokens = n_tokens
        self._end = end
        self._vector: npt.NDArray[np.float32] | None = None

    def deliver(self, items: Sequence[Event | Failure]) -> None:
        """Take what the engine has for the request."""
        for item in items:
            if isinstance(item, Failure):
                self._fail(type(item.error).__name__, str(item.error))
            elif item.kind == "embedding":
                self._vector = item.embedding
            elif item.kind == "finish":
                self._finish(item)

    def _fail(self, kind: str, message: str) -> None:
        self._end(self._asked.id, [wire.Failed(self._asked.id, kind, message)])

    def _finish(self, event: Event) -> None:
        asked = self._asked
        if self._vector is None:
            self._fail("Lost", "the server must be running until the answer is complete but stops")
            return
        try:
            vector = shaped(self._vector, asked.n_dimensions, asked.norm)
        except RequestError as error:
            self._fail("RequestError", str(error))
            return
        value = {
            "vector": vector.astype("<f4").tobytes(),
            "n_tokens": self._n_tokens,
            "n_cached_tokens": event.n_cached_tokens,
            "seconds": event.timings.prefill_s,
        }
        self._end(asked.id, [wire.Answer(asked.id, value)])


def shaped(vector: npt.NDArray[np.float32], n_dimensions: int | None, norm: int | None) -> npt.NDArray[np.float32]:
    """The first ``n_dimensions`` of a vector, divided by their norm as in ``protocol.Embed``; zeros stay.

    RequestError where there are not so many.
    """
    if n_dimensions is not None and n_dimensions > vector.size:
        raise RequestError(f"[embed] dimensions must be at most {vector.size} but is {n_dimensions}")
    kept = vector[:n_dimensions].astype(np.float64)
    length = 1.0 if norm is None else float(np.linalg.norm(kept, np.inf if norm == 0 else norm))
    return (kept / (length if length > 0 else 1.0)).astype(np.float32)
