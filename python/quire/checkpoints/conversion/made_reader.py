"""A model file that is made while it is being read, from a checkpoint or from another file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..._native.core import DType, Tensor
from ...files.gguf import GGUFReader, GGUFWriter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..mapping import Checkpoint, Fields, Target

__all__ = ["MadeReader", "Origin", "dtype_in_file"]

_Self = TypeVar("_Self", bound="MadeReader")


@dataclass(frozen=True)
class Origin:
    """How a checkpoint is converted: its class's mapping, the text model's configuration, and the resulting tensors."""

    mapping: Checkpoint
    config: Fields
    targets: Sequence[Target]


def dtype_in_file(target: Target, shape: tuple[int, ...], wanted: DType) -> DType:
    """Return ``wanted``, except f32 for vectors and routers, and f16 where rows do not divide into its blocks."""
    if target.keep_f32 or len(shape) == 1:
        return DType("f32")
    return wanted if shape[-1] % wanted.block_size == 0 else DType("f16")


class MadeReader(GGUFReader):
    """A model file whose tensors are never written but made on request.

    Keys and names are in ``writer``'s file, which contains no data and is removed at the end of ``with``.
    """

    def __init__(self, writer: GGUFWriter) -> None:
        """``writer`` has all keys, and all tensors announced."""
        self._writer = writer
        super().__init__(writer.reserve())

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file.  Tensors that were returned remain valid."""
        self._writer.abort()

    @property
    def identity(self) -> str:
        """Empty, as nothing tells whether the checkpoint is the same the next time."""
        return ""

    @property
    def source_files(self) -> list[Path]:
        """Empty, unless a subclass knows them."""
        return []

    @property
    def is_made(self) -> bool:
        return True

    @property
    def is_mapped(self) -> bool:
        """False, as tensors that are made exist only in memory."""
        return False

    @property
    def origin(self) -> Origin | None:
        """The checkpoint that the model is made from; None for other sources."""
        return None

    def made(self, name: str, pieces: Iterable[npt.NDArray[np.generic]]) -> Tensor:
        """Return the tensor ``name`` in newly allocated memory, filled with the joined bytes of ``pieces``."""
        info = self.tensor_info(name)
        out = Tensor.empty(info.dtype, info.shape)
        storage = out.numpy().reshape(-1).view("u1")
        at = 0
        for piece in pieces:
            data = piece.reshape(-1).view("u1")
            storage[at : at + len(data)] = data
            at += len(data)
        return out
