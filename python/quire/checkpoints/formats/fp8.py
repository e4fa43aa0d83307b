"""Read 8-bit floats: ``fp8`` as stored by DeepSeek, transformers and vLLM, and ``fbgemm_fp8``.

A module has ``weight`` and its scale, which is ``weight_scale_inv`` (one number, or one per block of rows and columns)
or ``weight_scale`` (one number, or one per row).  The scales of activations (``activation_scale``, ``input_scale``) are
not used, as Quire does not round activations to 8 bits.

DeepSeek V4 calls the scale ``scale``.  Its experts have 4 bits (two numbers per byte), 32 columns share an exponent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from .matrix import Contents
from .minifloats import FLOAT8, Float8Matrix, MXFP4Matrix

if TYPE_CHECKING:
    from ...files.safetensors import SafetensorsFolder
    from ..reading import Fields

SCALES = ("_scale_inv", "_scale")
OF_ACTIVATIONS = ("activation_scale", "input_scale", "input_scale_ub", "k_scale", "v_scale", "kv_scale")
SCHEMES = ("dynamic", "static")
PAIRS = ("I8", "U8")  # types of bytes with two numbers


def fp8(config: Fields, tensors: SafetensorsFolder) -> Contents:
    """Return the matrices of ``quant_method`` fp8 and fbgemm_fp8."""
    block = config.items("weight_block_size")
    if block and not (len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
        raise LoadError(f"[convert] 'weight_block_size' of {config.where} is {block}: expected two positive numbers")
    if (form := config.text("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn"):
        raise UnsupportedError(f"[convert] 'fmt' of {config.where} is '{form}': expected e4m3")
    if (scheme := config.text("activation_scheme", "dynamic")) not in SCHEMES:
        raise UnsupportedError(
            f"[convert] 'activation_scheme' of {config.where} is '{scheme}': expected one of {SCHEMES}"
        )
    if (scales := config.text("scale_fmt", "float")) not in ("float", "ue8m0"):
        raise UnsupportedError(f"[convert] 'scale_fmt' of {config.where} is '{scales}': expected float or ue8m0")
    if (experts := config.text("expert_dtype", "fp8")) not in ("fp8", "fp4"):
        raise UnsupportedError(f"[convert] 'expert_dtype' of {config.where} is '{experts}': expected fp8 or fp4")
    config.read(("dequantize", "activation_scale_ub", "modules_to_convert"))
    found = Contents()
    for name in tensors:
        if tensors.dtype(name) in FLOAT8:
            scale = next(
                (one for one in (*(name + suffix for suffix in SCALES), _sibling(name)) if one in tensors), None
            )
            if scale is None:
                raise LoadError(f"[convert] tensor '{name}_scale_inv' is missing in the checkpoint")
            found.add(Float8Matrix(tensors, name, scale, _block(tensors, name, scale, block)), name, scale)
        elif tensors.dtype(name) in PAIRS and name.endswith(".weight") and _sibling(name) in tensors:
            found.add(MXFP4Matrix(tensors, name, name, _sibling(name)), name, _sibling(name))
    found.parts.update(name for name in tensors if name.rpartition(".")[2] in OF_ACTIVATIONS)
    return found


def _sibling(name: str) -> str:
    """Return DeepSeek V4's name of the scale."""
    return f"{name.removesuffix('weight')}scale"


def _block(tensors: SafetensorsFolder, name: str, scale: str, block: list[object]) -> tuple[int, int] | None:
    """Return the numbers of rows and columns that share a scale; None if all do."""
    shape, grid = tensors.shape(name), tensors.shape(scale)
    if len(shape) < 2:
        return None
    if scale.endswith(("_inv", ".scale")) and block and grid not in ((), (1,)):
        first, second = block
        assert isinstance(first, int)
        assert isinstance(second, int)
        return first, second
    if scale.endswith("_scale") and grid in ((*shape[:-1], 1), shape[:-1]) and grid != (1,):
        return 1, shape[-1]
    return None
