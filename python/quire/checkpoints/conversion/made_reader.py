"""A model that is made while it is read, from a checkpoint or from another file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ..._native.core import Tensor
from ...files.gguf import GGUFReader, GGUFWriter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..mapping import Checkpoint, Fields, Target

__all__ = ["MadeReader", "Origin"]

_Self = TypeVar("_Self", bound="MadeReader")


@dataclass(frozen=True)
class Origin:
    """How a checkpoint is converted: by its class in general, with what config.json says of the text model, and as the
    tensors that are made of it."""

    mapping: Checkpoint
    config: Fields
    targets: Sequence[Target]


class MadeReader(GGUFReader):
    """A file that is never written: a tensor is made when it is asked for.

    Keys and names are in ``writer``'s file, which has no room for data and is removed at the end of ``with``.
    """

    def __init__(self, writer: GGUFWriter) -> None:
        """``writer``: with all keys and tensors announced."""
        self._writer = writer
        super().__init__(writer.reserve())

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the file; tensors that were taken stay."""
        self._writer.abort()

    @property
    def is_made(self) -> bool:
        return True

    @property
    def is_mapped(self) -> bool:
        """False: what is made from a tensor is in memory alone."""
        return False

    @property
    def origin(self) -> Origin | None:
        """The checkpoint that it is made from; None for other sources."""
        return None

    def made(self, name: str, pieces: Iterable[npt.NDArray[np.generic]]) -> Tensor:
        """The tensor of that name in memory of its own, filled with the storage of ``pieces``, one behind the other."""
        info = self.tensor_info(name)
        out = Tensor.empty(info.dtype, info.shape)
        storage = out.numpy().reshape(-1).view("u1")
        at = 0
        for piece in pieces:
            data = piece.reshape(-1).view("u1")
            storage[at : at + len(data)] = data
            at += len(data)
        return out
