"""Quantization: the type of each tensor, importance matrices, and writing quantized files.

Names are imported when first used: quantizing an array needs no models.
"""

from typing import TYPE_CHECKING

from ..runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from .importance import Importance
    from .mixes import MIXES, Mix, mix_named
    from .reader import QuantizedReader
    from .run import Plan, Planned, Wishes, plan, quantize_model

__all__ = [
    "MIXES",
    "Importance",
    "Mix",
    "Plan",
    "Planned",
    "QuantizedReader",
    "Wishes",
    "mix_named",
    "plan",
    "quantize_model",
]

_MODULES = {
    "Importance": "importance",
    "MIXES": "mixes",
    "Mix": "mixes",
    "Plan": "run",
    "Planned": "run",
    "QuantizedReader": "reader",
    "Wishes": "run",
    "mix_named": "mixes",
    "plan": "run",
    "quantize_model": "run",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _MODULES)
