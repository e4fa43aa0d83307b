"""A strict reader of checkpoints in safetensors files; the public name of ``quire.files.safetensors``."""

from .files.safetensors import SafetensorsFile, SafetensorsFolder

__all__ = ["SafetensorsFile", "SafetensorsFolder"]
