"""Read HQQ (Badri and Shaji 2023).

A module has ``W_q``, the packed codes; ``scale`` and ``zero`` of each group; and ``shape``, ``nbits``, ``packing`` and
other settings, each a tensor.  The matrix is reshaped so that its groups of ``group_size`` numbers are rows (``axis``
1) or columns (``axis`` 0).  The reshaped rows are split into as many parts as a byte has codes; the first part has the
highest bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from .matrix import Contents, StoredMatrix
from .numbers import check_shape, dtype_of, floats, rounded, stored

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...files.safetensors import SafetensorsFolder
    from ..reading import Fields
    from .matrix import Floats

PACKINGS = {"8bit_u8": 8, "4bit_u8": 4, "2bit_u8": 2, "1bit_u8": 1}
# Settings that describe how a module was quantized.
WITHOUT_EFFECT = ("offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize",
                  "round_zero", "unpack_view_dtype", "nbits", "compute_dtype")  # fmt: skip
FALSE = ("view_as_float", "quant_scale", "quant_zero")
PARTS = ("W_q", "scale", "zero", "shape", "packing", "axis", "group_size", *FALSE, *WITHOUT_EFFECT)
COMPUTE_DTYPES = {"torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32"}


def hqq(config: Fields, tensors: SafetensorsFolder) -> Contents:
    """Return the matrices of ``quant_method`` hqq.  Settings are read from each module."""
    config.read(("quant_config", "skip_modules"))
    found = Contents()
    for name in tensors:
        if name.endswith(".W_q"):
            module = name.removesuffix(".W_q")
            found.add(HqqMatrix(tensors, module), *(f"{module}.{part}" for part in PARTS))
    return found


class HqqMatrix(StoredMatrix):
    """``(code - zero) * scale``, each step rounded to the type that HQQ computes in."""

    def __init__(self, tensors: SafetensorsFolder, module: str) -> None:
        self._tensors, self._module = tensors, module
        packing, axis = self._text("packing"), self._number("axis")
        if packing not in PACKINGS:
            raise UnsupportedError(
                f"[convert] tensor '{module}.packing' is '{packing:.20}': expected one of {list(PACKINGS)}"
            )
        if axis not in (0, 1):
            raise LoadError(f"[convert] tensor '{module}.axis' is {axis}: expected 0 or 1")
        for part in FALSE:
            if f"{module}.{part}" in tensors and self._number(part):
                raise UnsupportedError(f"[convert] tensor '{module}.{part}' is not 0: expected 0")
        self._axis, self._bits = axis, PACKINGS[packing]
        check_shape(tensors, f"{module}.shape", (2,))
        shape = tuple(int(n) for n in stored(tensors, f"{module}.shape", "I64", "I32"))
        computed = dtype_of(tensors, f"{module}.scale")
        if f"{module}.compute_dtype" in tensors:
            text = self._text("compute_dtype")
            if text not in COMPUTE_DTYPES:
                raise UnsupportedError(
                    f"[convert] tensor '{module}.compute_dtype' is '{text:.20}': expected a float type"
                )
            computed = COMPUTE_DTYPES[text]
        super().__init__(f"{module}.weight", shape, computed)
        n, group = math.prod(shape), self._number("group_size") if f"{module}.group_size" in tensors else 0
        group = group or shape[1 if axis else 0]
        if min(shape) < 1 or group < 1 or n % group:
            raise LoadError(f"[convert] the {n} numbers of '{module}' do not divide into groups of {group}")
        # The shape of the quantized matrix, in which a group is a row (axis 1) or a column (axis 0).
        self._grid = (n // group, group) if axis else (group, n // group)
        per_byte = 8 // self._bits
        if self._grid[0] % per_byte:
            raise LoadError(f"[convert] the groups of '{module}' do not fill bytes of {per_byte} codes")
        stored(tensors, f"{module}.W_q", "U8")
        check_shape(tensors, f"{module}.W_q", (self._grid[0] // per_byte, self._grid[1]))
        of_groups = (self._grid[0], 1) if axis else (1, self._grid[1])
        check_shape(tensors, f"{module}.scale", of_groups)
        check_shape(tensors, f"{module}.zero", of_groups)

    def _number(self, part: str) -> int:
        name = f"{self._module}.{part}"
        check_shape(self._tensors, name, (), (1,))
        return int(stored(self._tensors, name, "U8", "I8", "I32", "I64", "BOOL").reshape(-1)[0])

    def _text(self, part: str) -> str:
        return stored(self._tensors, f"{self._module}.{part}", "U8").tobytes().decode("latin-1")

    def _codes(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return rows of the grid.  The rows of the first part are in the highest bits."""
        import numpy as np

        packed, per_byte = self._tensors.bytes_of(f"{self._module}.W_q"), 8 // self._bits
        rows = np.arange(begin, end)
        shifts = (8 - self._bits * (1 + rows // len(packed))).astype(np.uint8)
        assert end <= len(packed) * per_byte
        codes: npt.NDArray[np.uint8] = (packed[rows % len(packed)] >> shifts[:, None]) & np.uint8((1 << self._bits) - 1)
        return codes

    def values(self, begin: int, end: int) -> Floats:
        import numpy as np

        # Read the whole grid rows that contain rows [begin, end), and cut off the other numbers.
        first, last = begin * self.n_columns, end * self.n_columns
        top, bottom = first // self._grid[1], -(-last // self._grid[1])
        part = slice(top, bottom) if self._axis else slice(None)
        zeros = rounded(floats(self._tensors, f"{self._module}.zero")[part], self.dtype)
        scales = rounded(floats(self._tensors, f"{self._module}.scale")[part], self.dtype)
        differences = rounded(self._codes(top, bottom).astype(np.float32) - zeros, self.dtype)
        values = rounded(differences * scales, self.dtype).reshape(-1)
        start = first - top * self._grid[1]
        return values[start : start + last - first].reshape(end - begin, self.n_columns)
