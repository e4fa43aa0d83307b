"""By which kernels of our own a model runs, and how its cache and its packed weights are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._native.graph import PackedCache
from ..._native.kernels import KernelSet
from ...errors import UnsupportedError

if TYPE_CHECKING:
    from ..._native.core import Device
    from ...files.gguf import GGUFReader
    from ...params.engine_options import CacheDType, EngineConfig, KvDType
    from .draft import DraftModel
    from .placement import Placement

__all__ = ["cache_dtype", "kernel_set_of", "packed_cache_of"]


def cache_dtype(kv_dtype: KvDType, kernel_set: KernelSet | None, *, is_kept: bool = True) -> CacheDType:
    """What ``"auto"`` stands for where a model runs by these kernels (None: ggml's); all others are themselves.

    BF16 is what most models were trained in, and as large as F16, but scores and sums of F16 are multiplied as F32, at
    half the rate of BF16 where there are instructions for that.  What only a step needs (``is_kept`` false) is exact.
    """
    if kv_dtype != "auto":
        return kv_dtype
    if not is_kept:
        return "f32"
    return "bf16" if kernel_set is not None and kernel_set.multiplies_bf16 else "f16"


def packed_cache_of(
    reader: GGUFReader, device: Device, config: EngineConfig, head: DraftModel | None
) -> PackedCache | None:
    """``head``: what has a matrix of the model's pass in a file of its own."""
    if config.packed_cache is None:
        return None
    if device.kind != "cpu":
        raise UnsupportedError(f"[packed-cache] the device must be the CPU for packed weights but is {device.name}")
    source = reader.identity
    if head is not None:
        source = f"{source} {head.identity}" if source and head.identity else ""
    return PackedCache(config.packed_cache, source=source, load=config.load, source_is_mapped=reader.is_mapped)


def kernel_set_of(config: EngineConfig, device: Device, placement: Placement | None = None) -> KernelSet | None:
    """The kernels of our own that the model runs by, or its part on the CPU; None where it runs by ggml's."""
    if placement is not None and not config.deterministic:
        return KernelSet(config.isa)
    if device.kind != "cpu":
        if config.isa is not None:
            raise UnsupportedError(f"[isa] the device must be the CPU for an instruction set but is {device.name}")
        if config.deterministic:
            raise UnsupportedError(f"[deterministic] the device must be the CPU for fixed bits but is {device.name}")
        return None
    return None if config.kernels == "stock" else KernelSet(config.isa, deterministic=config.deterministic)
