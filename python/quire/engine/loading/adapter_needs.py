"""Say whether requests choose among a model's LoRA adapters, and the memory that these need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..._native.core import Device
    from ...params.engine_options import EngineConfig

__all__ = ["library_bytes", "takes_adapters"]


def takes_adapters(devices: Sequence[Device], *, sums_inputs: bool = False) -> bool:
    """Return True if requests choose adapters; otherwise those of the options become a part of the model."""
    if sums_inputs:
        return False
    return all(device.kind == "cpu" or "f32" in device.dtypes("mul_mat_id") for device in devices)


def library_bytes(config: EngineConfig, *, on_device: bool) -> int:
    """Return the bytes of the adapters of the options, estimated by their files.

    A device stacks them, padded to the largest, in a power of two of slots and one for rows without an adapter.
    """
    paths = [path for path, _ in config.adapters] + [path for _, path in config.lora_modules]
    sizes = sorted(_size_of(Path(path)) for path in paths)[-config.max_loras :]
    if not sizes or not on_device:
        return min(sum(sizes), config.lora_cache_size or sum(sizes))
    return sizes[-1] * (1 + (1 << (len(sizes) - 1).bit_length()))


def _size_of(adapter: Path) -> int:
    """Return the bytes of an adapter's file, or of those in its folder; 0 if it cannot be read."""
    try:
        files = adapter.iterdir() if adapter.is_dir() else [adapter]
        return sum(each.stat().st_size for each in files if each.is_file())
    except OSError:  # reading it says why
        return 0
