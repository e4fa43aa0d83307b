"""Collectors for requests that give numbers instead of text: embeddings, hidden states, scores and logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..._native.engine import Event

__all__ = ["LogitRows", "Vectors", "normalized", "stacked"]


class Vectors:
    """Takes the events of one request to embed."""

    def __init__(self) -> None:
        self.vector: npt.NDArray[np.float32] | None = None
        self.complete = False

    def add(self, event: Event) -> None:
        """Take an event of kind ``"embedding"`` or ``"finish"``."""
        if event.kind == "embedding":
            self.vector = event.embedding
        self.complete = self.complete or event.kind == "finish"


class LogitRows:
    """Takes the events of one request for the logits of its prompt."""

    def __init__(self) -> None:
        self._rows: list[npt.NDArray[np.float32]] = []
        self.complete = False

    def add(self, event: Event) -> None:
        """Take an event, which may bring rows of logits."""
        if event.logits is not None:
            self._rows.append(event.logits)
        self.complete = self.complete or event.kind == "finish"

    def joined(self, n_vocab: int) -> npt.NDArray[np.float32]:
        """Return all rows as ``[n_tokens, n_vocab]``."""
        import numpy as np

        return np.concatenate(self._rows).reshape(-1, n_vocab)


def stacked(vectors: Sequence[Vectors], place: str) -> npt.NDArray[np.float32]:
    """Return the vectors of several requests as one array.  RequestError if there are none."""
    import numpy as np

    if not vectors:
        raise RequestError(f"[{place}] no prompts: give one or more")
    result: npt.NDArray[np.float32] = np.stack([item.vector for item in vectors if item.vector is not None])
    return result


def normalized(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return vectors ``[..., n]`` scaled to length 1; zeros stay."""
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
