"""Load backend modules other than the CPU's, each of them only after it loaded in a process of its own.

A module brings a vendor's driver into the process.  A broken module or driver must not end any command, even one that
asked for that device.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import QuireError
from ..system import GROUP, ended_by
from .kinds import Kind, kind_of_module
from .module_files import ModuleFile, module_files

__all__ = ["ModuleReport", "load_modules", "module_reports"]

State = Literal["loaded", "not used", "no device", "unusable"]
START_S = 30.0
NO_DEVICE = "found no device to run on"  # the message of native/core/device.cpp ends with this
_LOG = logging.getLogger("quire")
_lock = threading.Lock()
_reports: dict[ModuleFile, ModuleReport] = {}


@dataclass(frozen=True)
class ModuleReport:
    """The outcome of loading a module.

    Attributes:
        source: Where it comes from: ``"quire"``, ``"QUIRE_MODULE_PATH"``, or a wheel, ``"quire-llm-vulkan 0.2.0"``.
        reason: Why it is not loaded.
        advice: What to do if it is not loaded.
        devices: Names of its devices if it is loaded.
    """

    path: str
    module: str
    source: str
    state: State
    reason: str = ""
    advice: str = ""
    devices: tuple[str, ...] = ()


def load_modules(kind: Kind | None = None) -> list[ModuleReport]:
    """Load the modules of a kind, or all, each at most once per process; return a report on each."""
    with _lock:
        files = module_files(kind)
        new = [file for file in files if file not in _reports]
        if new:
            with ThreadPoolExecutor(len(new)) as pool:  # drivers start slowly
                tried = list(pool.map(_tried, new))
            for file, report in zip(new, tried, strict=True):
                _reports[file] = report if report.state != "loaded" else _loaded(file)
                _log(_reports[file])
        return [_reports[file] for file in files]


def _log(report: ModuleReport) -> None:
    """Log a module's outcome, for ``QUIRE_LOG``."""
    found = ", ".join(report.devices) if report.state == "loaded" else report.reason
    _LOG.info("[device] module %s: %s: %s%s", report.path, report.state, found, report.advice and f" ({report.advice})")


def module_reports() -> list[ModuleReport]:
    """Load every module that can be loaded; return a report on each."""
    return load_modules()


def _report(file: ModuleFile, state: State, reason: str, devices: tuple[str, ...] = ()) -> ModuleReport:
    kind = kind_of_module(file.module)
    advice = file.advice
    if kind is not None and (state == "no device" or "cannot open shared object" in reason):
        advice = kind.needs
    elif state == "unusable" and not advice:
        build = f"rebuild it (-D{kind.option}=ON) or " if kind is not None else ""
        advice = f"{build}remove the file"
    return ModuleReport(str(file.path), file.module, file.source, state, reason, advice, devices)


def _tried(file: ModuleFile) -> ModuleReport:
    """Try a module in a process of its own; the state is ``"loaded"`` if it can be loaded."""
    from .._native.core import check_module_file

    path = file.path
    try:
        if file.refusal:
            raise _Unusable(file.refusal)
        check_module_file(str(path))
        # A program that embeds Python has no interpreter to start, so the module is loaded untried.
        names = _tried_in_process(path) if sys.executable else ()
    except _NoDevice as error:
        return _report(file, "no device", str(error))
    except (_Unusable, QuireError) as error:
        return _report(file, "unusable", _bare(str(error), path))
    return _report(file, "loaded", "", names)


class _Unusable(Exception):
    """Why a module cannot be used."""


class _NoDevice(Exception):
    """Why a module offers no device."""


def _tried_in_process(path: Path) -> tuple[str, ...]:
    """Return the names of the devices that a module offers in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("module_process.py"))],
            input=json.dumps({"path": sys.path, "module": str(path)}).encode(),
            capture_output=True,
            timeout=START_S,
            check=False,
            **GROUP,
        )
    except subprocess.TimeoutExpired:
        raise _Unusable(f"its driver did not answer within {START_S:g} s") from None
    except OSError as error:
        raise _Unusable(f"cannot start a process to try it in: {error}") from error
    said = " ".join(done.stderr.decode(errors="replace").split())[-500:]
    if by := ended_by(done.returncode):
        raise _Unusable(f"loading it ends the process by {by}: {said}")
    try:
        answer = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
    except (IndexError, ValueError):
        raise _Unusable(f"loading it ends the process with exit status {done.returncode}: {said}") from None
    if "error" in answer:
        raise (_NoDevice if answer["error"].endswith(NO_DEVICE) else _Unusable)(_bare(answer["error"], path))
    if not answer["devices"]:
        raise _NoDevice(said or "its driver lists no device")
    return tuple(answer["devices"])


def _loaded(file: ModuleFile) -> ModuleReport:
    """Load a module that was tried into this process, unless one of its kind is already loaded."""
    from .._native.core import devices, load_backend

    for other in _reports.values():
        if (other.module, other.state) == (file.module, "loaded"):
            return _report(file, "not used", f"{other.path} takes precedence")
    before = {device.name for device in devices()}
    try:
        load_backend(str(file.path))
    except QuireError as error:
        return _report(file, "unusable", _bare(str(error), file.path))
    names = tuple(device.name for device in devices() if device.name not in before)
    return _report(file, "loaded", "", names)


def _bare(text: str, path: Path) -> str:
    """Strip the place and the path from a message, as the report has both."""
    return text.removeprefix(f"[device] cannot load '{path}': ")
