"""Choose the devices that the options ask for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..._native.kernels import KernelSet
from ...errors import UnsupportedError
from ...hardware import checked_gpu, find_devices, has_gpu

if TYPE_CHECKING:
    from ..._native.core import Device
    from ...params.engine_options import EngineConfig

__all__ = ["device_at_hand", "devices_of"]

_LOG = logging.getLogger("quire")


def device_at_hand(config: EngineConfig, *, is_for_cpu: bool = False) -> str:
    """Return the device option with ``"default"`` and ``"auto"`` resolved.

    ``"auto"`` is a GPU, else the CPU with a warning; ``"default"`` is a GPU that passed its check, else the CPU.  If
    ``n_gpu_layers`` asks for layers on a device, ``"default"`` and ``"cpu"`` mean ``"auto"``.  ``is_for_cpu``: the
    model is opened for something that only the CPU does.
    """
    if config.n_gpu_layers == 0:
        return "cpu"
    wanted = config.device.lower()
    if config.n_gpu_layers is not None and wanted in ("cpu", "default"):
        wanted = "auto"
    if wanted == "default":
        found = None if is_for_cpu or _is_for_cpu(config) else checked_gpu()
        return "cpu" if found is None else found.name
    if wanted != "auto":
        return config.device
    if has_gpu():
        return "gpu"
    _LOG.warning(
        "[device] no GPU found that this build of Quire supports: running on the CPU ('quire devices' lists devices; "
        "docs/devices.md explains how to build for a GPU)"
    )
    return "cpu"


def _is_for_cpu(config: EngineConfig) -> bool:
    """Return whether an option needs the CPU."""
    return bool(
        config.kernels != "auto"
        or config.isa
        or KernelSet(deterministic=config.deterministic).is_deterministic
        or config.packed_cache
        or config.draft
        or config.speculation in ("mtp", "eagle")
        or "q" in config.kv_dtype
        or config.load == "lock"
    )


def devices_of(config: EngineConfig) -> list[Device]:
    """Return the devices that a model may use: the CPU alone, or one or more others in order.

    Of several devices of the requested kind it is the first, or that of ``main_gpu``; all of them with ``split_mode``
    ``"layer"`` or ``tensor_split``, whose zeros leave devices out.  UnsupportedError if there are not that many.
    """
    is_split = config.split_mode == "layer" or (bool(config.tensor_split) and config.split_mode != "none")
    found = find_devices(config.device, every=is_split or config.main_gpu > 0)
    if found[0].kind == "cpu":
        return found[:1]
    if any(device.kind == "cpu" for device in found):
        raise UnsupportedError("[device] leave out the CPU: it runs the parts that the devices do not take")
    names = ", ".join(device.name for device in found)
    if is_split:
        if len(config.tensor_split) > len(found):
            raise UnsupportedError(
                f"[tensor-split] {len(config.tensor_split)} numbers for {len(found)} devices ({names}): give at most "
                "one each"
            )
        shares = (*config.tensor_split, *(0.0,) * len(found)) if config.tensor_split else (1.0,) * len(found)
        return [device for device, share in zip(found, shares, strict=False) if share]
    if config.split_mode == "none" or config.main_gpu > 0:
        if config.main_gpu >= len(found):
            raise UnsupportedError(f"[main-gpu] no device {config.main_gpu}: expected 0 to {len(found) - 1} ({names})")
        return [found[config.main_gpu]]
    return found
