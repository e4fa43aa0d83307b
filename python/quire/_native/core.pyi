"""Types, devices and tensors."""

from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
from typing_extensions import CapsuleType

@final
class DType:
    """The type of a tensor's elements: ``DType("q8_0")`` or ``DType.q8_0``.

    A type equals its name, ``DType.f16 == "f16"``, and functions accept a name instead of a DType.

    Raises:
        UnsupportedError: There is no type with this name.
    """

    f32: DType
    f16: DType
    q4_0: DType
    q4_1: DType
    q5_0: DType
    q5_1: DType
    q8_0: DType
    q8_1: DType
    q2_k: DType
    q3_k: DType
    q4_k: DType
    q5_k: DType
    q6_k: DType
    q8_k: DType
    iq2_xxs: DType
    iq2_xs: DType
    iq3_xxs: DType
    iq1_s: DType
    iq4_nl: DType
    iq3_s: DType
    iq2_s: DType
    iq4_xs: DType
    i8: DType
    i16: DType
    i32: DType
    i64: DType
    f64: DType
    iq1_m: DType
    bf16: DType
    tq1_0: DType
    tq2_0: DType
    mxfp4: DType
    nvfp4: DType
    q1_0: DType
    q2_0: DType
    def __init__(self, name: str) -> None: ...
    @staticmethod
    def all() -> list[DType]:
        """Return all types in the order of their numbers."""
    @staticmethod
    def from_id(id: int) -> DType:
        """Return the type with this number in GGUF.  Raises UnsupportedError if there is none."""
    @property
    def id(self) -> int:
        """The number in GGUF."""
    @property
    def name(self) -> str: ...
    @property
    def block_size(self) -> int:
        """The elements in a block: 1 for plain types."""
    @property
    def block_bytes(self) -> int:
        """The bytes of a block."""
    @property
    def is_quantized(self) -> bool: ...
    def row_bytes(self, n: int) -> int:
        """Return the bytes of a row of ``n`` elements.  Raises ShapeError unless these are whole blocks."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Device:
    """A device of one of ggml's backends, as listed by :func:`devices`."""

    @property
    def name(self) -> str:
        """The name: ``"CPU"``, ``"CUDA0"``, ..."""
    @property
    def description(self) -> str:
        """The driver's name for the device."""
    @property
    def backend(self) -> str:
        """The backend of ggml: ``"CPU"``, ``"CUDA"``, ``"Vulkan"``, ..."""
    @property
    def kind(self) -> Literal["cpu", "gpu", "integrated_gpu", "accelerator"]: ...
    @property
    def memory_free_bytes(self) -> int: ...
    @property
    def memory_total_bytes(self) -> int: ...
    @property
    def operations(self) -> list[str]:
        """Names of the common ggml operations that it supports for f32 operands of ordinary shape."""
    def dtypes(self, operation: Literal["mul_mat", "mul_mat_id", "get_rows", "set_rows"]) -> list[str]:
        """Return the matrix types that it supports in an operation.  Raises UnsupportedError for other operations."""
    @property
    def features(self) -> list[str]:
        """Features that its backend was built with or detected: ``"AVX512 = 1"``, ..."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

def devices() -> list[Device]:
    """Return the devices of the loaded backends (``quire.devices()`` loads all backends).

    Raises:
        LoadError: The package's CPU backend is missing.
    """

def find_device(name: str) -> Device:
    """Return the device with this name, ignoring case.  Raises UnsupportedError if there is none."""

def load_backend(path: str) -> None:
    """Load another backend module by its full path.

    Raises:
        LoadError: It belongs to another build, does not load, finds no device, or its backend is already loaded.
    """

def check_module_file(path: str) -> None:
    """Check that a file is a complete library for this machine, built with this Quire, without running its code.

    Raises:
        LoadError: It is not.
    """

def module_version() -> str:
    """Return the build that modules must have in their note: ``"ggml 0.25.3 832db0699007"``."""

class Tensor:
    """A typed, contiguous array on a device.  Shapes are in NumPy's order: the last dimension is contiguous.

    Copies of the object share the memory, which lives as long as any tensor, array or DLPack consumer that uses it.
    """

    @staticmethod
    def from_numpy(array: npt.NDArray[Any], dtype: DType | str | None = None, *, copy: bool | None = None) -> Tensor:
        """Make a tensor that uses an array's memory if that is contiguous, otherwise a copy.

        Args:
            array: float32, float16, float64 or int8 to int64; with ``dtype``, storage of that type.
            dtype: The type of the storage: bf16 is uint16 [..., n], a quantized type uint8 [..., bytes of a row].
            copy: True always copies, False never does.

        Raises:
            ShapeError: The types do not match, rows are not whole blocks, or ``copy`` is False and the array is not
                contiguous.
        """
    @staticmethod
    def empty(dtype: DType | str, shape: Sequence[int], device: Device | str = "cpu") -> Tensor:
        """Make an uninitialised tensor.

        Raises:
            ShapeError: The shape is invalid.
            CapacityError: There is not enough memory.
            UnsupportedError: The device is unknown.
        """
    @staticmethod
    def from_dlpack(source: Any) -> Tensor:
        """Make a tensor that shares the CPU memory of an array with ``__dlpack__``, or of such a capsule.

        Raises:
            ShapeError: The array is not contiguous.
            UnsupportedError: It is on another device or has an unknown element type.
        """
    def numpy(self) -> npt.NDArray[Any]:
        """Return an array that shares the memory: bf16 as uint16, quantized types as uint8 [..., bytes of a row].

        It is read-only if the memory is.

        Raises:
            UnsupportedError: The tensor is not in CPU memory.
        """
    def __array__(
        self, dtype: npt.DTypeLike | None = None, *, copy: bool | None = None
    ) -> np.ndarray[Any, np.dtype[Any]]: ...
    def __dlpack__(
        self,
        *,
        stream: object | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def to(self, device: Device | str) -> Tensor:
        """Return a copy on another device, or the tensor itself if it is there.  Raises UnsupportedError."""
    def part(self, begin: int, end: int) -> Tensor:
        """Return rows ``begin:end`` of the first dimension, in the same memory."""
    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def device(self) -> Device: ...
    @property
    def read_only(self) -> bool: ...
