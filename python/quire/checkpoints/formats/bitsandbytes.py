"""Read ``bitsandbytes`` (Dettmers et al. 2022 and 2023): 4 bits with a table of values, and 8 bits by row.

A 4-bit module has ``weight`` with two codes per byte, the first in the high bits; ``absmax``, the largest magnitude of
each block of consecutive numbers; ``quant_map``, the values of the codes; and ``quant_state.bitsandbytes__nf4`` (or
fp4), JSON with the shape.  If ``absmax`` is itself in 8 bits, ``nested_absmax`` and ``nested_quant_map`` dequantize it.
An 8-bit module has ``weight``, and ``SCB`` with the largest magnitude of each row.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from ..reading import Fields
from .matrix import Contents, StoredMatrix
from .numbers import check_shape, floats, rounded, stored

if TYPE_CHECKING:
    from ...files.safetensors import SafetensorsFolder
    from .matrix import Floats

KINDS = ("nf4", "fp4")
STORAGE = ("U8", "I8", "BF16", "F16", "F32")
DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
STATE_FIELDS = ("quant_type", "blocksize", "dtype", "shape", "nested_blocksize", "nested_dtype", "nested_offset")
# Fields about rounding of activations and placement of weights.  Types are read from each tensor's own state.
WITHOUT_EFFECT = (
    "_load_in_4bit", "_load_in_8bit", "load_in_4bit", "load_in_8bit", "llm_int8_threshold", "llm_int8_skip_modules",
    "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "bnb_4bit_compute_dtype", "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage",
)  # fmt: skip
MOST_STATE_BYTES = 1 << 16


def bitsandbytes(config: Fields, tensors: SafetensorsFolder) -> Contents:
    """Return the matrices of ``quant_method`` bitsandbytes."""
    config.read(WITHOUT_EFFECT)
    found = Contents()
    for name in tensors:
        if name.endswith(".weight.absmax"):
            weight = name.removesuffix(".absmax")
            parts = [part for part in tensors if part.startswith(f"{weight}.")]
            found.add(FourBitMatrix(tensors, weight, parts), weight, *parts)
        elif name.endswith(".SCB"):
            module = name.removesuffix(".SCB")
            found.add(RowMatrix(tensors, f"{module}.weight", name), f"{module}.weight", name)
            found.parts.add(f"{module}.weight_format")
    return found


class RowMatrix(StoredMatrix):
    """8-bit integers, multiplied by the row's largest magnitude / 127."""

    def __init__(self, tensors: SafetensorsFolder, name: str, largest: str) -> None:
        super().__init__(name, stored(tensors, name, "I8", n_dims=2).shape, "f32")
        stored(tensors, largest, "F32")
        check_shape(tensors, largest, (self.n_rows,), (self.n_rows, 1))
        form = f"{name}_format"
        if form in tensors and stored(tensors, form, "U8").any():
            raise UnsupportedError(f"[convert] unsupported weight layout in tensor '{form}': expected 0, by rows")
        self._tensors, self._largest = tensors, largest

    def values(self, begin: int, end: int) -> Floats:
        import numpy as np

        largest = floats(self._tensors, self._largest).reshape(-1, 1)[begin:end]
        codes = self._tensors.array(self.name)[begin:end].astype(np.float32)
        values: Floats = codes * largest * np.float32(1 / 127)
        return values


class FourBitMatrix(StoredMatrix):
    """Values from a table, multiplied by the largest magnitude of their block.  A block may cross rows."""

    def __init__(self, tensors: SafetensorsFolder, name: str, parts: list[str]) -> None:
        self._tensors = tensors
        state = self._state(name, parts)
        dtype, shape = state.text("dtype"), state.items("shape")
        if dtype not in DTYPES:
            raise UnsupportedError(f"[convert] 'dtype' of {state.where} is '{dtype}': expected one of {list(DTYPES)}")
        if len(shape) != 2 or not all(isinstance(n, int) and n > 0 for n in shape):
            raise LoadError(f"[convert] 'shape' of {state.where} is {shape}: expected two positive numbers")
        super().__init__(name, tuple(int(str(n)) for n in shape), DTYPES[dtype])
        stored(tensors, name, *STORAGE)
        self._block = state.integer("blocksize", low=1)
        n = math.prod(self.shape)
        n_bytes = tensors.array(name).nbytes
        if n_bytes != -(-n // 2):
            raise LoadError(f"[convert] tensor '{name}' has {n_bytes} bytes: expected {-(-n // 2)}")
        n_blocks = -(-n // self._block)
        check_shape(tensors, f"{name}.quant_map", (16,))
        check_shape(tensors, f"{name}.absmax", (n_blocks,))
        self._nested: tuple[int, float] | None = None
        if f"{name}.nested_absmax" in tensors:
            self._nested = state.integer("nested_blocksize", low=1), state.number("nested_offset")
            stored(tensors, f"{name}.absmax", "U8")
            check_shape(tensors, f"{name}.nested_quant_map", (256,))
            check_shape(tensors, f"{name}.nested_absmax", (-(-n_blocks // self._nested[0]),))
        state.read(STATE_FIELDS)
        state.refuse_unread()
        floats(tensors, f"{name}.quant_map")
        self._largest(0, 1)

    def _state(self, name: str, parts: list[str]) -> Fields:
        """Return the JSON object that is stored in a tensor."""
        states = [part for part in parts if ".quant_state." in part]
        known = [f"{name}.quant_state.bitsandbytes__{kind}" for kind in KINDS]
        if len(states) != 1 or states[0] not in known:
            raise LoadError(f"[convert] expected one of the tensors '{known[0]}' and '{known[1]}' in the checkpoint")
        data = stored(self._tensors, states[0], "U8").tobytes()
        if len(data) > MOST_STATE_BYTES:
            raise LoadError(
                f"[convert] tensor '{states[0]}' has {len(data)} bytes: expected at most {MOST_STATE_BYTES}"
            )
        try:
            value = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise LoadError(f"[convert] tensor '{states[0]}' is not valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise LoadError(f"[convert] tensor '{states[0]}' is not a JSON object")
        return Fields(f"tensor '{states[0]}'", value)

    def _largest(self, begin: int, end: int) -> Floats:
        """Return the largest magnitudes of blocks ``[begin, end)``."""
        import numpy as np

        if self._nested is None:
            return floats(self._tensors, f"{self.name}.absmax")[begin:end]
        block, offset = self._nested
        codes = self._tensors.bytes_of(f"{self.name}.absmax")[begin:end]
        values = floats(self._tensors, f"{self.name}.nested_quant_map")[codes]
        largest = floats(self._tensors, f"{self.name}.nested_absmax")[np.arange(begin, end) // block]
        found: Floats = values * largest + np.float32(offset)
        return found

    def values(self, begin: int, end: int) -> Floats:
        import numpy as np

        first, last = begin * self.n_columns, end * self.n_columns
        pairs = self._tensors.array(self.name).reshape(-1).view(np.uint8)[first // 2 : -(-last // 2)]
        codes = np.stack([pairs >> 4, pairs & 15], -1).reshape(-1)[first % 2 :][: last - first]
        first_block, last_block = first // self._block, -(-last // self._block)
        largest = np.repeat(self._largest(first_block, last_block), self._block)[first % self._block :][: last - first]
        values: Floats = floats(self._tensors, f"{self.name}.quant_map")[codes] * largest
        return rounded(values, self.dtype).reshape(end - begin, self.n_columns)
