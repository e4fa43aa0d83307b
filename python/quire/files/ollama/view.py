"""A file read with other keys and tensors than it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..._native.core import DType, Tensor
from ...errors import LoadError
from ..changed_keys import ChangedKeys
from ..gguf import GGUFReader, Metadata

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..._native.gguf import TensorInfo

    Array = npt.NDArray[np.generic]

__all__ = ["ChangedTensors", "Make", "TranslatedReader"]


@dataclass(frozen=True)
class _Place:
    """The facts that a reader returns about a tensor."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int
    part: int


# Returns the parts of a tensor's storage, from tensors of the file.
Make = Callable[[Sequence[Tensor]], Iterable["Array"]]


@dataclass(frozen=True)
class _Entry:
    place: _Place
    sources: tuple[str, ...]
    make: Make | None = None  # None: the only source is the tensor itself


class ChangedTensors:
    """The tensors of a file, some of them changed, by their new names."""

    def __init__(self, source: GGUFReader) -> None:
        self._source = source
        self._entries = {info.name: self._entry(info.name, info) for info in source.tensors}

    def _entry(self, name: str, info: TensorInfo) -> _Entry:
        place = _Place(name, info.dtype, tuple(info.shape), info.offset_bytes, info.size_bytes, info.part)
        return _Entry(place, (info.name,))

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        return list(self._entries)

    def place(self, name: str) -> _Place:
        """Return what is known of a tensor.  Raises LoadError if there is none with this name."""
        if name not in self._entries:
            raise LoadError(f"[gguf] missing tensor '{name}'")
        return self._entries[name].place

    def places(self) -> list[_Place]:
        return [entry.place for entry in self._entries.values()]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.place(name).shape

    def remove(self, name: str) -> None:
        self._entries.pop(name, None)

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Remove all other tensors."""
        self._entries = {name: entry for name, entry in self._entries.items() if wanted(name)}

    def rename(self, renamed: Callable[[str], str]) -> None:
        """Rename tensors; a name that another tensor has already is not taken."""
        taken, entries = set(self._entries), {}
        for name, entry in self._entries.items():
            new = renamed(name)
            new = name if new in taken else new
            place = _Place(**{**vars(entry.place), "name": new})
            entries[new] = _Entry(place, entry.sources, entry.make)
        self._entries = entries

    def make(
        self, name: str, sources: Sequence[str], shape: Sequence[int], make: Make, dtype: DType | None = None
    ) -> None:
        """Add a tensor that is made of others of the file, or replace it; its type is that of the first of them."""
        first = self._source.tensor_info(self._entries[sources[0]].sources[0])
        dtype = dtype or first.dtype
        shape = tuple(shape)
        size = dtype.row_bytes(shape[-1])
        for n in shape[:-1]:
            size *= n
        place = _Place(name, dtype, shape, first.offset_bytes, size, first.part)
        self._entries[name] = _Entry(place, tuple(self._entries[source].sources[0] for source in sources), make)

    def is_made(self) -> bool:
        """Return whether some tensors differ from those of the file."""
        return any(entry.make is not None for entry in self._entries.values())

    def tensor(self, name: str) -> Tensor:
        """Return a tensor of the file, or one made now.  Raises LoadError if there is none with this name."""
        self.place(name)
        entry = self._entries[name]
        if entry.make is None:
            return self._source.tensor(entry.sources[0])
        out = Tensor.empty(entry.place.dtype, entry.place.shape)
        storage, at = out.numpy().reshape(-1).view("u1"), 0
        for part in entry.make([self._source.tensor(source) for source in entry.sources]):
            data = part.reshape(-1).view("u1")
            storage[at : at + len(data)] = data
            at += len(data)
        if at != len(storage):
            raise LoadError(f"[gguf] tensor '{name}' has {at} bytes: expected {len(storage)}")
        return out


class TranslatedReader(GGUFReader):
    """A file with changed keys and tensors."""

    def __init__(self, source: GGUFReader, keys: ChangedKeys, tensors: ChangedTensors) -> None:
        self.path, self._reader, self.source = source.path, source._reader, source
        self.metadata = Metadata(keys)
        self._changed = tensors

    @property
    def tensors(self) -> list[TensorInfo]:
        return cast("list[TensorInfo]", self._changed.places())

    def __contains__(self, name: str) -> bool:
        return name in self._changed

    def tensor(self, name: str) -> Tensor:
        return self._changed.tensor(name)

    def tensor_info(self, name: str) -> TensorInfo:
        return cast("TensorInfo", self._changed.place(name))

    @property
    def identity(self) -> str:
        """Empty if tensors are made, which another version may make differently."""
        return "" if self._changed.is_made() else super().identity

    @property
    def is_mapped(self) -> bool:
        return not self._changed.is_made()
