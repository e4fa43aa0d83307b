"""Read ``compressed-tensors``, the format of llm-compressor and vLLM.

A module's tensors depend on the ``format`` of its group:

- ``pack-quantized``: ``weight_packed`` [rows, columns * bits / 32], ``weight_shape``, ``weight_scale``
  [rows, groups], and with zero points ``weight_zero_point`` [rows * bits / 32, groups];
- ``int-quantized``, ``float-quantized``, ``naive-quantized``: 8-bit ``weight``, and ``weight_scale`` (one, or
  one for each row, group or block);
- ``nvfp4-pack-quantized``: ``weight_packed``, ``weight_scale``, ``weight_global_scale``;
- ``mxfp4-pack-quantized``: ``weight_packed``, ``weight_scale``.

Quire does not quantize activations, so their scales are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from ...files.expressions import Expression, MatchTime
from .codes import CodedMatrix
from .gptq import group_index
from .matrix import Contents, StoredMatrix
from .minifloats import FLOAT8, Float8Matrix, MXFP4Matrix, NVFP4Matrix
from .numbers import check_shape, dtype_of, floats, stored, unpacked

if TYPE_CHECKING:
    from ...files.safetensors import SafetensorsFolder
    from ..reading import Fields
    from .codes import Codes
    from .matrix import Floats

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
           "mxfp4-pack-quantized", "mixed-precision", "dense")  # fmt: skip
STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
OF_ACTIVATIONS = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point",
                  "k_scale", "v_scale", "q_scale")  # fmt: skip
WITHOUT_EFFECT = ("quantization_status", "global_compression_ratio", "version", "moe_sparsity_config")
# Fields about how the weights were quantized, which do not change how they are read.
SCHEME_WITHOUT_EFFECT = ("observer", "observer_kwargs", "dynamic", "zp_dtype", "scale_dtype", "actorder")


@dataclass(frozen=True)
class _Scheme:
    """How the weights of a group of modules are stored."""

    where: str
    targets: tuple[str, ...]
    expressions: tuple[Expression, ...]  # those of the targets that are regular expressions
    bits: int
    is_float: bool
    strategy: str
    group_size: int
    block: tuple[int, int] | None
    is_symmetric: bool

    @classmethod
    def read(cls, where: str, group: Fields, match_time: MatchTime) -> _Scheme | None:
        """Read a group; None if its weights are not quantized.  Raises UnsupportedError for an unknown scheme."""
        group.read(("input_activations", "output_activations"))
        if (form := group.text("format", "dense")) not in FORMATS:
            raise UnsupportedError(f"[convert] 'format' of {group.where} is '{form}': expected one of {list(FORMATS)}")
        targets = tuple(str(target) for target in group.items("targets"))
        if not group.has("weights"):
            return None
        weights = group.inner("weights")
        weights.read(SCHEME_WITHOUT_EFFECT)
        kind, bits = weights.text("type", "int"), weights.integer("num_bits", 8)
        if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8), ("float", 4), ("int", 2)):
            raise UnsupportedError(
                f"[convert] 'type' and 'num_bits' of {weights.where} are {kind} and {bits}: expected int with 2, 4 or 8"
                " bits, or float with 4 or 8"
            )
        size = weights.integer("group_size", -1, low=-1) if weights.has("group_size") else -1
        default = "group" if size > 0 else "channel" if weights.has("group_size") else "tensor"
        strategy = weights.text("strategy", default)
        if strategy not in STRATEGIES:
            raise UnsupportedError(
                f"[convert] 'strategy' of {weights.where} is '{strategy}': expected one of {list(STRATEGIES)}"
            )
        is_symmetric = weights.flag("symmetric", True)
        if kind == "float" and not is_symmetric:
            raise UnsupportedError(f"[convert] 'symmetric' of {weights.where} is false: expected true for floats")
        expressions = tuple(
            Expression(target[3:], "[convert] 'targets'", match_time=match_time)
            for target in targets
            if target.startswith("re:")
        )
        return cls(where, targets, expressions, bits, kind == "float", strategy, size, _block(weights), is_symmetric)

    def matches(self, module: str) -> bool:
        """Return whether a target matches the module's name.

        Targets that are classes, such as Linear, apply to modules that no name matches.
        """
        return module in self.targets or any(expression.match(module) for expression in self.expressions)


def _block(weights: Fields) -> tuple[int, int] | None:
    given = weights.value("block_structure")
    if given is None:
        return None
    sizes = given.split("x") if isinstance(given, str) else given
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(str(n).isdecimal() and int(n) for n in sizes):
        raise LoadError(
            f"[convert] 'block_structure' of {weights.where} is {given!r:.40}: expected two positive numbers"
        )
    return int(sizes[0]), int(sizes[1])


def compressed_tensors(config: Fields, tensors: SafetensorsFolder) -> Contents:
    """Return the matrices of ``quant_method`` compressed-tensors.  Raises UnsupportedError for an unknown format."""
    schemes = _schemes(config)
    found = Contents()
    for name in tensors:
        module, _, part = name.rpartition(".")
        is_packed = part == "weight_packed"
        if is_packed or (part == "weight" and tensors.dtype(name) in ("I8", *FLOAT8)):
            matrix = _matrix(tensors, module, _scheme_of(schemes, module), is_packed=is_packed)
            found.add(matrix, *(f"{module}.{suffix}" for suffix in _PARTS if f"{module}.{suffix}" in tensors))
        elif part in OF_ACTIVATIONS:
            found.parts.add(name)
    return found


_PARTS = ("weight", "weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_global_scale",
          "weight_g_idx")  # fmt: skip


def _schemes(config: Fields) -> list[_Scheme]:
    config.read(WITHOUT_EFFECT)
    # Quire's cache has its own type (kv_dtype).
    config.read(("kv_cache_scheme",))
    if (form := config.text("format", "dense")) not in FORMATS:
        raise UnsupportedError(f"[convert] 'format' of {config.where} is '{form}': expected one of {list(FORMATS)}")
    if transforms := config.value("transform_config"):
        raise UnsupportedError(
            f"[convert] 'transform_config' of {config.where} is {transforms!r:.60}: expected it to be empty"
        )
    sparsity = config.inner("sparsity_config")
    if sparsity.text("format", "dense") != "dense":
        raise UnsupportedError(f"[convert] 'sparsity_config' of {config.where} is not dense")
    sparsity.read(sparsity.names())
    groups = config.inner("config_groups")
    match_time = MatchTime()
    read = [_Scheme.read(name, groups.inner(name), match_time) for name in groups.names()]
    return [scheme for scheme in read if scheme is not None]


def _scheme_of(schemes: list[_Scheme], module: str) -> _Scheme:
    named = [scheme for scheme in schemes if scheme.matches(module)]
    others = [scheme for scheme in schemes if any(not _is_name(target) for target in scheme.targets)]
    chosen = named or others
    if not chosen:
        raise LoadError(f"[convert] no group of 'config_groups' is for '{module}'")
    return chosen[0]


def _is_name(target: str) -> bool:
    """Return whether a target names modules, not a class of modules."""
    return target.startswith("re:") or "." in target or not target[:1].isupper()


def _matrix(tensors: SafetensorsFolder, module: str, scheme: _Scheme, *, is_packed: bool) -> StoredMatrix:
    name, scale = f"{module}.weight", f"{module}.weight_scale"
    packed = f"{module}.weight_packed"
    if is_packed and scheme.is_float:
        if scheme.bits != 4:
            raise UnsupportedError(f"[convert] '{scheme.where}' says {scheme.bits} bits for '{packed}': expected 4")
        if f"{module}.weight_global_scale" in tensors:
            return NVFP4Matrix(tensors, name, packed, scale, f"{module}.weight_global_scale")
        if scheme.group_size != MXFP4Matrix.group:
            raise LoadError(f"[convert] tensor '{module}.weight_global_scale' is missing in the checkpoint")
        return MXFP4Matrix(tensors, name, packed, scale)
    if not is_packed and scheme.is_float:
        return Float8Matrix(tensors, name, scale, _float_block(tensors, name, scheme), dtype_of(tensors, scale))
    if is_packed:
        return _packed_codes(tensors, module, scheme)
    if scheme.bits != 8:
        raise LoadError(f"[convert] '{name}' is not packed: '{scheme.where}' says {scheme.bits} bits")
    shape = stored(tensors, name, "I8", n_dims=2).shape
    return _coded(
        tensors, module, scheme, (shape[0], shape[1]), partial(_bytes, tensors=tensors, name=name), is_packed=False
    )


def _float_block(tensors: SafetensorsFolder, name: str, scheme: _Scheme) -> tuple[int, int] | None:
    if scheme.strategy == "tensor":
        return None
    if scheme.strategy == "channel":
        return 1, tensors.shape(name)[-1]
    if scheme.strategy == "group":
        return 1, scheme.group_size
    if scheme.block is None:
        raise LoadError(f"[convert] 'block_structure' of '{scheme.where}' is missing")
    return scheme.block


def _bytes(begin: int, end: int, *, tensors: SafetensorsFolder, name: str) -> Codes:
    import numpy as np

    codes: Codes = tensors.array(name)[begin:end].astype(np.int16)
    return codes


def _packed_codes(tensors: SafetensorsFolder, module: str, scheme: _Scheme) -> CodedMatrix:
    packed, shape_name, bits = f"{module}.weight_packed", f"{module}.weight_shape", scheme.bits
    check_shape(tensors, shape_name, (2,))
    n_rows, n_columns = (int(n) for n in stored(tensors, shape_name, "I64", "I32"))
    stored(tensors, packed, "I32", "U32")
    check_shape(tensors, packed, (n_rows, -(-n_columns * bits // 32)))
    codes = partial(_unpacked_rows, tensors=tensors, name=packed, bits=bits, n=n_columns)
    return _coded(tensors, module, scheme, (n_rows, n_columns), codes, is_packed=True)


def _unpacked_rows(begin: int, end: int, *, tensors: SafetensorsFolder, name: str, bits: int, n: int) -> Codes:
    """Return signed codes; the stored ones count from the smallest."""
    import numpy as np

    codes: Codes = unpacked(tensors.array(name)[begin:end], bits, n).astype(np.int16) - np.int16(1 << (bits - 1))
    return codes


def _coded(
    tensors: SafetensorsFolder, module: str, scheme: _Scheme, shape: tuple[int, int], codes: partial[Codes], *,
    is_packed: bool,
) -> CodedMatrix:  # fmt: skip
    scale, zero, (n_rows, n_columns) = f"{module}.weight_scale", f"{module}.weight_zero_point", shape
    if scheme.strategy not in ("tensor", "channel", "group"):
        raise UnsupportedError(
            f"[convert] 'strategy' of '{scheme.where}' is '{scheme.strategy}': expected tensor, channel or group for "
            "integers"
        )
    group = scheme.group_size if scheme.strategy == "group" else n_columns
    if group < 1 or n_columns % group:
        raise LoadError(f"[convert] the {n_columns} columns of '{module}' do not divide into groups of {group}")
    n_groups = n_columns // group
    is_one = scheme.strategy == "tensor"
    shapes: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1)) if is_one else ((n_rows, n_groups),)
    if scheme.strategy == "channel":
        shapes = (*shapes, (n_rows,))
    check_shape(tensors, scale, *shapes)
    zeros = None
    if not scheme.is_symmetric:
        if is_packed and not is_one:
            stored(tensors, zero, "I32", "U32")
            check_shape(tensors, zero, (-(-n_rows * scheme.bits // 32), n_groups))
            zeros = partial(_packed_zeros, tensors=tensors, name=zero, bits=scheme.bits, n_rows=n_rows)
        else:
            stored(tensors, zero, "I8")
            check_shape(tensors, zero, *shapes)
            zeros = partial(_zeros, tensors=tensors, name=zero, shape=(n_rows, n_groups))
    half = 1 << (scheme.bits - 1)
    has_order = f"{module}.weight_g_idx" in tensors
    return CodedMatrix(
        f"{module}.weight",
        shape,
        dtype_of(tensors, scale),
        n_groups=n_groups,
        bounds=(-half, half - 1),
        codes=codes,
        scales=partial(_scales, tensors=tensors, name=scale, shape=(n_rows, n_groups)),
        zeros=zeros,
        groups=partial(group_index, tensors, f"{module}.weight_g_idx", n_columns, n_groups, group)
        if has_order
        else None,
    )


def _scales(begin: int, end: int, *, tensors: SafetensorsFolder, name: str, shape: tuple[int, int]) -> Floats:
    import numpy as np

    scales = floats(tensors, name)
    return np.broadcast_to(scales.reshape(-1, shape[1]), shape)[begin:end]


def _zeros(begin: int, end: int, *, tensors: SafetensorsFolder, name: str, shape: tuple[int, int]) -> Codes:
    import numpy as np

    zeros: Codes = tensors.array(name).astype(np.int16)
    return np.broadcast_to(zeros.reshape(-1, shape[1]), shape)[begin:end]


def _packed_zeros(begin: int, end: int, *, tensors: SafetensorsFolder, name: str, bits: int, n_rows: int) -> Codes:
    """Return zero points, which are packed along the first dimension, the rows."""
    import numpy as np

    zeros: Codes = unpacked(tensors.array(name).T, bits, n_rows).astype(np.int16) - np.int16(1 << (bits - 1))
    of_rows: Codes = zeros.T[begin:end]
    return of_rows
