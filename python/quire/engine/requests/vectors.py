"""Collectors for requests that give numbers instead of text: embeddings, hidden states, scores and logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ...errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..._native.engine import Event

__all__ = ["PRECISIONS", "LogitRows", "Precision", "Vectors", "cut", "normalized", "quantize_embeddings", "stacked"]


Precision: TypeAlias = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


class Vectors:
    """Takes the events of one request to embed."""

    def __init__(self, vector: npt.NDArray[np.float32] | None = None) -> None:
        self.vector = vector
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


def cut(vectors: npt.NDArray[np.float32], dimensions: int | None) -> npt.NDArray[np.float32]:
    """Return the first ``dimensions`` of vectors ``[..., n]`` (Kusupati et al. 2022).  RequestError for too many."""
    if dimensions is None:
        return vectors
    size = vectors.shape[-1]
    if not isinstance(dimensions, int) or not 1 <= dimensions <= size:
        raise RequestError(f"[embed] dimensions {dimensions!r:.40} is out of range: expected 1 to the model's {size}")
    return vectors[..., :dimensions]


def quantize_embeddings(vectors: npt.ArrayLike, precision: Precision = "int8") -> npt.NDArray[Any]:
    """Return vectors ``[..., n]`` in fewer bits.

    Args:
        vectors: Embeddings.
        precision: ``"int8"`` scales each vector so that its largest number is 127 or -127, which keeps cosine
            similarities.  ``"uint8"`` is the same with 128 added.  ``"ubinary"`` packs the signs, 8 in a byte, the
            first in the highest bit; 1 is positive.  ``"binary"`` is the same with 128 subtracted.  ``"float32"``
            changes nothing.

    Returns:
        An array of that type; for signs ``[..., n / 8]``, rounded up, as int8 or uint8.

    Raises:
        RequestError: The precision is unknown.
    """
    import numpy as np

    given = np.asarray(vectors, np.float32)
    if precision not in PRECISIONS:
        raise RequestError(f"[embed] precision {precision!r:.40} is unknown: expected {', '.join(PRECISIONS)}")
    if precision == "float32":
        return given
    if precision in ("binary", "ubinary"):
        packed = np.packbits(given > 0, axis=-1)
        return packed if precision == "ubinary" else (packed ^ 0x80).view(np.int8)
    largest = np.abs(given).max(axis=-1, keepdims=True, initial=0)
    scaled = np.rint(given * (127 / np.where(largest > 0, largest, 1))).astype(np.int8)
    return scaled if precision == "int8" else (scaled.view(np.uint8) ^ 0x80)
