"""A strict reader of checkpoints in safetensors files (format: the safetensors README, version 0.4)."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LoadError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native.core import Tensor

__all__ = ["SafetensorsFile", "SafetensorsFolder"]

_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
_LOADABLE = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
# Types that NumPy lacks are read as unsigned integers with their bits.
_ARRAYS = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8",
    "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "u1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip
_MAX_HEADER_BYTES = 64 << 20
_MAX_DIMS = 4


@dataclass(frozen=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    begin: int  # from the start of the file
    end: int


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate names")
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


class SafetensorsFile:
    """A memory-mapped safetensors file.  Raises LoadError if anything is wrong with it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise LoadError(f"[safetensors] file not found: '{self.path}'")
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 10:
                raise LoadError(f"[safetensors] no header in '{self.path}': it has {size} bytes")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._entries = self._parse(size)

    def _fail(self, what: str) -> LoadError:
        return LoadError(f"[safetensors] '{self.path.name}': {what}")

    def _parse(self, size: int) -> dict[str, _Entry]:
        n = int.from_bytes(self._map[:8], "little")
        if n > min(size - 8, _MAX_HEADER_BYTES):
            raise self._fail(f"the header has {n} bytes: more than the file, or than the limit of {_MAX_HEADER_BYTES}")
        try:
            header = json.loads(self._map[8 : 8 + n].decode("utf-8"), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self._fail(f"the header is not valid JSON: {error}") from None
        if not isinstance(header, dict):
            raise self._fail("the header is not a JSON object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise self._fail("'__metadata__' does not map strings to strings")
        entries = {name: self._entry(name, value, 8 + n) for name, value in header.items()}
        end = 8 + n
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            if entry.begin != end:
                raise self._fail(
                    f"tensor '{name}' starts at {entry.begin}: expected {end}, the end of the previous tensor"
                )
            end = entry.end
        if end != size:
            raise self._fail(f"the tensors end at {end}, the file has {size} bytes")
        return entries

    def _entry(self, name: str, value: object, start: int) -> _Entry:
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise self._fail(f"tensor '{name}' does not have exactly the fields dtype, shape and data_offsets")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if dtype not in _BYTES:
            raise self._fail(f"tensor '{name}' has the unknown dtype {dtype!r}")
        if not isinstance(shape, list) or not all(_is_count(dim) for dim in shape):
            raise self._fail(f"tensor '{name}' has an invalid shape: {shape!r}")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(offset) for offset in offsets):
            raise self._fail(f"tensor '{name}' has invalid offsets: {offsets!r}")
        n_bytes = _BYTES[dtype]
        for dim in shape:
            n_bytes *= dim
        if offsets[1] - offsets[0] != n_bytes:
            raise self._fail(f"the offsets of tensor '{name}' span {offsets[1] - offsets[0]} bytes: expected {n_bytes}")
        return _Entry(dtype, tuple(shape), start + offsets[0], start + offsets[1])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape.  Raises LoadError if there is none with this name."""
        return self._find(name).shape

    def _find(self, name: str) -> _Entry:
        if name not in self._entries:
            raise self._fail(f"no tensor '{name}'")
        return self._entries[name]

    def tensor(self, name: str) -> Tensor:
        """Return a tensor in the mapped file.  Raises UnsupportedError unless it is f32, f16 or bf16.

        ggml has four dimensions, so those from the fourth on are merged into one (convolutions over time have five).
        """
        return self.tensor_of(name, self.array(name))

    def tensor_of(self, name: str, values: npt.NDArray[Any]) -> Tensor:
        """Return other values, or the tensor's own, as a tensor of its type."""
        from .._native.core import DType
        from .._native.core import Tensor as Storage

        entry = self._find(name)
        if entry.dtype not in _LOADABLE:
            raise UnsupportedError(f"[safetensors] tensor '{name}' is {entry.dtype}: expected F32, F16 or BF16")
        shape = values.shape or (1,)  # scalars have an empty shape
        if len(shape) > _MAX_DIMS:
            shape = (*shape[: _MAX_DIMS - 1], math.prod(shape[_MAX_DIMS - 1 :]))
        return Storage.from_numpy(values.reshape(shape), DType(_LOADABLE[entry.dtype]))

    def dtype(self, name: str) -> str:
        """Return a tensor's type by the file's name: ``F16``, ``I32``, ``F8_E4M3``, ..."""
        return self._find(name).dtype

    def begin(self, name: str) -> int:
        """Return the place of a tensor's first byte in the file."""
        return self._find(name).begin

    def n_bytes(self, name: str) -> int:
        """Return a tensor's size in the file."""
        entry = self._find(name)
        return entry.end - entry.begin

    def array(self, name: str) -> npt.NDArray[Any]:
        """A tensor of any type over the mapped file; bits as unsigned numbers where NumPy has no such type."""
        import numpy as np

        entry = self._find(name)
        count = (entry.end - entry.begin) // _BYTES[entry.dtype]
        array = np.frombuffer(self._map, np.dtype(_ARRAYS[entry.dtype]), count, entry.begin).reshape(entry.shape)
        # After a header of odd length, numbers are not aligned.
        return array if array.flags.aligned else array.copy()

    def bytes_of(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a U8 tensor in the mapped file.  Raises LoadError for other types."""
        dtype = self._find(name).dtype
        if dtype != "U8":
            raise LoadError(f"[safetensors] tensor '{name}' is {dtype}: expected U8")
        found: npt.NDArray[np.uint8] = self.array(name)
        return found


class SafetensorsFolder(Mapping[str, "Tensor"]):
    """The checkpoint in a folder: ``model.safetensors``, or the shards in ``model.safetensors.index.json``.

    ``folder[name]`` maps in one tensor.  ``stem`` replaces ``model`` in the files' names.

    Raises:
        LoadError: There is no checkpoint, a shard is outside the folder, or a tensor is not in the shard that the index
            names.
    """

    def __init__(self, folder: str | os.PathLike[str], stem: str = "model") -> None:
        self.folder = Path(folder)
        index, name = self.folder / f"{stem}.safetensors.index.json", f"{stem}.safetensors"
        self._files: dict[str, SafetensorsFile] = {}
        if index.is_file():
            self._where = self._read_index(index)
        else:
            if not (self.folder / name).is_file():
                raise LoadError(f"[safetensors] no {name} or its index in '{self.folder}'")
            self._files[name] = SafetensorsFile(self.folder / name)
            self._where = dict.fromkeys(self._files[name], name)

    def _read_index(self, index: Path) -> dict[str, str]:
        try:
            where = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=_unique)["weight_map"]
            names = {str(tensor): str(shard) for tensor, shard in where.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LoadError(f"[safetensors] '{index.name}' is not JSON with a weight_map: {error}") from None
        for shard in sorted(set(names.values())):
            if Path(shard).name != shard or not shard.endswith(".safetensors"):
                raise LoadError(f"[safetensors] shard '{shard}' is not a .safetensors file in the folder")
            self._files[shard] = SafetensorsFile(self.folder / shard)
        for tensor, shard in names.items():
            if tensor not in self._files[shard]:
                raise LoadError(f"[safetensors] no tensor '{tensor}' in '{shard}', where the index has it")
        return names

    def __getitem__(self, name: str) -> Tensor:
        file, stored = self._place(name)
        return file.tensor(stored)

    def bytes_of(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a U8 tensor."""
        file, stored = self._place(name)
        return file.bytes_of(stored)

    def n_bytes(self, name: str) -> int:
        """Return a tensor's size in its file."""
        file, stored = self._place(name)
        return file.n_bytes(stored)

    def array(self, name: str) -> npt.NDArray[Any]:
        """A tensor of any type over the mapped file; bits as unsigned numbers where NumPy has no such type."""
        file, stored = self._place(name)
        return file.array(stored)

    def dtype(self, name: str) -> str:
        """Return a tensor's type by the file's name."""
        file, stored = self._place(name)
        return file.dtype(stored)

    def _place(self, name: str) -> tuple[SafetensorsFile, str]:
        """Return a tensor's file and its name there."""
        if name not in self._where:
            raise LoadError(f"[safetensors] no tensor '{name}' in the checkpoint")
        return self._files[self._where[name]], name

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without mapping it in."""
        file, stored = self._place(name)
        return file.shape(stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: object) -> bool:
        return name in self._where
