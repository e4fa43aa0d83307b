"""Read AWQ (Lin et al. 2023) in AutoAWQ's GEMM version.

A module has ``qweight`` [columns, rows * bits / 32], ``qzeros`` [groups, rows * bits / 32] and ``scales``
[groups, rows].  A word has 8 codes, those of even rows first.
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
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # position of row i in a word of 4-bit codes
WITHOUT_EFFECT = ("backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config", "desc_act", "sym",
                  "damp_percent", "true_sequential", "meta", "modules_in_block_to_quantize")  # fmt: skip


def awq(config: Fields, tensors: SafetensorsFolder) -> Contents:
    """Return the matrices of ``quant_method`` awq.

    Raises UnsupportedError for other numbers of bits, other versions, and matrices without zero points.
    """
    bits = config.integer("bits", 4)
    check_bits(config, bits, BITS)
    form = (config.text("version", "") or config.text("format", "gemm")).lower()
    config.read(("version", "format", *WITHOUT_EFFECT))
    if form != "gemm":
        raise UnsupportedError(f"[convert] 'version' of {config.where} is '{form}': expected gemm")
    if not config.flag("zero_point", True):
        raise UnsupportedError(f"[convert] 'zero_point' of {config.where} is false: expected true")
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
        raise LoadError(f"[convert] the {n_columns} columns of '{module}' do not divide into groups of {group}")
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
    """Return rows ``[begin, end)`` of the matrix, which are columns of the tensor."""
    import numpy as np

    n = 32 // bits
    first, last = begin // n, -(-end // n)
    words = tensors.array(name)[:, first:last]
    codes = unpacked(words, bits, words.shape[1] * n)
    if bits == 4:
        codes = codes.reshape(len(codes), -1, n)[..., ORDER].reshape(len(codes), -1)
    of_rows: Codes = codes[:, begin - first * n : end - first * n].T.astype(np.int16)
    return of_rows
