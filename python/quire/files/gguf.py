"""GGUF files: a strict reader and an atomic writer.

The container is specified in ggml's ``docs/gguf.md``.  Limits: 65 536 keys and tensors, strings of 16 MiB, arrays of
16 Mi entries, alignment a power of two up to 64 KiB.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar, overload

from .._native import gguf as _gguf
from .._native.core import DType, Tensor
from ..errors import LoadError, ShapeError
from .whole_file import WholeFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native.gguf import TensorInfo

__all__ = ["NUMBER_CODES", "REQUIRED", "GGUFReader", "GGUFWriter", "LoadMode", "Metadata", "Required"]

LoadMode = Literal["mmap", "copy", "lock"]
_T = TypeVar("_T")
# Of arrays of numbers and booleans: the names of what they hold in the module struct, and in memoryview.
NUMBER_CODES = {
    "u8[]": "B", "i8[]": "b", "u16[]": "H", "i16[]": "h", "u32[]": "I", "i32[]": "i", "u64[]": "Q", "i64[]": "q",
    "f32[]": "f", "f64[]": "d", "bool[]": "?",
}  # fmt: skip


class Required:
    """Stands for the default of a key that must be there."""


REQUIRED = Required()


class Metadata(Mapping[str, object]):
    """The keys of a file, in order.

    ``metadata[key]`` gives a value as it is: int, float, bool, str, a list of str or a NumPy array.  The named methods
    read strictly: a key that is absent (without a default) or of another type is a LoadError that names it.
    """

    def __init__(self, reader: _gguf.Reader) -> None:
        self._reader = reader

    def __getitem__(self, key: str) -> object:
        return self._reader.value(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.keys())

    def __len__(self) -> int:
        return len(self._reader.keys())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._reader.has(key)

    def type_of(self, key: str) -> str:
        """``"u32"``, ``"string"``, ``"f32[]"``, ...; KeyError when absent."""
        return self._reader.value_type(key)

    def _typed(self, key: str, kind: type[_T], default: _T | Required, words: str) -> _T:
        if not self._reader.has(key):
            if isinstance(default, Required):
                raise LoadError(f"[gguf] key '{key}' must be there but is not")
            return default
        value = self._reader.value(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise LoadError(f"[gguf] key '{key}' must be {words} but is {self._reader.value_type(key)}")
        return value

    def integer(self, key: str, default: int | Required = REQUIRED, *, low: int = 0, high: int = 2**31 - 1) -> int:
        """A whole number within ``[low, high]``."""
        value = self._typed(key, int, default, "a whole number")
        if self._reader.has(key) and not low <= value <= high:
            raise LoadError(f"[gguf] key '{key}' must be {low} to {high} but is {value}")
        return value

    def number(self, key: str, default: float | Required = REQUIRED) -> float:
        """A finite number."""
        value = self._typed(key, float, default, "a number")
        if not math.isfinite(value):
            raise LoadError(f"[gguf] key '{key}' must be finite but is {value}")
        return value

    def text(self, key: str, default: str | Required = REQUIRED) -> str:
        """A string; bytes that are no UTF-8 come as lone surrogates."""
        return self._typed(key, str, default, "a string")

    def flag(self, key: str, default: bool | Required = REQUIRED) -> bool:
        """A boolean."""
        return self._typed(key, bool, default, "a boolean")

    def array(self, key: str) -> npt.NDArray[np.generic]:
        """An array of numbers or booleans."""
        import numpy as np

        value = self._typed(key, object, REQUIRED, "an array of numbers")
        if not isinstance(value, np.ndarray):
            raise LoadError(f"[gguf] key '{key}' must be an array of numbers but is {self._reader.value_type(key)}")
        return value

    def beginning(self, key: str, n: int) -> tuple[int, list[int | float | bool]]:
        """How long an array of numbers or booleans is, and its first ``n``, without NumPy; KeyError when absent."""
        code = NUMBER_CODES.get(self.type_of(key))
        if code is None:
            raise LoadError(f"[gguf] key '{key}' must be an array of numbers but is {self.type_of(key)}")
        packed = self._reader.packed_numbers(key)
        n_all = len(packed) // struct.calcsize(code)
        return n_all, list(struct.unpack_from(f"<{min(n, n_all)}{code}", packed))

    def strings(self, key: str) -> list[bytes]:
        """An array of strings, as raw bytes."""
        if not self._reader.has(key):
            raise LoadError(f"[gguf] key '{key}' must be there but is not")
        if self._reader.value_type(key) != "string[]":
            raise LoadError(f"[gguf] key '{key}' must be an array of strings but is {self._reader.value_type(key)}")
        return self._reader.string_bytes(key)


class GGUFReader:
    """A GGUF model: one file, or all parts of a split one, opened by the first.

    ``load``: ``"mmap"`` shares the file's pages, ``"copy"`` reads it, ``"lock"`` maps it and keeps it in memory.
    Raises LoadError for whatever is wrong with the file, CapacityError when it does not fit or may not be locked.
    """

    def __init__(self, path: str | os.PathLike[str], load: LoadMode = "mmap") -> None:
        self.path = os.fspath(path)
        self._reader = _gguf.Reader(self.path, load)
        self.metadata = Metadata(self._reader)

    @property
    def version(self) -> int:
        """Of the container: 2 or 3."""
        return self._reader.version

    @property
    def alignment(self) -> int:
        """Of tensors, in bytes."""
        return self._reader.alignment

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return self._reader.size_bytes

    @property
    def n_files(self) -> int:
        """1, or the number of parts of a split model."""
        return self._reader.n_files

    @property
    def tensors(self) -> list[TensorInfo]:
        """Name, dtype, shape and place of every tensor, in the file's order."""
        return self._reader.tensors()

    def __contains__(self, name: str) -> bool:
        return self._reader.has_tensor(name)

    def tensor(self, name: str) -> Tensor:
        """The tensor, over the file's memory and read-only.  LoadError when there is none of that name."""
        return self._reader.tensor(name)

    def tensor_info(self, name: str) -> TensorInfo:
        """Name, dtype, shape and place.  LoadError when there is none of that name."""
        return self._reader.tensor_info(name)

    @property
    def identity(self) -> str:
        """What stays the same while nobody writes to the files; empty for files younger than two seconds."""
        return self._reader.identity

    @property
    def is_made(self) -> bool:
        """Whether tensors are made when they are asked for; the file itself has zeros then."""
        return False

    @property
    def is_mapped(self) -> bool:
        """Whether tensors are pages of a file, which can be read again."""
        return True

    def check_unchanged(self) -> None:
        """LoadError when the file on disk changed since it was opened."""
        self._reader.check_unchanged()

    def __repr__(self) -> str:
        return f"GGUFReader({self.path!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"


_SCALARS = {
    "u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"),
    "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d"),
}  # fmt: skip
_STRING, _ARRAY = 8, 9
Scalar = int | float | bool | str | bytes


class GGUFWriter:
    """Writes a GGUF file beside its target and renames it when complete; nothing is left behind on failure.

    First the keys (``set``), then every tensor's dtype and shape (``add_tensor``), then the data of the tensors in that
    order (``write``), in pieces of any size, so that a model never is in memory as a whole::

        with GGUFWriter("out.gguf", "llama") as writer:
            writer.set("llama.block_count", 2, "u32")
            writer.add_tensor("token_embd.weight", "f32", (8, 4))
            writer.write("token_embd.weight", array)

    Raises ShapeError for values and tensors that the container cannot hold, CapacityError when the disk is full.
    """

    def __init__(self, path: str | os.PathLike[str], arch: str, *, alignment: int = 32) -> None:
        if alignment < 8 or alignment > 65536 or alignment & (alignment - 1):
            raise ShapeError(f"[gguf] alignment must be a power of two from 8 to 65536 but is {alignment}")
        self._path = Path(path)
        self._alignment = alignment
        self._keys: dict[str, bytes] = {}
        self._tensors: dict[str, tuple[DType, tuple[int, ...], int, int]] = {}  # dtype, shape, offset, bytes
        self._data_bytes = 0
        self._file: WholeFile | None = None
        self._order: list[str] = []
        self._written = 0  # bytes of the tensor that is being written
        self._start = 0
        self.set("general.architecture", arch)
        if alignment != 32:
            self.set("general.alignment", alignment, "u32")

    @overload
    def set(self, key: str, value: str | bytes | bool) -> None: ...
    @overload
    def set(self, key: str, value: object, kind: str) -> None: ...
    def set(self, key: str, value: object, kind: str | None = None) -> None:
        """Set a key.  ``kind``: ``u8 i8 ... f64 bool string`` for a scalar, with ``[]`` behind it for an array, whose
        value is a list or a NumPy array."""
        if self._file is not None:
            raise ShapeError(f"[gguf] key '{key}' must be set before tensor data is written")
        if not 1 <= len(key.encode()) <= 65535:
            raise ShapeError(f"[gguf] a key must have 1 to 65535 bytes but '{key[:40]}' has {len(key.encode())}")
        if kind is None:
            kind = "bool" if isinstance(value, bool) else "string"
        self._keys[key] = self._encoded(key, value, kind)

    def copy_metadata(self, metadata: Metadata, *, without: Collection[str] = ()) -> None:
        """Set all keys of another file, but those in ``without`` and ``general.alignment``, which is this file's own.

        The architecture is the other file's, too.
        """
        for key in metadata:
            if key not in without and key != "general.alignment":
                kind = metadata.type_of(key)
                self.set(key, metadata.strings(key) if kind == "string[]" else metadata[key], kind)

    def _encoded(self, key: str, value: object, kind: str) -> bytes:
        name = kind.removesuffix("[]")
        if name != "string" and name not in _SCALARS:
            raise ShapeError(f"[gguf] key '{key}' must have a known type but has '{kind}'")
        number = _STRING if name == "string" else _SCALARS[name][0]
        if not kind.endswith("[]"):
            return struct.pack("<I", number) + self._element(key, value, name)
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise ShapeError(f"[gguf] key '{key}' must be an array but is {type(value).__name__}")
        values: Sequence[object] = value if isinstance(value, (list, tuple)) else list(value)
        body = b"".join(self._element(key, one, name) for one in values)
        return struct.pack("<IIQ", _ARRAY, number, len(values)) + body

    @staticmethod
    def _element(key: str, value: object, name: str) -> bytes:
        if name == "string":
            if not isinstance(value, (str, bytes)):
                raise ShapeError(f"[gguf] key '{key}' must be a string but is {type(value).__name__}")
            raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
            return struct.pack("<Q", len(raw)) + raw
        try:
            return struct.pack(_SCALARS[name][1], value)
        except (struct.error, OverflowError) as error:
            raise ShapeError(f"[gguf] key '{key}' must fit {name} but {value!r} does not: {error}") from None

    def add_tensor(self, name: str, dtype: DType | str, shape: Sequence[int]) -> None:
        """Announce a tensor (shape in NumPy order).  All are announced before the first data."""
        dtype = DType(dtype) if isinstance(dtype, str) else dtype
        dims = tuple(int(n) for n in shape)
        if self._file is not None:
            raise ShapeError(f"[gguf] tensor '{name}' must be announced before tensor data is written")
        if name in self._tensors:
            raise ShapeError(f"[gguf] tensor '{name}' must be announced once")
        if not 1 <= len(name.encode()) <= 63:
            raise ShapeError(f"[gguf] a tensor's name must have 1 to 63 bytes but '{name}' has {len(name.encode())}")
        if not 1 <= len(dims) <= 4 or min(dims) < 1:
            raise ShapeError(f"[gguf] tensor '{name}' must have 1 to 4 dimensions of 1 or more but has {dims}")
        size = math.prod(dims[:-1]) * dtype.row_bytes(dims[-1])
        self._tensors[name] = (dtype, dims, self._data_bytes, size)
        self._data_bytes += -(-size // self._alignment) * self._alignment

    def _header(self) -> bytes:
        parts = [struct.pack("<IIQQ", 0x46554747, 3, len(self._tensors), len(self._keys))]
        for key, value in self._keys.items():
            parts += [struct.pack("<Q", len(key.encode())), key.encode(), value]
        for name, (dtype, dims, offset, _) in self._tensors.items():
            parts += [struct.pack("<Q", len(name.encode())), name.encode(), struct.pack("<I", len(dims))]
            parts += [struct.pack("<Q", n) for n in reversed(dims)]
            parts.append(struct.pack("<IQ", dtype.id, offset))
        header = b"".join(parts)
        return header + bytes(-len(header) % self._alignment)

    def _begin(self) -> WholeFile:
        if self._file is None:
            header = self._header()
            self._start = len(header)
            self._file = WholeFile(self._path, "gguf", self._start + self._data_bytes)
            self._file.write(header)
            self._order = list(self._tensors)
        return self._file

    def reserve(self) -> Path:
        """Write what comes before the data and give the file its length; returns where it is until ``close``.

        A reader can open that file, whose tensors hold zeros until they are written.
        """
        file = self._begin()
        file.reserve(self._start + self._data_bytes)
        return file.scratch

    def write(self, name: str, data: bytes | memoryview | npt.NDArray[np.generic] | Tensor) -> None:
        """The next bytes of tensor ``name``: its storage, in the order of announcement, in pieces of any size.

        A ``Tensor`` is a piece, too: ``writer.write(name, reader.tensor(name))`` copies one.  UnsupportedError for one
        that is not in CPU memory, ShapeError for one of another dtype.
        """
        file = self._begin()
        if not self._order or self._order[0] != name:
            expected = self._order[0] if self._order else "nothing more"
            raise ShapeError(
                f"[gguf] data must come in the order of announcement: {expected!r} must come but '{name}' does"
            )
        if isinstance(data, Tensor):
            if data.dtype != self._tensors[name][0]:
                raise ShapeError(
                    f"[gguf] tensor '{name}' must be {self._tensors[name][0]}, as announced, but is {data.dtype}"
                )
            data = data.numpy()
        view = data if isinstance(data, (bytes, memoryview)) else data.data
        view = memoryview(view).cast("B")
        size = self._tensors[name][3]
        if self._written + len(view) > size:
            raise ShapeError(f"[gguf] tensor '{name}' must have {size} bytes but {self._written + len(view)} came")
        file.write(view)
        self._written += len(view)
        if self._written == size:
            file.write(bytes(-size % self._alignment))
            self._order.pop(0)
            self._written = 0

    def close(self) -> None:
        """Finish the file and move it to its place.  ShapeError, and no file, when tensor data is missing."""
        try:
            file = self._begin()
            if self._order:
                raise ShapeError(f"[gguf] all tensors must be written but '{self._order[0]}' is not")
            file.commit()
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop what was written so far.  Harmless after close()."""
        if self._file is not None:
            self._file.abort()

    def __repr__(self) -> str:
        return f"GGUFWriter({os.fspath(self._path)!r}, {len(self._keys)} keys, {len(self._tensors)} tensors)"

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
