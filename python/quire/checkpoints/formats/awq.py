"""AWQ (Lin et al. 2023) as AutoAWQ stores it, in its form GEMM.

Of a module: ``qweight`` [columns, rows * bits / 32], ``qzeros`` [groups, rows * bits / 32], ``scales`` [groups, rows].
Of 8 codes in a word, those of even rows come first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from .codes import CodedMatrix
from .gptq import check_bits, columns_of_floats, packed_modules
from .matrix import Contents
from .numbers import check_shape, dtype_of, stored, unpacked

if TYPE_CHECKING:
    from ...files.safetensors import SafetensorsFolder
    from ..reading import Fields
    from .codes import Codes

BITS = (4, 8)
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word of 4-bit codes row i lies
WITHOUT_EFFECT = ("backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config", "desc_act", "sym",
                  "damp_percent", "true_sequential", "meta", "modules_in_block_to_quantize")  # fmt: skip


def awq(config: Fields, tensors: SafetensorsFolder) -> Contents:
    """The matrices of ``quant_method`` awq.  UnsupportedError for other bits, other forms, and no zero points."""
    bits = config.integer("bits", 4)
    check_bits(config, bits, BITS)
    form = (config.text("version", "") or config.text("format", "gemm")).lower()
    config.read(("version", "format", *WITHOUT_EFFECT))
    if form != "gemm":
        raise UnsupportedError(f"[convert] 'version' of {config.where} must be gemm but is '{form}'")
    if not config.flag("zero_point", True):
        raise UnsupportedError(f"[convert] 'zero_point' of {config.where} must be true but is not")
    group_size = config.integer("group_size", 128, low=-1)
    found = Contents()
    for module in packed_modules(tensors):
        found.add(
            _matrix(tensors, module, bits, group_size),
            *(f"{module}.{part}" for part in ("qweight", "qzeros", "scales")),
        )
    return found


def _matrix(tensors: SafetensorsFolder, module: str, bits: int, group_size: int) -> CodedMatrix:
    qweight, qzeros, scales = f"{module}.qweight", f"{module}.qzeros", f"{module}.scales"
    n_columns, n_words = stored(tensors, qweight, "I32", "U32", n_dims=2).shape
    n_rows = n_words * 32 // bits
    group = n_columns if group_size in (-1, 0) else group_size
    if n_columns % group:
        raise LoadError(f"[convert] the {n_columns} columns of '{module}' must be groups of {group} but are not")
    check_shape(tensors, scales, (n_columns // group, n_rows))
    stored(tensors, qzeros, "I32", "U32")
    check_shape(tensors, qzeros, (n_columns // group, n_words))
    return CodedMatrix(
        f"{module}.weight",
        (n_rows, n_columns),
        dtype_of(tensors, scales),
        n_groups=n_columns // group,
        bounds=(0, (1 << bits) - 1),
        codes=partial(_codes, tensors=tensors, name=qweight, bits=bits),
        scales=partial(columns_of_floats, tensors=tensors, name=scales),
        zeros=partial(_codes, tensors=tensors, name=qzeros, bits=bits),
    )


def _codes(begin: int, end: int, *, tensors: SafetensorsFolder, name: str, bits: int) -> Codes:
    """Rows ``[begin, end)`` of the matrix, which are columns of the tensor."""
    import numpy as np

    n = 32 // bits
    first, last = begin // n, -(-end // n)
    words = tensors.array(name)[:, first:last]
    codes = unpacked(words, bits, words.shape[1] * n)
    if bits == 4:
        codes = codes.reshape(len(codes), -1, n)[..., ORDER].reshape(len(codes), -1)
    of_rows: Codes = codes[:, begin - first * n : end - first * n].T.astype(np.int16)
    return of_rows
