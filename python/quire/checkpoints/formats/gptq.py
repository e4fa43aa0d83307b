"""Read GPTQ (Frantar et al. 2022) as stored by AutoGPTQ and GPTQModel.

A module has ``qweight`` [columns * bits / 32, rows], with the codes of a row along the first dimension; ``qzeros``
[groups, rows * bits / 32]; ``scales`` [groups, rows]; and ``g_idx`` [columns], the group of each column.  Groups are
not in order if columns were quantized in the order of their activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from .codes import CodedMatrix
from .matrix import Contents
from .numbers import check_shape, dtype_of, floats, stored, unpacked

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...files.safetensors import SafetensorsFolder
    from ..reading import Fields
    from .codes import Codes, Index
    from .matrix import Floats

BITS = (2, 3, 4, 8)
# Fields about how and by whom a model was quantized, and how other programs run it.
WITHOUT_EFFECT = (
    "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "model_name_or_path",
    "model_file_base_name", "model_seqlen", "dataset", "tokenizer", "block_name_to_quantize",
    "module_name_preceding_first_block", "modules_in_block_to_quantize", "batch_size", "pad_token_id",
    "max_input_length", "cache_block_outputs", "use_cuda_fp16", "use_exllama", "exllama_config", "disable_exllama",
    "backend", "meta", "act_group_aware", "mse", "desc_act", "lm_head", "sym", "parallel_packing", "offload_to_disk",
    "autoround_version", "iters", "nsamples", "seqlen", "lr", "minmax_lr", "low_gpu_mem_usage", "enable_quanted_input",
    "enable_minmax_tuning", "gradient_accumulate_steps", "provider", "scale_dtype", "train_bs",
)  # fmt: skip


def gptq(config: Fields, tensors: SafetensorsFolder) -> Contents:
    """Return the matrices of ``quant_method`` gptq.

    Raises UnsupportedError for unknown numbers of bits and unknown formats.
    """
    bits = config.integer("bits")
    check_bits(config, bits, BITS)
    form = (config.text("checkpoint_format", "") or config.text("format", "gptq")).lower()
    config.read(("checkpoint_format", "format", *WITHOUT_EFFECT))
    if form not in ("gptq", "gptq_v2"):
        raise UnsupportedError(f"[convert] 'checkpoint_format' of {config.where} is '{form}': expected gptq or gptq_v2")
    for name, only in (("pack_dtype", "int32"), ("data_type", "int")):
        if (found_type := config.text(name, only)) != only:
            raise UnsupportedError(f"[convert] '{name}' of {config.where} is '{found_type}': expected {only}")
    if config.value("dynamic"):
        raise UnsupportedError(
            f"[convert] 'dynamic' of {config.where} is set: expected all modules to be quantized alike"
        )
    group_size = config.integer("group_size", 128, low=-1)
    found = Contents()
    for module in packed_modules(tensors):
        found.add(
            _matrix(tensors, module, bits, group_size, has_offset=form == "gptq"),
            *(f"{module}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx")),
        )
        # AutoGPTQ writes biases of zeros for layers without biases.
        if (bias := f"{module}.bias") in tensors and not tensors.array(bias).any():
            found.parts.add(bias)
    return found


def check_bits(config: Fields, bits: int, known: Sequence[int]) -> None:
    """Raise UnsupportedError unless the number of bits is one of ``known``."""
    if bits not in known:
        raise UnsupportedError(f"[convert] 'bits' of {config.where} is {bits}: expected one of {list(known)}")


def packed_modules(tensors: SafetensorsFolder) -> list[str]:
    """Return the modules whose matrices are packed into words."""
    return [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]


def _matrix(tensors: SafetensorsFolder, module: str, bits: int, group_size: int, *, has_offset: bool) -> CodedMatrix:
    qweight, qzeros, scales = f"{module}.qweight", f"{module}.qzeros", f"{module}.scales"
    n_words, n_rows = stored(tensors, qweight, "I32", "U32", n_dims=2).shape
    n_columns = n_words * 32 // bits
    if n_words * 32 % bits:
        raise LoadError(f"[convert] tensor '{qweight}' has {n_words} words, not a whole number of {bits}-bit codes")
    group = n_columns if group_size in (-1, 0) else group_size
    n_groups = -(-n_columns // group)
    check_shape(tensors, scales, (n_groups, n_rows))
    stored(tensors, qzeros, "I32", "U32")
    check_shape(tensors, qzeros, (n_groups, -(-n_rows * bits // 32)))
    return CodedMatrix(
        f"{module}.weight",
        (n_rows, n_columns),
        dtype_of(tensors, scales),
        n_groups=n_groups,
        bounds=(0, (1 << bits) - 1),
        codes=partial(_codes, tensors=tensors, name=qweight, bits=bits, n=n_columns),
        scales=partial(columns_of_floats, tensors=tensors, name=scales),
        zeros=partial(_zeros, tensors=tensors, name=qzeros, bits=bits, has_offset=has_offset, n_rows=n_rows),
        groups=partial(group_index, tensors, f"{module}.g_idx", n_columns, n_groups, group),
    )


def _codes(begin: int, end: int, *, tensors: SafetensorsFolder, name: str, bits: int, n: int) -> Codes:
    import numpy as np

    return unpacked(tensors.array(name)[:, begin:end].T, bits, n).astype(np.int16)


def columns_of_floats(begin: int, end: int, *, tensors: SafetensorsFolder, name: str) -> Floats:
    """Transpose ``[groups, rows]`` to ``[rows, groups]``."""
    of_rows: Floats = floats(tensors, name)[:, begin:end].T
    return of_rows


def _zeros(
    begin: int, end: int, *, tensors: SafetensorsFolder, name: str, bits: int, has_offset: bool, n_rows: int
) -> Codes:
    """Return the zero points.  Version 1 stores them minus 1.

    The 1 is added to whole words, with carries into the next code, since storing a zero point of 0 borrowed from it.
    """
    import numpy as np

    words: npt.NDArray[np.uint32] = tensors.array(name).view(np.uint32)
    if has_offset and bits != 3:
        ones = np.uint32(sum(1 << at for at in range(0, 32, bits)))
        words = words + ones
    zeros = unpacked(words, bits, n_rows)
    if has_offset and bits == 3:
        zeros = (zeros + 1) & np.uint8(7)
    of_rows: Codes = zeros[:, begin:end].T.astype(np.int16)
    return of_rows


def group_index(tensors: SafetensorsFolder, name: str, n_columns: int, n_groups: int, group: int) -> Index:
    """Return the group of each column; consecutive groups if the checkpoint does not tell.

    Raises LoadError for a group that does not exist.
    """
    import numpy as np

    if name not in tensors:
        return np.arange(n_columns) // group
    check_shape(tensors, name, (n_columns,))
    index = stored(tensors, name, "I32", "I64").astype(np.intp)
    if n_columns and not 0 <= int(index.min()) <= int(index.max()) < n_groups:
        raise LoadError(
            f"[convert] tensor '{name}' has groups from {int(index.min())} to {int(index.max())}: "
            f"expected 0 to {n_groups - 1}"
        )
    return index
