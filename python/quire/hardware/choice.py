"""Find devices by name or by kind."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from .kinds import KINDS, Kind, kind_named
from .module_files import module_folders
from .modules import ModuleReport, load_modules
from .verdicts import any_passed, verdict_of

if TYPE_CHECKING:
    from .._native.core import Device

__all__ = ["checked_gpu", "devices", "find_device", "find_devices", "has_gpu"]

_LOG = logging.getLogger("quire")
_GPUS = ("gpu", "integrated_gpu")


def devices() -> list[Device]:
    """Return the CPU and the devices of every backend module that can be loaded.

    Raises:
        LoadError: The CPU's module is missing.
    """
    from .._native import core

    load_modules()
    return core.devices()


def find_device(name: str) -> Device:
    """Return the device of this name, or the first one of a kind.

    Loads only the CPU's module and those of the wanted kind.

    Args:
        name: A device (``"CUDA0"``) or a kind: ``"gpu"``, ``"cuda"``, ``"vulkan"``, ``"rocm"``, ``"sycl"`` or
            ``"metal"``; case is ignored.  For a kind, devices that failed ``quire devices --check`` are skipped.

    Raises:
        UnsupportedError: There is no such device; the message says why each module was not used.
    """
    return _found(name, every=False)[0]


def find_devices(names: str, *, every: bool = False) -> list[Device]:
    """Return the devices of a comma-separated list of names, in order and without duplicates.

    Args:
        names: Names as for :func:`find_device`, separated by commas.
        every: Return all devices of a kind instead of its first one.

    Raises:
        UnsupportedError: One of the names matches no device.
    """
    found: list[Device] = []
    for name in names.split(","):
        found += [device for device in _found(name.strip(), every) if device not in found]
    return found


def _found(name: str, every: bool) -> list[Device]:
    from .._native import core

    wanted = name.lower()
    if wanted == "cpu":
        return [core.find_device("CPU")]
    kind = kind_named(wanted)
    reports = load_modules(kind)
    found = core.devices()
    for device in found:
        if device.name.lower() == wanted:
            return [device]
    of_kind = [device for device in found if _is_of(device, wanted, kind)]
    usable: list[Device] = []
    for device in of_kind:
        verdict = verdict_of(device)
        if verdict is not None and not verdict.passed:
            _LOG.warning(
                "[device] skipping %s: it failed 'quire devices --check' (%s); use --device %s to force it",
                device.name, verdict.reason, device.name,
            )  # fmt: skip
            continue
        usable.append(device)
        if not every:
            break
    if usable:
        return usable
    names = ", ".join(device.name for device in found)
    raise UnsupportedError(
        f"[device] no such device: '{name}' (available: {names}){_why(wanted, kind, reports, bool(of_kind))}"
    )


def checked_gpu() -> Device | None:
    """Return the first GPU that passed ``quire devices --check``.  Loads no module if none ever passed."""
    if not any_passed():
        return None
    for device in devices():
        verdict = verdict_of(device) if device.kind in _GPUS else None
        if verdict is not None and verdict.passed:
            return device
    return None


def has_gpu() -> bool:
    """Return True if ``find_device("gpu")`` would succeed."""
    return any(
        device.kind in _GPUS and ((verdict := verdict_of(device)) is None or verdict.passed) for device in devices()
    )


def _is_of(device: Device, wanted: str, kind: Kind | None) -> bool:
    if wanted == "gpu":
        return device.kind in _GPUS
    return kind is not None and wanted in kind.names and device.name.lower().startswith(kind.prefix)


def _why(wanted: str, kind: Kind | None, reports: list[ModuleReport], failed: bool) -> str:
    """Explain why no module offers the device, as the rest of a message."""
    if failed:
        return "; all devices of this kind failed 'quire devices --check', so name one to use it anyway"
    told = [
        f"{report.path}: {report.reason or 'loaded'}" + (f" ({report.advice})" if report.advice else "")
        for report in reports
        if report.state != "loaded"
    ]
    if told:
        return "; " + "; ".join(told)
    if kind is not None and not reports:
        wheel = f'pip install "quire-llm[{kind.extra}]" or ' if kind.extra else ""
        return (
            f"; there is no module libggml-{kind.module} in {module_folders()[0][0]}: {wheel}build Quire with"
            f" -D{kind.option}=ON"
        )
    if wanted == "gpu" and not reports:
        extras = " or ".join(f'"quire-llm[{kind.extra}]"' for kind in KINDS if kind.extra)
        options = ", ".join(f"-D{kind.option}=ON" for kind in KINDS)
        return f"; no GPU module is installed: pip install {extras}, or build Quire with {options}"
    return ""
