"""A model that is quantized while it is read."""

from __future__ import annotations

from pathlib import Path

from .._native.core import Tensor
from ..checkpoints.conversion import MadeReader, Origin
from ..files.gguf import GGUFReader, GGUFWriter
from .importance import Importance
from .run import Planned, Wishes, announce, pieces, plan

__all__ = ["QuantizedReader"]


class QuantizedReader(MadeReader):
    """A model, read as the file that ``quantize_model`` would make of it; its data is never written.

    A tensor is quantized when it is asked for.  Keys and names go to a file in the folder ``scratch``, which has no
    room for data and is removed at the end of ``with``.  Raises as ``plan`` and ``quantize_model``.
    """

    def __init__(
        self,
        source: GGUFReader,
        scratch: Path,
        mix: str,
        *,
        importance: Importance | None = None,
        threads: int = 0,
    ) -> None:
        self._source = source
        self._importance = importance
        self._threads = threads
        self._mix = mix.upper()
        todo = plan(source, mix, Wishes(), importance)
        self._planned: dict[str, Planned] = {tensor.name: tensor for tensor in todo.tensors}
        name = f"{Path(source.path).stem}.{self._mix}.gguf"
        writer = GGUFWriter(scratch / name, source.metadata.text("general.architecture"))
        try:
            announce(writer, source, todo, importance)
            super().__init__(writer)
        except BaseException:
            writer.abort()
            raise

    @property
    def identity(self) -> str:
        """That of the source and of the mix; empty where importance had a part in it."""
        own = self._source.identity if self._importance is None else ""
        return f"{own}{self._mix}\n" if own else ""

    @property
    def origin(self) -> Origin | None:
        """That of the source."""
        return self._source.origin if isinstance(self._source, MadeReader) else None

    def tensor(self, name: str) -> Tensor:
        """The tensor: over the source's memory where it stays as it is, else in memory of its own."""
        planned = self._planned[name]
        if planned.source == planned.dtype:
            return self._source.tensor(name)
        made = pieces(self._source, planned, self._importance, self._threads)
        return self.made(name, (piece.numpy() for piece in made))
