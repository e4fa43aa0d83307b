"""GGUF files: a strict reader and an atomic writer.

The container is specified in ggml's ``docs/gguf.md``.  Limits: 65 536 keys and as many tensors, strings of 16 MiB,
arrays of 16 Mi entries, an alignment that is a power of two up to 64 KiB.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, overload

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
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_T = TypeVar("_T")
# The types of arrays of numbers and booleans, with their codes in struct and memoryview.
NUMBER_CODES = {
    "u8[]": "B", "i8[]": "b", "u16[]": "H", "i16[]": "h", "u32[]": "I", "i32[]": "i", "u64[]": "Q", "i64[]": "q",
    "f32[]": "f", "f64[]": "d", "bool[]": "?",
}  # fmt: skip


class Required:
    """The default of a required key."""


REQUIRED = Required()


class KeyReader(Protocol):
    """The methods of the native reader that read keys."""

    def keys(self) -> list[str]: ...
    def has(self, key: str) -> bool: ...
    def value(self, key: str) -> object: ...
    def value_type(self, key: str) -> str: ...
    def string_bytes(self, key: str) -> list[bytes]: ...
    def packed_strings(self, key: str) -> tuple[bytes, int]: ...
    def packed_numbers(self, key: str) -> bytes: ...


class Metadata(Mapping[str, object]):
    """The keys of a file, in order.

    ``metadata[key]`` returns the value in its own type: int, float, bool, str, a list of str or a NumPy array.  The
    named methods are strict: a key that is missing (without a default) or has another type is a LoadError that names
    it.
    """

    def __init__(self, reader: KeyReader) -> None:
        self._reader = reader

    @property
    def reader(self) -> KeyReader:
        """The reader of the keys."""
        return self._reader

    def __getitem__(self, key: str) -> object:
        return self._reader.value(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.keys())

    def __len__(self) -> int:
        return len(self._reader.keys())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._reader.has(key)

    def type_of(self, key: str) -> str:
        """Return a key's type: ``"u32"``, ``"string"``, ``"f32[]"``, ...  Raises KeyError if it is missing."""
        return self._reader.value_type(key)

    def _typed(self, key: str, kind: type[_T], default: _T | Required, words: str) -> _T:
        if not self._reader.has(key):
            if isinstance(default, Required):
                raise LoadError(f"[gguf] missing key '{key}'")
            return default
        value = self._reader.value(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise LoadError(f"[gguf] key '{key}' is {self._reader.value_type(key)}: expected {words}")
        return value

    def integer(self, key: str, default: int | Required = REQUIRED, *, low: int = 0, high: int = 2**31 - 1) -> int:
        """Return an integer within ``[low, high]``."""
        value = self._typed(key, int, default, "an integer")
        if self._reader.has(key) and not low <= value <= high:
            raise LoadError(f"[gguf] key '{key}' is {value}: expected {low} to {high}")
        return value

    def number(self, key: str, default: float | Required = REQUIRED) -> float:
        """Return a finite number."""
        value = self._typed(key, float, default, "a number")
        if not math.isfinite(value):
            raise LoadError(f"[gguf] key '{key}' is {value}: expected a finite number")
        return value

    def text(self, key: str, default: str | Required = REQUIRED) -> str:
        """Return a string; bytes that are not UTF-8 become lone surrogates."""
        return self._typed(key, str, default, "a string")

    def flag(self, key: str, default: bool | Required = REQUIRED) -> bool:
        """Return a boolean."""
        return self._typed(key, bool, default, "a boolean")

    def array(self, key: str) -> npt.NDArray[np.generic]:
        """Return an array of numbers or booleans."""
        import numpy as np

        value = self._typed(key, object, REQUIRED, "an array of numbers")
        if not isinstance(value, np.ndarray):
            raise LoadError(f"[gguf] key '{key}' is {self._reader.value_type(key)}: expected an array of numbers")
        return value

    def beginning(self, key: str, n: int) -> tuple[int, list[int | float | bool]]:
        """Return the length and the first ``n`` entries of an array of numbers or booleans, without using NumPy.

        Raises:
            KeyError: The key is missing.
        """
        code = NUMBER_CODES.get(self.type_of(key))
        if code is None:
            raise LoadError(f"[gguf] key '{key}' is {self.type_of(key)}: expected an array of numbers")
        packed = self._reader.packed_numbers(key)
        n_all = len(packed) // struct.calcsize(code)
        return n_all, list(struct.unpack_from(f"<{min(n, n_all)}{code}", packed))

    def packed_numbers(self, key: str) -> memoryview:
        """Return an array of numbers or booleans without using NumPy.  Raises KeyError if it is missing."""
        return memoryview(self._reader.packed_numbers(key)).cast(NUMBER_CODES[self.type_of(key)])  # type: ignore[call-overload, no-any-return]

    def packed_strings(self, key: str) -> tuple[bytes, int]:
        """Return an array of strings in the file's form, each preceded by its length in 8 bytes, and their number.

        Raises:
            LoadError: The value has another type.
        """
        return self._reader.packed_strings(key)

    def strings(self, key: str) -> list[bytes]:
        """Return the raw bytes of an array of strings."""
        if not self._reader.has(key):
            raise LoadError(f"[gguf] missing key '{key}'")
        if self._reader.value_type(key) != "string[]":
            raise LoadError(f"[gguf] key '{key}' is {self._reader.value_type(key)}: expected an array of strings")
        return self._reader.string_bytes(key)


class GGUFReader:
    """A GGUF model: one file, or all parts of a split model, opened by its first part.

    Args:
        path: The file.
        load: ``"mmap"`` shares the file's pages, ``"copy"`` reads it, ``"lock"`` maps it and locks it in memory.

    Raises:
        LoadError: Something is wrong with the file.
        CapacityError: The file does not fit in memory or may not be locked.
    """

    def __init__(self, path: str | os.PathLike[str], load: LoadMode = "mmap") -> None:
        self.path = os.fspath(path)
        self._reader = _gguf.Reader(self.path, load)
        self.metadata = Metadata(self._reader)

    @property
    def version(self) -> int:
        """The version of the container: 2 or 3."""
        return self._reader.version

    @property
    def alignment(self) -> int:
        """The alignment of tensors, in bytes."""
        return self._reader.alignment

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return self._reader.size_bytes

    @property
    def n_files(self) -> int:
        """The number of files: 1, or the number of parts of a split model."""
        return self._reader.n_files

    @property
    def tensors(self) -> list[TensorInfo]:
        """The name, dtype, shape and place of every tensor, in the file's order."""
        return self._reader.tensors()

    def __contains__(self, name: str) -> bool:
        return self._reader.has_tensor(name)

    def tensor(self, name: str) -> Tensor:
        """Return a read-only tensor in the file's memory.  Raises LoadError if there is none with this name."""
        return self._reader.tensor(name)

    def tensor_info(self, name: str) -> TensorInfo:
        """Return a tensor's name, dtype, shape and place.  Raises LoadError if there is none with this name."""
        return self._reader.tensor_info(name)

    @property
    def identity(self) -> str:
        """A string that changes when the files are written to; empty for files younger than two seconds."""
        return self._reader.identity

    @property
    def source_files(self) -> list[Path]:
        """The files that the weights come from: all parts of a split model.  Empty if they are unknown."""
        path = Path(self.path)
        if self.n_files == 1:
            return [path]
        names = [_PART.sub(f"-{i:05}-of-{self.n_files:05}", path.name) for i in range(1, self.n_files + 1)]
        return [path.with_name(name) for name in names]

    @property
    def is_made(self) -> bool:
        """True if tensors are made on demand; the file itself then has zeros."""
        return False

    @property
    def is_mapped(self) -> bool:
        """True if tensors are pages of a file, which can be read again."""
        return True

    def check_unchanged(self) -> None:
        """Raise LoadError if the file on disk changed since it was opened."""
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
    """Writes a GGUF file next to its target and renames it when complete; a failure leaves nothing behind.

    Set the keys first (``set``), then every tensor's dtype and shape (``add_tensor``), then write the data of the
    tensors in that order (``write``), in pieces of any size, so that a model is never in memory as a whole::

        with GGUFWriter("out.gguf", "llama") as writer:
            writer.set("llama.block_count", 2, "u32")
            writer.add_tensor("token_embd.weight", "f32", (8, 4))
            writer.write("token_embd.weight", array)

    Raises:
        ShapeError: The container cannot hold a value or tensor.
        CapacityError: The disk is full.
    """

    def __init__(self, path: str | os.PathLike[str], arch: str, *, alignment: int = 32) -> None:
        if alignment < 8 or alignment > 65536 or alignment & (alignment - 1):
            raise ShapeError(f"[gguf] alignment {alignment}: expected a power of two from 8 to 65536")
        self._path = Path(path)
        self._alignment = alignment
        self._keys: dict[str, bytes] = {}
        self._tensors: dict[str, tuple[DType, tuple[int, ...], int, int]] = {}  # dtype, shape, offset, bytes
        self._data_bytes = 0
        self._file: WholeFile | None = None
        self._order: list[str] = []
        self._written = 0  # bytes written of the current tensor
        self._start = 0
        self.set("general.architecture", arch)
        if alignment != 32:
            self.set("general.alignment", alignment, "u32")

    @overload
    def set(self, key: str, value: str | bytes | bool) -> None: ...
    @overload
    def set(self, key: str, value: object, kind: str) -> None: ...
    def set(self, key: str, value: object, kind: str | None = None) -> None:
        """Set a key.

        Args:
            key: The key.
            value: A scalar, or a list or NumPy array for an array.
            kind: ``u8 i8 ... f64 bool string``, with ``[]`` appended for an array.
        """
        if self._file is not None:
            raise ShapeError(f"[gguf] key '{key}' set after tensor data was written")
        if not 1 <= len(key.encode()) <= 65535:
            raise ShapeError(f"[gguf] key '{key[:40]}' has {len(key.encode())} bytes: expected 1 to 65535")
        if kind is None:
            kind = "bool" if isinstance(value, bool) else "string"
        self._keys[key] = self._encoded(key, value, kind)

    def copy_metadata(self, metadata: Metadata, *, without: Collection[str] = ()) -> None:
        """Set all keys of another file, its architecture included.

        Skips those in ``without`` and ``general.alignment``, which is this file's own.
        """
        for key in metadata:
            if key not in without and key != "general.alignment":
                kind = metadata.type_of(key)
                self.set(key, metadata.strings(key) if kind == "string[]" else metadata[key], kind)

    def _encoded(self, key: str, value: object, kind: str) -> bytes:
        name = kind.removesuffix("[]")
        if name != "string" and name not in _SCALARS:
            raise ShapeError(f"[gguf] key '{key}' has the unknown type '{kind}'")
        number = _STRING if name == "string" else _SCALARS[name][0]
        if not kind.endswith("[]"):
            return struct.pack("<I", number) + self._element(key, value, name)
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise ShapeError(f"[gguf] key '{key}' is {type(value).__name__}: expected an array")
        values: Sequence[object] = value if isinstance(value, (list, tuple)) else list(value)
        body = b"".join(self._element(key, one, name) for one in values)
        return struct.pack("<IIQ", _ARRAY, number, len(values)) + body

    @staticmethod
    def _element(key: str, value: object, name: str) -> bytes:
        if name == "string":
            if not isinstance(value, (str, bytes)):
                raise ShapeError(f"[gguf] key '{key}' is {type(value).__name__}: expected a string")
            raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
            return struct.pack("<Q", len(raw)) + raw
        try:
            return struct.pack(_SCALARS[name][1], value)
        except (struct.error, OverflowError):
            raise ShapeError(f"[gguf] key '{key}' has {value!r}, which does not fit {name}") from None

    def add_tensor(self, name: str, dtype: DType | str, shape: Sequence[int]) -> None:
        """Announce a tensor, with its shape in NumPy order.  Announce all tensors before writing data."""
        dtype = DType(dtype) if isinstance(dtype, str) else dtype
        dims = tuple(int(n) for n in shape)
        if self._file is not None:
            raise ShapeError(f"[gguf] tensor '{name}' announced after tensor data was written")
        if name in self._tensors:
            raise ShapeError(f"[gguf] duplicate tensor '{name}'")
        if not 1 <= len(name.encode()) <= 63:
            raise ShapeError(f"[gguf] tensor name '{name}' has {len(name.encode())} bytes: expected 1 to 63")
        if not 1 <= len(dims) <= 4 or min(dims) < 1:
            raise ShapeError(f"[gguf] tensor '{name}' has the shape {dims}: expected 1 to 4 dimensions of 1 or more")
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
        """Write everything before the data and set the file's length; return its path until ``close``.

        A reader can open that file; its tensors are zero until they are written.
        """
        file = self._begin()
        file.reserve(self._start + self._data_bytes)
        return file.scratch

    def write(self, name: str, data: bytes | memoryview | npt.NDArray[np.generic] | Tensor) -> None:
        """Write the next bytes of a tensor's storage.

        Tensors are written in the order they were announced, in pieces of any size.  A ``Tensor`` is a piece, too:
        ``writer.write(name, reader.tensor(name))`` copies one.

        Raises:
            ShapeError: It is another tensor's turn, the data is too long, or a ``Tensor`` has another dtype.
            UnsupportedError: A ``Tensor`` is not in CPU memory.
        """
        file = self._begin()
        if not self._order or self._order[0] != name:
            expected = self._order[0] if self._order else "nothing more"
            raise ShapeError(f"[gguf] data of '{name}' out of order: expected {expected!r}")
        if isinstance(data, Tensor):
            if data.dtype != self._tensors[name][0]:
                raise ShapeError(
                    f"[gguf] tensor '{name}' is {data.dtype} but was announced as {self._tensors[name][0]}"
                )
            data = data.numpy()
        view = data if isinstance(data, (bytes, memoryview)) else data.data
        view = memoryview(view).cast("B")
        size = self._tensors[name][3]
        if self._written + len(view) > size:
            raise ShapeError(f"[gguf] too much data for tensor '{name}': {self._written + len(view)} of {size} bytes")
        file.write(view)
        self._written += len(view)
        if self._written == size:
            file.write(bytes(-size % self._alignment))
            self._order.pop(0)
            self._written = 0

    def close(self) -> None:
        """Finish the file and move it to its target.  Raises ShapeError, without making a file, if data is missing."""
        try:
            file = self._begin()
            if self._order:
                raise ShapeError(f"[gguf] no data, or not all of it, for tensor '{self._order[0]}'")
            file.commit()
        finally:
            self.abort()

    def abort(self) -> None:
        """Discard the file.  A no-op after close()."""
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
