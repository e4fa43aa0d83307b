"""Choose the kernels that a model runs on, the type of its cache, and where packed weights are kept."""

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
    """Return the type of the cache, with ``"auto"`` resolved for these kernels (None: ggml's).

    Most models were trained in BF16, which is as large as F16.  Products of F16 are computed in F32, which takes twice
    as long as BF16 on processors with BF16 instructions.  A cache that only a step needs (``is_kept`` false) is F32.
    """
    if kv_dtype != "auto":
        return kv_dtype
    if not is_kept:
        return "f32"
    return "bf16" if kernel_set is not None and kernel_set.multiplies_bf16 else "f16"


def packed_cache_of(
    reader: GGUFReader, device: Device, config: EngineConfig, head: DraftModel | None
) -> PackedCache | None:
    """Return where packed weights are cached, or None.  ``head``: a draft head, whose file has weights of the pass."""
    if config.packed_cache is None:
        return None
    if device.kind != "cpu":
        raise UnsupportedError(f"[packed-cache] packed weights are only used on the CPU, not on {device.name}")
    source = reader.identity
    if head is not None:
        source = f"{source} {head.identity}" if source and head.identity else ""
    return PackedCache(config.packed_cache, source=source, load=config.load, source_is_mapped=reader.is_mapped)


def kernel_set_of(config: EngineConfig, device: Device, placement: Placement | None = None) -> KernelSet | None:
    """Return Quire's kernels for the model, or for its part on the CPU; None if it runs on ggml's."""
    if placement is not None and not config.deterministic:
        return KernelSet(config.isa)
    if device.kind != "cpu":
        if config.isa is not None:
            raise UnsupportedError(f"[isa] an instruction set can only be chosen for the CPU, not for {device.name}")
        if config.deterministic:
            raise UnsupportedError(f"[deterministic] fixed bits are only supported on the CPU, not on {device.name}")
        return None
    return None if config.kernels == "stock" else KernelSet(config.isa, deterministic=config.deterministic)
