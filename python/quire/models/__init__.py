"""Model architectures, one file each.  README.md explains how to add one."""

from .base import trace_predictor
from .registry import (
    Architecture,
    LoadedModel,
    architectures,
    checkpoint_of,
    checkpoints_of,
    is_head,
    load_head,
    load_model,
    supported,
)

__all__ = [
    "Architecture",
    "LoadedModel",
    "architectures",
    "checkpoint_of",
    "checkpoints_of",
    "is_head",
    "load_head",
    "load_model",
    "supported",
    "trace_predictor",
]
