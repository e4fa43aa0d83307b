"""Checkpoints in safetensors files, read strictly.  The public place of ``quire.files.safetensors``."""

from .files.safetensors import SafetensorsFile, SafetensorsFolder

__all__ = ["SafetensorsFile", "SafetensorsFolder"]
