"""The native reader of GGUF files behind ``quire.gguf``."""

from typing import Literal, final

from .core import DType, Tensor

@final
class TensorInfo:
    """A tensor's name, type, shape and place in its file."""

    name: str
    dtype: DType
    offset_bytes: int
    size_bytes: int
    part: int
    @property
    def shape(self) -> tuple[int, ...]: ...

@final
class Reader:
    """A GGUF file, or all parts of a split one, fully checked.  Raises LoadError."""

    def __init__(self, path: str, load: Literal["mmap", "copy", "lock"] = "mmap") -> None: ...
    @property
    def version(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def n_files(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def keys(self) -> list[str]: ...
    def has(self, key: str) -> bool: ...
    def value(self, key: str) -> object:
        """Return an int, float, bool, str, list of str, or NumPy array of numbers.  Raises KeyError if missing."""
    def value_type(self, key: str) -> str:
        """Return the type: ``"u32"``, ``"string[]"``, ...  Raises KeyError if missing."""
    def string_bytes(self, key: str) -> list[bytes]:
        """Return the raw bytes of an array of strings, or of one.  Raises LoadError for other types."""
    def packed_strings(self, key: str) -> tuple[bytes, int]:
        """Return an array of strings in the file's form, each preceded by its length in 8 bytes, and their number.

        Raises:
            LoadError: The value has another type.
        """
    def packed_numbers(self, key: str) -> bytes:
        """Return an array of numbers in the file's form, little-endian.  Raises LoadError for other types."""
    def tensors(self) -> list[TensorInfo]: ...
    def has_tensor(self, name: str) -> bool: ...
    def tensor_info(self, name: str) -> TensorInfo: ...
    def tensor(self, name: str) -> Tensor:
        """Return a read-only tensor in the file's memory.  Raises LoadError if missing."""
    @property
    def identity(self) -> str:
        """A string that changes when the files are written to: inodes, sizes, times.

        It is empty if a file is so young that another write might not change its times.
        """
    def check_unchanged(self) -> None:
        """Raise LoadError if the file on disk is no longer the opened one."""
