"""A model whose matrices can be replaced while it is open, to measure the effect on its predictions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._native.core import Tensor
from .._native.quant import dequantize
from ..checkpoints.conversion import MadeReader
from ..engine.loading.loader import open_reader
from ..files.gguf import GGUFReader, GGUFWriter
from ..quantization import Importance, Planned, Wishes, plan
from ..quantization.run import announce, pieces
from .divergence import divergences
from .losses import log_probs
from .scorer import Scorer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Doubles = npt.NDArray[np.float64]

__all__ = ["Trial", "opened_trial"]

# The first tokens of a row do not count: without context all models are similar.
_SKIPPED = 16


class _TrialReader(MadeReader):
    """Reads the source, with its matrices as f32 in memory of their own."""

    def __init__(self, source: GGUFReader, scratch: Path) -> None:
        self._source = source
        todo = plan(source, "F32", Wishes(allow_requantize=True))
        self.planned: dict[str, Planned] = {tensor.name: tensor for tensor in todo.tensors}
        self._own: dict[str, Tensor] = {}
        writer = GGUFWriter(scratch / f"{Path(source.path).stem}.gguf", source.metadata.text("general.architecture"))
        try:
            announce(writer, source, todo, None)
            super().__init__(writer)
        except BaseException:
            writer.abort()
            raise

    def tensor(self, name: str) -> Tensor:
        if name not in self._own:
            self._own[name] = (
                self.made(name, (self._source.tensor(name).numpy(),)) if self._kept(name) else self._f32(name)
            )
        return self._own[name]

    def _kept(self, name: str) -> bool:
        return self.planned[name].source == self.planned[name].dtype

    def _f32(self, name: str) -> Tensor:
        return self.made(name, (piece.numpy() for piece in pieces(self._source, self.planned[name], None, 0)))


class Trial:
    """Rows of a text and the original model's log-probabilities, to compare with those after replacing matrices."""

    def __init__(self, source: GGUFReader, reader: _TrialReader, scorer: Scorer, rows: Sequence[list[int]]) -> None:
        self._source, self._reader, self._scorer, self._rows = source, reader, scorer, rows
        self._base = self._log_probs_of_base()

    def _log_probs_of_base(self) -> list[Floats]:
        """Compute the original model's log-probabilities, in an unnamed file because they may be large."""
        import numpy as np

        made: list[Floats] = []
        with tempfile.TemporaryFile() as scratch:
            for logits in self._scorer.logits(self._rows, _SKIPPED):
                at = scratch.seek(0, 2)
                scratch.write(log_probs(logits).tobytes())
                scratch.flush()
                made.append(np.memmap(scratch, np.float32, "r", at, logits.shape))
        return made

    def values(self, name: str, dtype: str, importance: Importance | None) -> Floats:
        """Return the values ``[n_rows, n_columns]`` of a matrix, all its parts, after storing it as ``dtype``."""
        import numpy as np

        info = self._source.tensor_info(name)
        planned = Planned(name, info.shape, str(info.dtype), dtype)
        found: Floats = np.concatenate(
            [dequantize(piece).reshape(-1, info.shape[-1]) for piece in pieces(self._source, planned, importance, 0)]
        )
        return found

    def set(self, name: str, values: Floats) -> None:
        """Replace a matrix by these values."""
        own = self._reader.tensor(name).numpy()
        own[...] = values.reshape(own.shape)

    def divergence(self) -> float:
        """Return the mean Kullback-Leibler divergence of the current model from the original, in nats per token."""
        return float(self.divergences().mean())

    def divergences(self) -> Doubles:
        """Return the divergence for each token."""
        import numpy as np

        found = self._scorer.logits(self._rows, _SKIPPED)
        return np.concatenate(
            [divergences(base, log_probs(logits)) for base, logits in zip(self._base, found, strict=True)]
        )

    @contextmanager
    def changed(self, name: str, values: Floats) -> Iterator[None]:
        """Replace a matrix by ``values`` inside ``with``."""
        own = self._reader.tensor(name).numpy()
        before = own.copy()
        self.set(name, values)
        try:
            yield
        finally:
            self.set(name, before)


@contextmanager
def opened_trial(source: GGUFReader, rows: Sequence[list[int]], options: Mapping[str, Any]) -> Iterator[Trial]:
    """Open a trial of a model over rows of tokens of equal length.  Its matrices take four bytes per weight."""
    with tempfile.TemporaryDirectory(prefix="quire-") as scratch, _TrialReader(source, Path(scratch)) as reader:
        config = Scorer.sized({**options, "kernels": "stock"}, len(rows[0]))
        opened = open_reader(reader, Path(reader.path), config, repack="no")
        with Scorer(opened) as scorer:
            yield Trial(source, reader, scorer, rows)
