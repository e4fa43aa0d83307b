"""Quantized files: which type each tensor gets, importance matrices, and writing the file."""

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
