"""Files: the native reader behind ``quire.gguf``."""

from typing import Literal, final

from .core import DType, Tensor

@final
class TensorInfo:
    """Where a tensor lies in its file."""

    name: str
    dtype: DType
    offset_bytes: int
    size_bytes: int
    part: int
    @property
    def shape(self) -> tuple[int, ...]: ...

@final
class Reader:
    """A GGUF file, or all parts of a split one, checked completely.  Raises LoadError."""

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
        """int, float, bool, str, list of str, or a NumPy array of numbers; KeyError when absent."""
    def value_type(self, key: str) -> str:
        """``"u32"``, ``"string[]"``, ...; KeyError when absent."""
    def string_bytes(self, key: str) -> list[bytes]:
        """A string array's (or a string's) raw bytes; LoadError when it holds no strings."""
    def packed_strings(self, key: str) -> tuple[bytes, int]:
        """A string array as the file holds it, each with its length in 8 bytes before it, and the number of strings;
        LoadError when it holds no strings."""
    def packed_numbers(self, key: str) -> bytes:
        """An array of numbers as the file holds it, little-endian; LoadError when it is none."""
    def tensors(self) -> list[TensorInfo]: ...
    def has_tensor(self, name: str) -> bool: ...
    def tensor_info(self, name: str) -> TensorInfo: ...
    def tensor(self, name: str) -> Tensor:
        """The tensor over the file's memory, read-only; LoadError when absent."""
    @property
    def identity(self) -> str:
        """What stays the same while nobody writes to the files: inodes, sizes, times.

        Empty for files so young that a write might not show.
        """
    def check_unchanged(self) -> None:
        """LoadError when the file on disk is no longer the one that was opened."""
