"""Numbers of 8 bits: ``fp8`` as DeepSeek, transformers and vLLM store it, and ``fbgemm_fp8``.

Of a module: ``weight``, and beside it ``weight_scale_inv`` (for blocks of rows and columns, or one) or ``weight_scale``
(one, or one for each row), which it is multiplied by.  What activations would be scaled by before they are rounded
(``activation_scale``, ``input_scale``) is not used: they are not rounded to 8 bits here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from .matrix import Contents
from .minifloats import FLOAT8, Float8Matrix

if TYPE_CHECKING:
    from ...files.safetensors import SafetensorsFolder
    from ..reading import Fields

SCALES = ("_scale_inv", "_scale")
OF_ACTIVATIONS = ("activation_scale", "input_scale", "input_scale_ub", "k_scale", "v_scale", "kv_scale")
SCHEMES = ("dynamic", "static")


def fp8(config: Fields, tensors: SafetensorsFolder) -> Contents:
    """The matrices of ``quant_method`` fp8 and fbgemm_fp8."""
    block = config.items("weight_block_size")
    if block and not (len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
        raise LoadError(f"[convert] 'weight_block_size' of {config.where} must be two numbers above 0 but is {block}")
    if (form := config.text("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn"):
        raise UnsupportedError(f"[convert] 'fmt' of {config.where} must be e4m3 but is '{form}'")
    if (scheme := config.text("activation_scheme", "dynamic")) not in SCHEMES:
        raise UnsupportedError(
            f"[convert] 'activation_scheme' of {config.where} must be one of {SCHEMES}, not '{scheme}'"
        )
    if (scales := config.text("scale_fmt", "float")) not in ("float", "ue8m0"):
        raise UnsupportedError(f"[convert] 'scale_fmt' of {config.where} must be float or ue8m0 but is '{scales}'")
    config.read(("dequantize", "activation_scale_ub", "modules_to_convert"))
    found = Contents()
    for name in tensors:
        if tensors.dtype(name) in FLOAT8:
            scale = next((name + suffix for suffix in SCALES if name + suffix in tensors), None)
            if scale is None:
                raise LoadError(f"[convert] the checkpoint must hold tensor '{name}_scale_inv' but does not")
            found.add(Float8Matrix(tensors, name, scale, _block(tensors, name, scale, block)), name, scale)
    found.parts.update(name for name in tensors if name.rpartition(".")[2] in OF_ACTIVATIONS)
    return found


def _block(tensors: SafetensorsFolder, name: str, scale: str, block: list[object]) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None where all do."""
    shape, grid = tensors.shape(name), tensors.shape(scale)
    if len(shape) < 2:
        return None
    if scale.endswith("_inv") and block and grid not in ((), (1,)):
        first, second = block
        assert isinstance(first, int)
        assert isinstance(second, int)
        return first, second
    if scale.endswith("_scale") and grid in ((*shape[:-1], 1), shape[:-1]) and grid != (1,):
        return 1, shape[-1]
    return None
