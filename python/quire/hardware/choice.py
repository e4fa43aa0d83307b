"""Which device is meant."""

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
    """All devices: the CPU, and those of every backend module that can be loaded.

    LoadError without the CPU's module.
    """
    from .._native import core

    load_modules()
    return core.devices()


def find_device(name: str) -> Device:
    """The device of that name, or the first of a kind; case is ignored.

    ``"gpu"`` is the first GPU, ``"cuda"``, ``"vulkan"``, ``"rocm"``, ``"sycl"`` and ``"metal"`` are the first of
    theirs.  Of a kind, one that failed ``quire devices --check`` is passed over.  The modules of the CPU and of what is
    asked for are loaded, and no others.  Raises UnsupportedError, which tells what became of the modules.
    """
    return _found(name, every=False)[0]


def find_devices(names: str, *, every: bool = False) -> list[Device]:
    """The devices of those names, which have commas between them; each once, in their order.

    ``every``: of a kind all, not the first alone.  Raises as ``find_device``.
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
                "[device] %s is passed over: it failed 'quire devices --check' (%s); --device %s uses it all the same",
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
        f"[device] the device must be one of {names} but is '{name}'{_why(wanted, kind, reports, bool(of_kind))}"
    )


def checked_gpu() -> Device | None:
    """The first GPU that passed ``quire devices --check``.  No module is loaded where none has ever passed."""
    if not any_passed():
        return None
    for device in devices():
        verdict = verdict_of(device) if device.kind in _GPUS else None
        if verdict is not None and verdict.passed:
            return device
    return None


def has_gpu() -> bool:
    """Whether ``find_device("gpu")`` finds one."""
    return any(
        device.kind in _GPUS and ((verdict := verdict_of(device)) is None or verdict.passed) for device in devices()
    )


def _is_of(device: Device, wanted: str, kind: Kind | None) -> bool:
    if wanted == "gpu":
        return device.kind in _GPUS
    return kind is not None and wanted in kind.names and device.name.lower().startswith(kind.prefix)


def _why(wanted: str, kind: Kind | None, reports: list[ModuleReport], failed: bool) -> str:
    """What became of the modules that would have offered it."""
    if failed:
        return ": those of the kind failed 'quire devices --check', and are used by their own names only"
    told = [
        f"{report.path}: {report.reason or 'loaded'}" + (f" ({report.advice})" if report.advice else "")
        for report in reports
        if report.state != "loaded"
    ]
    if told:
        return "; " + "; ".join(told)
    if kind is not None and not reports:
        wheel = f'pip install "quire-llm[{kind.extra}]" brings it, or ' if kind.extra else ""
        return (
            f": no module libggml-{kind.module} lies in {module_folders()[0][0]}; {wheel}Quire builds it with"
            f" -D{kind.option}=ON"
        )
    if wanted == "gpu" and not reports:
        extras = " or ".join(f'"quire-llm[{kind.extra}]"' for kind in KINDS if kind.extra)
        options = ", ".join(f"-D{kind.option}=ON" for kind in KINDS)
        return f": there is no module for other devices; pip install {extras} brings one, or a build with {options}"
    return ""
