"""Log-probabilities of an unquantized model over a text, in llama-perplexity's file format.

The file starts with ``_logits_``, then as int32 the tokens per chunk, the size of the vocabulary, the number of chunks,
and the tokens of all chunks.  For each token in the second half of a chunk, except the last, it has a scale and the
lowest log-probability as float32, then a uint16 code per token of the vocabulary (padded to an even number).
Log-probabilities more than 16 below the highest are stored as the lowest.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ..errors import LoadError
from ..files.whole_file import WholeFile
from .losses import log_probs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

__all__ = ["BaseReader", "BaseWriter"]

_MAGIC = b"_logits_"
_MOST_CODE, _RANGE = 65535, 16.0
_MOST_TOKENS, _MOST_VOCABULARY, _MOST_CHUNKS = 1 << 24, 1 << 24, 1 << 24
_Self = TypeVar("_Self", bound="BaseWriter")


def _row_codes(n_vocab: int) -> int:
    return 2 * ((n_vocab + 1) // 2) + 4


class BaseWriter:
    """Writes a file atomically: leaving ``with`` without an error commits it."""

    def __init__(self, path: str | os.PathLike[str], rows: Sequence[list[int]], n_vocab: int) -> None:
        import numpy as np

        self._n_vocab = n_vocab
        self._file = WholeFile(path, "perplexity")
        self._file.write(_MAGIC + struct.pack("<iii", len(rows[0]), n_vocab, len(rows)))
        self._file.write(np.array(rows, "<i4").tobytes())

    def write(self, logits: Floats) -> None:
        """Write the next rows ``[n, n_vocab]``."""
        import numpy as np

        found = log_probs(logits)
        lowest = np.maximum(found.min(axis=1), found.max(axis=1) - np.float32(_RANGE))
        scale = (found.max(axis=1) - lowest) / np.float32(_MOST_CODE)
        steps = np.divide(found - lowest[:, None], scale[:, None], out=np.zeros_like(found), where=scale[:, None] > 0)
        codes = np.zeros((len(found), _row_codes(self._n_vocab)), "<u2")
        codes[:, :4] = np.stack([scale, lowest], axis=1).astype("<f4").view("<u2")
        codes[:, 4 : 4 + self._n_vocab] = np.rint(np.clip(steps, 0, _MOST_CODE))
        self._file.write(codes.tobytes())

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, traceback)


class BaseReader:
    """Reads such a file; ``rows`` has the chunks of the text.  Raises LoadError if the file is malformed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        import numpy as np

        self._path = Path(path)
        with self._path.open("rb") as file:
            head = file.read(20)
            if len(head) != 20 or head[:8] != _MAGIC:
                raise LoadError(f"[base] not a file of log-probabilities: '{self._path}'")
            n_ctx, self.n_vocab, n_chunks = struct.unpack("<iii", head[8:])
            numbers = ((n_ctx, _MOST_TOKENS), (self.n_vocab, _MOST_VOCABULARY), (n_chunks, _MOST_CHUNKS))
            if not all(0 < number <= most for number, most in numbers) or n_ctx < 4:
                raise LoadError(f"[base] sizes out of range in '{self._path}': {n_ctx, *numbers[1:]}")
            self._n_rows = n_ctx - 1 - n_ctx // 2
            needed = 20 + 4 * n_ctx * n_chunks + 2 * n_chunks * self._n_rows * _row_codes(self.n_vocab)
            size = self._path.stat().st_size
            if size < needed:
                raise LoadError(f"[base] truncated file '{self._path}': {size} of {needed} bytes")
            ids = np.frombuffer(file.read(4 * n_ctx * n_chunks), "<i4").reshape(n_chunks, n_ctx)
        if not ((ids >= 0) & (ids < self.n_vocab)).all():
            raise LoadError(f"[base] '{self._path}' has tokens outside its vocabulary of {self.n_vocab}")
        self.rows: list[list[int]] = ids.tolist()

    @property
    def n_ctx(self) -> int:
        """The number of tokens per chunk."""
        return len(self.rows[0])

    def chunks(self) -> Iterator[Floats]:
        """Yield the log-probabilities ``[n_ctx - 1 - n_ctx // 2, n_vocab]`` of each chunk."""
        import numpy as np

        width = _row_codes(self.n_vocab)
        with self._path.open("rb") as file:
            file.seek(20 + 4 * len(self.rows) * self.n_ctx)
            for _ in self.rows:
                codes = np.frombuffer(file.read(2 * self._n_rows * width), "<u2").reshape(self._n_rows, width)
                scale, lowest = np.ascontiguousarray(codes[:, :4]).view("<f4").T
                if not (np.isfinite(scale).all() and np.isfinite(lowest).all()):
                    raise LoadError(f"[base] '{self._path}' has scales that are not finite")
                found: Floats = codes[:, 4 : 4 + self.n_vocab] * scale[:, None] + lowest[:, None]
                yield found
