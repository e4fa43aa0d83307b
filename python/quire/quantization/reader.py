"""Quantizing a model while it is read."""

from __future__ import annotations

from pathlib import Path

from .._native.core import Tensor
from ..checkpoints.conversion import MadeReader, Origin
from ..files.gguf import GGUFReader, GGUFWriter
from .importance import Importance
from .run import Planned, Wishes, announce, pieces, plan

__all__ = ["QuantizedReader"]


class QuantizedReader(MadeReader):
    """Reads a model like the file that ``quantize_model`` would write, without writing its data.

    Tensors are quantized on demand.  Keys and names are in a sparse file in the folder ``scratch``, which is removed at
    the end of ``with``.  Raises the errors of ``plan`` and ``quantize_model``.
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
        """The identity of source and mix; empty if importance was used."""
        own = self._source.identity if self._importance is None else ""
        return f"{own}{self._mix}\n" if own else ""

    @property
    def source_files(self) -> list[Path]:
        """The files of the source; none if importance was used, which would have to be told, too."""
        return self._source.source_files if self._importance is None else []

    @property
    def origin(self) -> Origin | None:
        """The origin of the source."""
        return self._source.origin if isinstance(self._source, MadeReader) else None

    def tensor(self, name: str) -> Tensor:
        """Return a tensor, in the source's memory if it is unchanged, otherwise in memory of its own."""
        planned = self._planned[name]
        if planned.source == planned.dtype:
            return self._source.tensor(name)
        made = pieces(self._source, planned, self._importance, self._threads)
        return self.made(name, (piece.numpy() for piece in made))
