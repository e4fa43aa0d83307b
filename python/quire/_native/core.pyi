"""Types, devices and tensors."""

from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
from typing_extensions import CapsuleType

@final
class DType:
    """The type of a tensor's elements, as ggml and GGUF number it; ``DType("q8_0")`` or ``DType.q8_0``.

    Equal to its name: ``DType.f16 == "f16"``.  A string is taken wherever a DType is.  Raises UnsupportedError for a
    name that is none of them.
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
        """Every type, by number."""
    @staticmethod
    def from_id(id: int) -> DType:
        """The type with GGUF's number.  Raises UnsupportedError if there is none."""
    @property
    def id(self) -> int:
        """GGUF's number."""
    @property
    def name(self) -> str: ...
    @property
    def block_size(self) -> int:
        """Elements in a block: 1 for plain types."""
    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
    @property
    def is_quantized(self) -> bool: ...
    def row_bytes(self, n: int) -> int:
        """Bytes of ``n`` elements in a row.  Raises ShapeError unless they are whole blocks."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Device:
    """A device that a backend of ggml offers, as listed by :func:`devices`."""

    @property
    def name(self) -> str:
        """``"CPU"``, ``"CUDA0"``, ..."""
    @property
    def description(self) -> str:
        """What its driver calls it."""
    @property
    def backend(self) -> str:
        """Of which backend of ggml it is: ``"CPU"``, ``"CUDA"``, ``"Vulkan"``, ..."""
    @property
    def kind(self) -> Literal["cpu", "gpu", "integrated_gpu", "accelerator"]: ...
    @property
    def memory_free_bytes(self) -> int: ...
    @property
    def memory_total_bytes(self) -> int: ...
    @property
    def operations(self) -> list[str]:
        """Names of ggml's operations that it supports for f32 operands of ordinary shape."""
    def dtypes(self, operation: Literal["mul_mat", "mul_mat_id", "get_rows", "set_rows"]) -> list[str]:
        """Types of the matrix with which it does one of ggml's operations.  Raises UnsupportedError for others."""
    @property
    def features(self) -> list[str]:
        """What its backend was built with or found: ``"AVX512 = 1"``, ..."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

def devices() -> list[Device]:
    """The devices of the backends that are loaded (``quire.devices()`` loads them all).

    Raises LoadError if the package's CPU backend is missing.
    """

def find_device(name: str) -> Device:
    """The device of that name among those of ``devices``, case ignored.  Raises UnsupportedError."""

def load_backend(path: str) -> None:
    """Load one more backend module by its full path.

    Raises LoadError if it is none of this build, does not load, finds nothing to run on, or is there already.
    """

def check_module_file(path: str) -> None:
    """LoadError unless the file is a whole library for this machine that was built with this Quire.

    None of it is run.
    """

def module_version() -> str:
    """What modules of this build say of themselves: ``"ggml 0.25.3 832db0699007"``."""

class Tensor:
    """A typed, contiguous array on a device.  Shapes are in NumPy's order: the last dimension is contiguous.

    Copying the object shares the memory, which lives as long as any tensor, array or DLPack consumer over it.
    """

    @staticmethod
    def from_numpy(array: npt.NDArray[Any], dtype: DType | str | None = None, *, copy: bool | None = None) -> Tensor:
        """A tensor over the array's memory where that is contiguous (and ``copy`` is not True), else over a copy.

        Without ``dtype``: float32, float16, float64 or int8 to int64.  With it, the array is storage of that type:
        bf16 as uint16 [..., n], a quantized type as uint8 [..., bytes of a row].  Raises ShapeError if the types do not
        fit, if rows are not whole blocks, or if ``copy`` is False and the array is not contiguous.
        """
    @staticmethod
    def empty(dtype: DType | str, shape: Sequence[int], device: Device | str = "cpu") -> Tensor:
        """Uninitialised memory.  Raises ShapeError, CapacityError, or UnsupportedError for an unknown device."""
    @staticmethod
    def from_dlpack(source: Any) -> Tensor:
        """A tensor over the memory of any array with ``__dlpack__`` (or of such a capsule), in CPU memory.

        Raises ShapeError if it is not contiguous, UnsupportedError for another device or an unknown element type.
        """
    def numpy(self) -> npt.NDArray[Any]:
        """An array over the same memory: bf16 as uint16, quantized types as uint8 [..., bytes of a row].

        Read-only if the memory is.  Raises UnsupportedError if the tensor is on another device.
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
        """A copy on another device, or itself where it already is there.  Raises UnsupportedError."""
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
