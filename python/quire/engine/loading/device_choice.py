"""Which devices the options mean."""

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
    """What ``"default"`` and ``"auto"`` stand for; all others are themselves.

    ``"auto"`` is a GPU, or else the CPU, which is said; ``"default"`` a GPU that passed its check, or else the CPU.
    Where layers are wanted on a device, ``"default"`` and ``"cpu"`` are ``"auto"``.  ``is_for_cpu``: of what is done
    with the model.
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
        "[device] the model runs on the CPU: this machine has no other device that this build of Quire knows "
        "(docs/devices.md tells how to build for one; 'quire devices' lists what is there)"
    )
    return "cpu"


def _is_for_cpu(config: EngineConfig) -> bool:
    """Whether an option says what only the CPU does."""
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
    """The devices that a model may lie on: the CPU alone, or others, one after the other.

    Where several are of the kind that is asked for, the first, or that of ``main_gpu``; all with ``split_mode``
    ``"layer"`` or ``tensor_split``, which may leave some out.  UnsupportedError where there are fewer than these say.
    """
    is_split = config.split_mode == "layer" or (bool(config.tensor_split) and config.split_mode != "none")
    found = find_devices(config.device, every=is_split or config.main_gpu > 0)
    if found[0].kind == "cpu":
        return found[:1]
    if any(device.kind == "cpu" for device in found):
        raise UnsupportedError("[device] the CPU must not be named beside devices: it has what these leave")
    names = ", ".join(device.name for device in found)
    if is_split:
        if len(config.tensor_split) > len(found):
            raise UnsupportedError(
                f"[tensor-split] there must be at most one number for each device, {names}, but there are "
                f"{len(config.tensor_split)}"
            )
        shares = (*config.tensor_split, *(0.0,) * len(found)) if config.tensor_split else (1.0,) * len(found)
        return [device for device, share in zip(found, shares, strict=False) if share]
    if config.split_mode == "none" or config.main_gpu > 0:
        if config.main_gpu >= len(found):
            raise UnsupportedError(
                f"[main-gpu] the number must be below {len(found)}, as there are {names}, but is {config.main_gpu}"
            )
        return [found[config.main_gpu]]
    return found
