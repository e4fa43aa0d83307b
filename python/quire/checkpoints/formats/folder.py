"""A checkpoint folder, with quantized matrices under the names of the unquantized tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..._native.quant import dequantize
from ...errors import LoadError, UnsupportedError
from ...files.expressions import Expression, MatchTime
from ...files.safetensors import SafetensorsFolder
from ..reading import Fields
from .awq import awq
from .bitsandbytes import bitsandbytes
from .compressed_tensors import compressed_tensors
from .fp8 import fp8
from .gptq import gptq
from .hqq import hqq
from .matrix import Contents, Format, StoredMatrix
from .mistral import open_tensors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..._native.core import Tensor
    from .matrix import Floats


def _mxfp4(config: Fields, tensors: SafetensorsFolder) -> Contents:
    config.read(("dequantize",))
    return Contents()


# By ``quant_method``.  gpt-oss's architecture itself reads its MXFP4 experts.
FORMATS: Mapping[str, Format] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fp8,
    "fp8": fp8,
    "gptq": gptq,
    "hqq": hqq,
    "mxfp4": _mxfp4,
}
# The formats' names for the list of modules that are not quantized.
EXCEPTIONS = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules", "skip_modules", "ignored_layers")
_SLAB_VALUES = 1 << 20
_WHOLE = ("I64", "I32", "I16", "I8", "U32", "U16", "U8", "BOOL")
_T = TypeVar("_T")


class StoredCheckpoint(Collection[str]):
    """The tensors of a folder.  Quantized matrices have the names of the unquantized tensors."""

    def __init__(self, folder: str | os.PathLike[str], quantization: Fields | None) -> None:
        """``quantization`` is the field ``quantization_config``; all of its fields are read.

        Raises what ``SafetensorsFolder`` raises, LoadError for tensors that do not fit together, UnsupportedError for
        an unknown method, format or field.
        """
        self._tensors = open_tensors(Path(folder))
        self.method = "" if quantization is None else _method(quantization)
        self.matrices: Mapping[str, StoredMatrix] = {}
        parts: set[str] = set()
        if quantization is not None:
            contents = _contents(quantization, self.method, self._tensors)
            self.matrices, parts = contents.matrices, contents.parts
            for name in self.matrices:
                if name in self._tensors and name not in parts:
                    raise LoadError(f"[convert] tensor '{name}' is in the checkpoint twice: quantized and unquantized")
        self._stored_bytes = sum(self._tensors.n_bytes(name) for name in parts if name in self._tensors)
        self._names = dict.fromkeys([*(name for name in self._tensors if name not in parts), *self.matrices])

    @property
    def stored_bytes(self) -> int:
        """Bytes of the quantized matrices in the folder, including their scales and other parts."""
        return self._stored_bytes

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor that is not quantized."""
        if name in self.matrices:
            raise UnsupportedError(
                f"[convert] tensor '{name}' is quantized with {self.method}: expected an unquantized tensor"
            )
        return self._tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its data."""
        return self.matrices[name].shape if name in self.matrices else self._tensors.shape(name)

    def bytes_of(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a tensor of type U8."""
        return self._tensors.bytes_of(name)

    def whole_numbers(self, name: str) -> npt.NDArray[np.int64]:
        """Return a tensor of integers, or of booleans as 0 and 1."""
        import numpy as np

        if (dtype := self._tensors.dtype(name)) not in _WHOLE:
            raise LoadError(f"[convert] tensor '{name}' is {dtype}: expected integers")
        return self._tensors.array(name).astype(np.int64)

    def values(self, name: str) -> Floats:
        """Return any tensor as float32.  Raises LoadError for quantized numbers that are not finite."""
        import numpy as np

        if name not in self.matrices:
            return dequantize(self._tensors[name]).reshape(self._tensors.shape(name) or (1,))
        matrix = self.matrices[name]
        out = np.empty((matrix.n_rows, matrix.n_columns), np.float32)

        def read(begin: int, end: int) -> bool:
            with np.errstate(over="ignore", invalid="ignore"):
                out[begin:end] = matrix.values(begin, end)
            return bool(np.isfinite(out[begin:end]).all())

        if not all(by_slabs(matrix, read)):
            raise LoadError(f"[convert] '{name}' has a number that is not finite")
        return out.reshape(matrix.shape)


def by_slabs(matrix: StoredMatrix, read: Callable[[int, int], _T]) -> Iterator[_T]:
    """Yield ``read(begin, end)`` for consecutive ranges of rows, in order, computed on all processors."""
    from concurrent.futures import ThreadPoolExecutor

    most = max(1, _SLAB_VALUES // matrix.n_columns)
    begins = range(0, matrix.n_rows, most)
    ends = [min(begin + most, matrix.n_rows) for begin in begins]
    if len(begins) == 1:
        yield read(0, matrix.n_rows)
        return
    with ThreadPoolExecutor(min(len(begins), os.cpu_count() or 1)) as threads:
        yield from threads.map(read, begins, ends)


def _method(quantization: Fields) -> str:
    """Return the name of the method, which early versions of bitsandbytes did not write."""
    is_first = not quantization.has("quant_method") and any(
        quantization.value(name) is True for name in ("load_in_4bit", "load_in_8bit")
    )
    return "bitsandbytes" if is_first else quantization.text("quant_method", "")


def _contents(quantization: Fields, method: str, tensors: SafetensorsFolder) -> Contents:
    if method not in FORMATS:
        raise UnsupportedError(
            f"[convert] 'quant_method' of {quantization.where} is '{method}': expected one of {', '.join(FORMATS)}"
        )
    contents = FORMATS[method](quantization, tensors)
    match_time = MatchTime()
    exceptions = [_Exception(str(name), match_time) for field in EXCEPTIONS for name in quantization.items(field)]
    for name in contents.matrices:
        module = name.removesuffix(".weight")
        if (found := next((one for one in exceptions if one.names(module)), None)) is not None:
            raise LoadError(f"[convert] '{module}' is quantized although '{found.text}' excludes it")
    if not contents.matrices and method != "mxfp4":
        raise LoadError(f"[convert] the checkpoint has no matrices quantized with {method}")
    return contents


class _Exception:
    """An entry of a list of exceptions: a module's name or the end of it, a parent module, or an expression."""

    def __init__(self, text: str, match_time: MatchTime) -> None:
        self.text = text
        self._pattern = None
        if text.startswith("re:"):
            self._pattern = Expression(text[3:], "[convert] 'ignore'", match_time=match_time)

    def names(self, module: str) -> bool:
        if self._pattern is not None:
            return self._pattern.match(module)
        return f".{module}".endswith(f".{self.text}") or module.startswith(f"{self.text}.")
